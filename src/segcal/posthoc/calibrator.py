"""What every calibrator can do: fit on held-out cases, transform, and say what it found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import check_array, is_tensor, to_numpy
from segcal.posthoc._blocks import (
    Array,
    Floats,
    ProbabilityWatch,
    check_block,
    cut,
    softmax,
    take,
    to_rows,
)

_UNFITTED = "Expected a fitted calibrator: call `fit`, or load one."


@dataclass
class FitReport:
    """What a fit saw and found. `nll_*` are means in nats over the voxels, weighted as asked.

    `voxels` counts all that the fit stands for, `used` those it computed with. `at_bound` says in
    words which parameters ended at their bound; `converged` is False if the search was cut off;
    `notes` say what else should be known.
    """

    cases: int
    voxels: int
    used: int
    nll_before: float
    nll_after: float
    iterations: int
    converged: bool
    balance: str = "none"
    from_probs: bool = False
    at_bound: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For the file."""
        return asdict(self)


class Gathered(Protocol):
    """Voxels, or patches, of cases that were read once; fits of subsets of the cases share it."""

    def __len__(self) -> int: ...

    def add(self, case: object) -> Any:
        """Read one case."""
        ...

    def of(self, cases: Sequence[int] | None = None, balance: str = "none") -> Any:
        """What a fit on these cases reads."""
        ...


