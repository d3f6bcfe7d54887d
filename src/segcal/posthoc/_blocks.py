"""Held-out cases as small blocks of log-probabilities (or logits) in float64.

Every calibrator reads its voxels here, so all of them accept the same inputs and reject the same
mistakes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import Array, check_array, to_numpy
from segcal.core.blocks import BLOCK_VALUES, Block, iter_blocks, take_block
from segcal.core.checks import per_axis
from segcal.core.probabilities import hint_out_of_range

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Space: TypeAlias = Literal["log_probs", "logits"]
Spacing: TypeAlias = float | Sequence[float]
# Predicted labels (*S) and the voxel size of each axis -> further values of each voxel, (F, *S).
FeatureMap: TypeAlias = Callable[[npt.NDArray[Any], tuple[float, ...]], Floats]

# Smaller probabilities count as this: what the metrics clip at, and for half precision the smallest
# positive number it has.
CLIP = 1e-12
CLIP_HALF = 2.0**-24
_SUM_TOLERANCE = 1e-2
_RANGE_TOLERANCE = 1e-6


@dataclass
class HeldOut:
    """One case that the network did not see in training.

    `logits` (K, *S) are logits, or probabilities where `from_probs` is given; `target` (*S) holds
    integer labels; `mask` (*S) is True in the voxels to fit on, None means all. `spacing_mm` is the
    voxel size, for calibrators that use distances.
    """

    logits: Array
    target: Array
    mask: Array | None = None
    spacing_mm: Spacing | None = None


class BlockReader:
    """Checks blocks (K, n) of a network's output and converts them to float64 rows.

    Args:
        from_probs: the arrays hold probabilities.
        space: what the rows are: log-probabilities, or raw logits.
        ignore_index: label of voxels to skip.
        features: computes further values of each voxel, which follow its K rows.
    """

    def __init__(
        self,
        *,
        from_probs: bool = False,
        space: Space = "log_probs",
        ignore_index: int = -100,
        features: FeatureMap | None = None,
    ) -> None:
        self.from_probs, self.space, self.ignore_index = from_probs, space, ignore_index
        self.features = features
        self.num_classes: int | None = None  # of the cases read so far
        self._looks_like_probs: bool | None = None  # None: no voxels read yet

    def read(self, case: object) -> Iterator[tuple[npt.NDArray[Any], Ints, Floats | None]]:
        """Checked blocks (K, n), labels (n,) and features (F, n) of the voxels that count."""
        logits, target, mask, spacing_mm = self._check_case(case)
        self.num_classes = int(logits.shape[0])
        features = self.features_of(logits, spacing_mm)
        for where in _blocks_of(logits):
            labels = take_block(target, where, target.ndim)
            keep = labels != self.ignore_index
            if mask is not None:
                keep &= take_block(mask, where, target.ndim)
            if not keep.any():
                continue
            block = take_block(logits, where, target.ndim)
            extra = None if features is None else take_block(features, where, target.ndim)
            if not keep.all():
                block, labels = block[:, keep], labels[keep]
                extra = None if extra is None else extra[:, keep]
            _check_labels(labels, self.num_classes)
            self.check(block)
            yield block, labels.astype(np.int64, copy=False), extra

    def features_of(self, logits: npt.NDArray[Any], spacing_mm: Spacing | None) -> Floats | None:
        """(F, *S) of a whole case (K, *S)."""
        if self.features is None:
            return None
        if spacing_mm is None:
            raise ValueError(
                "Expected argument `spacing_mm` to be the voxel size, which this method needs, "
                "but got None."
            )
        return self.features(logits.argmax(0), per_axis("spacing_mm", spacing_mm, logits.ndim - 1))

    def check(self, block: npt.NDArray[Any]) -> None:
        """Raise a ValueError if a block (K, n) does not hold what the caller declared."""
        if not block.size:
            return
        low, high = float(block.min()), float(block.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            what = "probabilities" if self.from_probs else "argument `logits`"
            raise ValueError(
                f"Expected {what} to be finite, but got values in [{low:g}, {high:g}]."
            )
        if not self.from_probs:
            if self._looks_like_probs is not False:
                sums_to_one = float(np.abs(block.sum(0, dtype=np.float64) - 1).max()) <= 1e-3
                self._looks_like_probs = low >= 0 and high <= 1 and sums_to_one
        elif self.space == "logits":
            raise ValueError(
                "Expected raw logits, which this method needs, but got probabilities. "
                "Use the method dirichlet, or give logits."
            )
        else:
            _check_probs(block, low, high)

    def rows(
        self, block: npt.NDArray[Any], extra: Floats | None = None, *, half: bool = False
    ) -> Floats:
        """A checked block (K, n) as float64 in this reader's space, and its features below it.

        `half`: the values come from a float16 array, whose zeros may be larger numbers.
        """
        values = block.astype(np.float64, order="C")  # faster sums over classes
        if self.from_probs:
            clip = CLIP_HALF if half or block.dtype.itemsize < 4 else CLIP
            np.log(np.maximum(values, clip, out=values), out=values)
        elif self.space == "log_probs":
            values = log_softmax(values)
        return values if extra is None else np.concatenate([values, extra])

    def finish(self) -> int:
        """K; a ValueError if no case was read, or all given logits looked like probabilities."""
        if self.num_classes is None:
            raise ValueError("Expected argument `cases` to hold a case or more, but got none.")
        if self._looks_like_probs:
            raise ValueError(
                "Expected argument `logits` to be logits, but all values are in [0, 1] and sum to "
                "1 over the classes, so they look like probabilities: use "
                "`from_probs=True` (on the command line: --probs instead of --logits)."
            )
        return self.num_classes

    def _check_case(
        self, case: object
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.bool_] | None, Spacing | None]:
        """(logits, target, mask) as numpy arrays whose shapes match, and the voxel size."""
        if isinstance(case, tuple) and 2 <= len(case) <= 3:
            case = HeldOut(*case)
        if not isinstance(case, HeldOut):
            raise TypeError(
                "Expected argument `cases` to hold HeldOut or tuples (logits, target[, mask]), "
                f"but got {type(case).__name__}."
            )
        check_array("logits", case.logits)
        check_array("target", case.target)
        logits, target = to_numpy(case.logits, widen_half=False), to_numpy(case.target)
        if logits.dtype.kind != "f" or target.dtype.kind not in "iu":
            raise TypeError(
                "Expected argument `logits` to be floating point and `target` to hold integer "
                f"labels, but got {logits.dtype} and {target.dtype}."
            )
        if logits.ndim < 2 or logits.shape[1:] != target.shape or logits.shape[0] < 2:
            raise ValueError(
                "Expected argument `logits` to have shape (K, *S) with two classes or more and "
                f"`target` shape (*S), but got {logits.shape} and {target.shape}."
            )
        if self.num_classes not in (None, logits.shape[0]):
            raise ValueError(
                f"Expected argument `logits` to have {self.num_classes} classes in every case, "
                f"but got shape {logits.shape}."
            )
        mask = None
        if case.mask is not None:
            check_array("mask", case.mask)
            mask = to_numpy(case.mask)
            if mask.dtype != np.bool_ or mask.shape != target.shape:
                raise ValueError(
                    f"Expected argument `mask` to be boolean of shape {target.shape}, "
                    f"but got {mask.dtype} of shape {mask.shape}."
                )
        return logits, target, mask, case.spacing_mm


def map_blocks(
    logits: npt.NDArray[Any],
    reader: BlockReader,
    function: Callable[[Floats, npt.NDArray[Any]], npt.NDArray[Any]],
    spacing_mm: Spacing | None = None,
) -> npt.NDArray[Any]:
    """Probabilities (K, *S): `function(rows, block)` of every block, in float32 or wider."""
    out = np.empty(logits.shape, np.promote_types(logits.dtype, np.float32))
    reader.num_classes = len(logits)
    features = reader.features_of(logits, spacing_mm)
    for where in _blocks_of(logits):
        block = to_numpy(take_block(logits, where, logits.ndim - 1))  # float16 is slow
        reader.check(block)
        index = (slice(None), *where)
        extra = None if features is None else take_block(features, where, logits.ndim - 1)
        rows = reader.rows(block, extra, half=logits.dtype.itemsize < 4)
        out[index] = function(rows, block).reshape(out[index].shape)
    reader.finish()
    return out


def _blocks_of(logits: npt.NDArray[Any]) -> Iterator[Block]:
    return iter_blocks(logits.shape[1:], max(BLOCK_VALUES // logits.shape[0], 1))


def log_softmax(values: Floats) -> Floats:
    """Over the first axis."""
    values = values - values.max(0)
    return np.asarray(values - np.log(np.exp(values).sum(0)))


def softmax(values: Floats) -> Floats:
    """Over the first axis."""
    e = np.asarray(values - values.max(0))
    np.exp(e, out=e)
    e /= e.sum(0)
    return e


def _check_probs(values: npt.NDArray[Any], low: float, high: float) -> None:
    if low < -_RANGE_TOLERANCE or high > 1 + _RANGE_TOLERANCE:
        logits = "They look like logits: use `from_probs=False` (on the command line: --logits)."
        raise ValueError(
            f"Expected probabilities in [0, 1], but got values in [{low:.4g}, {high:.4g}]. "
            f"{hint_out_of_range(values) or logits}"
        )
    error = float(np.abs(values.sum(0, dtype=np.float64) - 1).max())
    if error > _SUM_TOLERANCE:
        raise ValueError(
            "Expected probabilities that sum to 1 over the classes of every voxel, but a sum "
            f"differs from 1 by {error:.3g}. Is a class missing, or are they sigmoid outputs of "
            "overlapping regions (--heads)?"
        )


def _check_labels(target: npt.NDArray[Any], num_classes: int) -> None:
    if target.size and not (int(target.min()) >= 0 and int(target.max()) < num_classes):
        invalid = np.unique(target[(target < 0) | (target >= num_classes)])[:5].tolist()
        raise ValueError(
            f"Expected argument `target` to hold labels 0 to {num_classes - 1} (or the ignored "
            f"one), but got {', '.join(map(str, invalid))}."
        )
