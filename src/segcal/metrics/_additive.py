"""Base of statistics that add: the same counts whether voxels come at once, in batches or cases."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import Array
from segcal.metrics._binning import Tables
from segcal.metrics._chunks import Chunk, iter_chunks
from segcal.metrics._validate import Inspector


class AdditiveStatistics(ABC):
    """Counts and sums over voxels, in constant memory.

    A subclass names its settings (equal in statistics that are merged) and its sums, and tallies
    the sums of a chunk of voxels. `_stored` are the names in a stored state.
    """

    _settings: tuple[str, ...]
    _sums: tuple[str, ...]
    _stored: tuple[str, ...]
    num_classes: int
    voxels: Any
    _seen: Inspector

    @abstractmethod
    def tally(self, chunk: Chunk, groups: int = 1) -> Tables:
        """The sums of the voxels of a checked chunk, for each of their groups."""

    @classmethod
    @abstractmethod
    def _empty_for(cls, state: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Empty statistics with the settings of a stored state."""

    def empty(self) -> Self:
        """Statistics of no voxels, with the same settings."""
        return type(self)(*(getattr(self, name) for name in self._settings))

    def add(self, tables: Tables, group: int = 0) -> Self:
        """Add one group of the result of `tally`."""
        for name in self._sums:
            setattr(self, name, getattr(self, name) + tables[name][group])
        return self

    def update(
        self,
        probs: Array,
        target: Array,
        mask: Array | None = None,
        *,
        ignore_index: int = -100,
        batched: bool | None = None,
    ) -> Self:
        """Count the voxels of one volume or batch; returns itself.

        If an argument is invalid, nothing is counted. Volumes of any size are read in chunks. On
        CUDA the counting runs on the device and only the tables are copied back.

        Args:
            probs: (K, *S) or (B, K, *S), numpy or torch, floating point, after softmax.
            target: integer labels (*S) or (B, *S), or soft labels of the shape of `probs`.
            mask: boolean (*S) or (B, *S), the voxels to count. None counts all.
            ignore_index: integer label of voxels that are not counted.
            batched: whether `probs` is (B, K, *S). Needed only if the shapes allow both readings.

        Raises:
            ValueError: shapes that do not match, labels outside 0..K-1, NaN, values outside [0, 1]
                (logits), or probabilities that do not sum to 1.

        Warns:
            UserWarning: all voxels so far, 1,024 or more, lie in [1/(e+K−1), e/(e+K−1)], as after
                a second softmax. Given once, and not with a `mask`, which may exclude all
                confident voxels.
        """
        new = self.empty()
        for chunk in iter_chunks(
            probs, target, self.num_classes,
            mask=mask, ignore_index=ignore_index, batched=batched, seen=self._seen,
        ):  # fmt: skip
            new.add(new.tally(chunk))
        return self.merge(new)

    def merge(self, other: Self) -> Self:
        """Add the counts of `other` to these; returns itself."""
        kind = type(self).__name__
        if not isinstance(other, type(self)):
            raise TypeError(
                f"Expected argument `other` to be {kind}, but got {type(other).__name__}."
            )
        own, given = ([getattr(x, name) for name in self._settings] for x in (self, other))
        if own != given:
            raise ValueError(
                f"Expected argument `other` to have ({', '.join(self._settings)}) = {tuple(own)}, "
                f"but got {tuple(given)}."
            )
        for name in self._sums:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self._seen.merge(other._seen)
        return self

    def __add__(self, other: Self) -> Self:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self.empty().merge(self).merge(other)

    def __radd__(self, other: object) -> Self:
        """`sum(statistics)` starts from 0."""
        return self.empty().merge(self) if other == 0 else NotImplemented

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """All sums as arrays that `numpy.savez` accepts; `from_state` is the inverse."""
        return {name: np.array(getattr(self, name)) for name in self._stored}

    @classmethod
    def from_state(cls, state: Mapping[str, npt.ArrayLike]) -> Self:
        """Statistics from the result of `state` (a dict, or an opened npz file)."""
        missing = sorted(set(cls._stored) - set(state))
        if missing:
            raise ValueError(
                f"Expected argument `state` to hold {missing}, but got {sorted(state)}."
            )
        arrays = {name: np.asarray(state[name]) for name in cls._stored}
        new = cls._empty_for(arrays)
        for name in cls._sums:
            array, expected = arrays[name], np.asarray(getattr(new, name))
            integer = expected.dtype.kind == "i"
            if array.shape != expected.shape or (integer and array.dtype.kind not in "iu"):
                raise ValueError(
                    f"Expected `state[{name!r}]` to be {expected.dtype} of shape {expected.shape}, "
                    f"but got {array.dtype} of shape {array.shape}."
                )
            # Rounding may take a sum of probabilities slightly below 0.
            if not (np.isfinite(array).all() and (array >= -1e-3).all()):
                raise ValueError(
                    f"Expected `state[{name!r}]` to be finite and not negative, but got {array}."
                )
            setattr(new, name, array.astype(expected.dtype)[()])  # [()]: a scalar is no array
        return new

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={getattr(self, name)}" for name in self._settings)
        return f"{type(self).__name__}({settings}, voxels={self.voxels})"