class Calibrator(ABC):
    """A map from logits to calibrated probabilities, fitted on cases the network did not see.

    Attributes:
        method: its name in `CALIBRATORS` and in files.
        changes_labels: whether the largest probability may move to another class.
        space: `"log_probs"` (then logits and probabilities serve alike) or `"logits"`.
        num_classes: K, once fitted.
        report: what the fit saw and found, once fitted.
        about: anything else that the file should say, such as the region; plain JSON values.
    """

    method: ClassVar[str]
    changes_labels: ClassVar[bool]
    space: ClassVar[str] = "log_probs"

    def __init__(self) -> None:
        self.num_classes: int | None = None
        self.report: FitReport | None = None
        self.about: dict[str, Any] = {}

    # Fitting

    @abstractmethod
    def gather(
        self,
        *,
        from_probs: bool = False,
        max_voxels: int = 1_000_000,
        seed: int = 0,
        ignore_index: int = -100,
    ) -> Gathered:
        """An empty collection that reads cases (`add`) for `fit_gathered`."""

    @abstractmethod
    def fit_gathered(self, data: Any) -> Self:
        """Fit on `gather(...).of(cases, balance)`."""

    def fit(
        self,
        cases: Iterable[object],
        *,
        from_probs: bool = False,
        balance: str = "none",
        max_voxels: int | None = 1_000_000,
        seed: int = 0,
        ignore_index: int = -100,
    ) -> Self:
        """Fit on held-out cases by negative log-likelihood; returns itself.

        Args:
            cases: `HeldOut`, or tuples (logits (K, *S), target (*S)[, mask (*S)]); read once, one
                at a time. Voxels outside the mask, or with `ignore_index`, do not count.
            from_probs: the arrays hold probabilities; their logarithms are used.
            balance: `"none"` fits the frequencies as they are, so that probabilities over all
                voxels come out right; `"class"` weighs classes alike.
            max_voxels: size of the class-balanced sample that is kept; None keeps nothing and
                reads all cases anew in every pass (`cases` must allow that).
            seed: of the sample.
            ignore_index: label of voxels that do not count.
        """
        gathered = self.gather(
            from_probs=from_probs,
            max_voxels=self._all_voxels(max_voxels),
            seed=seed,
            ignore_index=ignore_index,
        )
        for case in cases:
            gathered.add(case)
        self.fit_gathered(gathered.of(None, balance))
        return self.note(balance, from_probs)

    def _all_voxels(self, max_voxels: int | None) -> int:
        if max_voxels is None:
            raise ValueError(
                f"Expected argument `max_voxels` to be an integer for {self.method}, but got None."
            )
        return max_voxels

    def note(self, balance: str, from_probs: bool) -> Self:
        """Write into the report how the voxels of `fit_gathered` were read."""
        if self.report is not None:
            self.report.balance, self.report.from_probs = balance, from_probs
        return self

    # Applying

    @abstractmethod
    def _scaled(self, rows: Floats) -> Floats:
        """Calibrated logits (K, n) of rows (K, n) in this calibrator's space."""

    def transform(
        self,
        logits: Array,
        *,
        from_probs: bool = False,
        image: Array | None = None,
        class_axis: int = 0,
    ) -> Array:
        """Calibrated probabilities, of the shape and kind (numpy or torch) of `logits`.

        Computed in float64, a block at a time; given in the dtype of `logits`, half precision as
        float32. Where `changes_labels` is False, the largest class stays the largest: rounding to
        the dtype cannot make a tie of it.

        Args:
            logits: (K, *S), or (B, K, *S) with `class_axis=1`.
            from_probs: `logits` holds probabilities.
            image: (C, *S), for `local` fitted with images only.
            class_axis: where the classes are.
        """
        if self.num_classes is None:
            raise ValueError(_UNFITTED)
        check_array("logits", logits)
        source = np.moveaxis(to_numpy(logits, widen_half=False), class_axis, 0)
        if source.dtype.kind != "f" or source.ndim < 2 or source.shape[0] != self.num_classes:
            raise ValueError(
                f"Expected argument `logits` to be floating point with {self.num_classes} classes "
                f"on axis {class_axis}, but got {source.dtype} of shape {tuple(logits.shape)}."
            )
        wide = np.promote_types(source.dtype, np.float32)
        out, watch = np.empty(source.shape, wide), ProbabilityWatch()
        for where, scaled in self._blocks(source, from_probs, image):
            with np.errstate(invalid="ignore"):
                probs = softmax(scaled).astype(wide)
            if not np.isfinite(probs).all():
                raise ValueError(
                    f"Expected finite probabilities, but {self.method} gives others: its "
                    "parameters are too large for these values."
                )
            here = take(source, where, True)
            if not from_probs:
                watch.see(here)
            if not self.changes_labels:
                keep_top(probs, here)
            index = (slice(None), *where)
            out[index] = probs.reshape(out[index].shape)
        watch.refuse()
        result = np.moveaxis(out, 0, class_axis)
        if is_tensor(logits):
            import torch

            return torch.from_numpy(np.ascontiguousarray(result)).to(logits.device)
        return result

    def _blocks(
        self, source: npt.NDArray[Any], from_probs: bool, image: Array | None
    ) -> Iterator[tuple[tuple[int | slice, ...], Floats]]:
        """Calibrated logits, block by block, and where each belongs."""
        for where in cut(source):
            block = take(source, where, True)
            check_block(block, from_probs=from_probs, space=self.space)
            rows = to_rows(block, from_probs=from_probs, space=self.space)
            with np.errstate(over="ignore", invalid="ignore"):  # `transform` looks at what came
                scaled = self._scaled(rows)
            yield where, scaled

    # Files

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """The arguments that make another like this one, unfitted."""

    @abstractmethod
    def params(self) -> dict[str, Any]:
        """What the fit found, as plain JSON values."""

    @abstractmethod
    def set_params(self, num_classes: int, params: dict[str, Any]) -> None:
        """Take what `params` gave; raises ValueError if it does not fit."""

    def save(self, path: Path | str) -> None:
        """Write a file that `load_calibrator` reads, whole or not at all."""
        from segcal.posthoc.files import save_calibrator

        save_calibrator(self, Path(path))

    def check_fitted(self) -> int:
        """K, or a ValueError if this was not fitted."""
        if self.num_classes is None:
            raise ValueError(_UNFITTED)
        return self.num_classes

    def __repr__(self) -> str:
        state = "unfitted" if self.num_classes is None else str(self.params())
        return f"{type(self).__name__}({state})"


def keep_top(probs: npt.NDArray[Any], source: npt.NDArray[Any]) -> None:
    """Where rounding moved the largest class of `probs` (K, n) off that of `source`, put it back.

    By the smallest step that the dtype has. Both are read with ties going to the smaller class.
    """
    before, after = source.argmax(0), probs.argmax(0)
    moved = np.flatnonzero(before != after)
    if len(moved):
        top = probs[after[moved], moved]
        probs[before[moved], moved] = np.nextafter(top, np.asarray(2, probs.dtype))


def to_probs(logits: npt.NDArray[Any], *, from_probs: bool = False) -> npt.NDArray[Any]:
    """What a network says as it is, (K, *S): its probabilities, or the softmax of its logits.

    Computed in float64, a block at a time; half precision comes out as float32. Probabilities that
    were given as logits are refused.
    """
    if from_probs:
        return logits
    watch = ProbabilityWatch()
    out = np.empty(logits.shape, np.promote_types(logits.dtype, np.float32))
    for where in cut(logits):
        block = take(logits, where, True)
        check_block(block, from_probs=False, space="log_probs")
        watch.see(block)
        index = (slice(None), *where)
        out[index] = softmax(block.astype(np.float64)).reshape(out[index].shape)
    watch.refuse()
    return out
