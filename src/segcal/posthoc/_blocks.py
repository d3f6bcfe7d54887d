"""Held-out cases of any kind as small blocks of rows: log-probabilities (or logits) in float64.

Every calibrator reads its voxels here, so that all of them accept the same inputs and refuse the
same mistakes with the same words.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import check_array, to_numpy

Array: TypeAlias = Any  # numpy array or torch tensor: torch is not imported to say so
Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

# Values of one block; blocks of this size stay in a CPU's cache.
BLOCK_VALUES = 1 << 17
# The smallest probability that is told from 0: what metrics clip at, and for half precision the
# smallest number that it has.
CLIP = 1e-12
CLIP_HALF = 2.0**-24
_SUM_SLACK = 1e-2
_RANGE_SLACK = 1e-6


@dataclass
class HeldOut:
    """One case that the network did not see in training.

    `logits` (K, *S) are logits, or probabilities where the caller says so; `target` (*S) integer
    labels; `mask` (*S) bool the voxels to fit on, None all; `image` (C, *S) or (*S) is used by
    local temperature only.
    """

    logits: Array
    target: Array
    mask: Array | None = None
    image: Array | None = None


def as_held_out(case: object) -> HeldOut:
    """A HeldOut, or one made of a tuple (logits, target[, mask[, image]])."""
    if isinstance(case, HeldOut):
        return case
    if isinstance(case, tuple) and 2 <= len(case) <= 4:
        return HeldOut(*case)
    raise TypeError(
        "Expected argument `cases` to hold HeldOut or tuples (logits, target[, mask[, image]]), "
        f"but got {type(case).__name__}."
    )


def check_case(
    case: HeldOut, num_classes: int | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """(logits, target, mask) as numpy, of shapes that fit each other."""
    check_array("logits", case.logits)
    check_array("target", case.target)
    logits, target = to_numpy(case.logits, widen_half=False), to_numpy(case.target)
    if logits.dtype.kind != "f":
        raise TypeError(f"Expected argument `logits` to be floating point, but got {logits.dtype}.")
    if target.dtype.kind not in "iu":
        raise TypeError(
            f"Expected argument `target` to hold integer labels, but got {target.dtype}."
        )
    if logits.ndim < 2 or logits.shape[1:] != target.shape or logits.shape[0] < 2:
        raise ValueError(
            "Expected argument `logits` to have shape (K, *S) with two classes or more and "
            f"`target` shape (*S), but got {logits.shape} and {target.shape}."
        )
    if num_classes is not None and logits.shape[0] != num_classes:
        raise ValueError(
            f"Expected argument `logits` to have {num_classes} classes in every case, "
            f"but got shape {logits.shape}."
        )
    if case.mask is None:
        return logits, target, None
    check_array("mask", case.mask)
    mask = to_numpy(case.mask)
    if mask.dtype != np.bool_ or mask.shape != target.shape:
        raise ValueError(
            f"Expected argument `mask` to be boolean of shape {target.shape}, "
            f"but got {mask.dtype} of shape {mask.shape}."
        )
    return logits, target, mask


def cut(logits: npt.NDArray[Any]) -> Iterator[tuple[int | slice, ...]]:
    """Indices that split the space of (K, *S) into blocks of about BLOCK_VALUES values."""
    step = max(BLOCK_VALUES // logits.shape[0], 1)
    yield from _cuts(logits.shape[1:], step)


def _cuts(space: tuple[int, ...], step: int) -> Iterator[tuple[int | slice, ...]]:
    if not space:
        yield ()
        return
    row = max(math.prod(space[1:]), 1)
    if row > step:
        for i in range(space[0]):
            yield from ((i, *rest) for rest in _cuts(space[1:], step))
        return
    rows = max(step // row, 1)
    for start in range(0, space[0], rows):
        yield (slice(start, start + rows),)


def take(array: npt.NDArray[Any], where: tuple[int | slice, ...], classes: bool) -> Any:
    """The voxels of a block: (K, n) of an array with a class axis, else (n,)."""
    if classes:
        return array[(slice(None), *where)].reshape(array.shape[0], -1)
    return array[where].reshape(-1)


def check_block(block: npt.NDArray[Any], *, from_probs: bool, space: str) -> None:
    """Raise if a block (K, n) is not what the caller says it is."""
    if not block.size:
        return
    low, high = float(block.min()), float(block.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        what = "probabilities" if from_probs else "argument `logits`"
        raise ValueError(f"Expected {what} to be finite, but got values in [{low:g}, {high:g}].")
    if from_probs and space == "logits":
        raise ValueError(
            "Expected logits, since this method needs them raw, but got probabilities. "
            "Use the Dirichlet method."
        )
    if from_probs:
        _check_probs(block, low, high)


def to_rows(block: npt.NDArray[Any], *, from_probs: bool, space: str) -> Floats:
    """A checked block (K, n) as float64 in the space that a calibrator works in.

    `space` is `"log_probs"`, or `"logits"` for methods that need them raw.
    """
    values = block.astype(np.float64)
    if from_probs:
        clip = CLIP_HALF if block.dtype.itemsize < 4 else CLIP
        return np.asarray(np.log(np.maximum(values, clip)))
    return values if space == "logits" else log_softmax(values)


def log_softmax(values: Floats) -> Floats:
    """Over the first axis."""
    values = values - values.max(0)
    return np.asarray(values - np.log(np.exp(values).sum(0)))


def softmax(values: Floats) -> Floats:
    """Over the first axis."""
    e = np.exp(values - values.max(0))
    return np.asarray(e / e.sum(0))


def _check_probs(values: npt.NDArray[Any], low: float, high: float) -> None:
    if low < -_RANGE_SLACK or high > 1 + _RANGE_SLACK:
        raise ValueError(
            "Expected probabilities in [0, 1], but got values in "
            f"[{low:.4g}, {high:.4g}]. It looks like logits: give them as logits."
        )
    off = float(np.abs(values.sum(0, dtype=np.float64) - 1).max())
    if off > _SUM_SLACK:
        raise ValueError(
            "Expected probabilities that sum to 1 over the classes of every voxel, but got sums "
            f"that miss it by up to {off:.3g}: sigmoid outputs, or classes left out?"
        )


class ProbabilityWatch:
    """Notices logits that are probabilities: all in [0, 1] and all sums 1, over a whole fit."""

    def __init__(self) -> None:
        self.voxels, self.alike = 0, True

    def see(self, block: npt.NDArray[Any]) -> None:
        """Look at a block (K, n) that was given as logits."""
        if not self.alike or not block.size:
            return
        self.voxels += block.shape[1]
        total = block.astype(np.float64).sum(0)
        inside = float(block.min()) >= 0 and float(block.max()) <= 1
        self.alike = inside and float(np.abs(total - 1).max()) <= 1e-3

    def refuse(self) -> None:
        """Raise if everything seen were probabilities."""
        if self.voxels and self.alike:
            raise ValueError(
                "Expected argument `logits` to be logits, but all values are in [0, 1] and sum to "
                "1 over the classes. They look like probabilities: say so (`from_probs=True`, or "
                "--probs instead of --logits)."
            )


def check_labels(target: npt.NDArray[Any], num_classes: int) -> None:
    """Raise if a label (n,) is not in 0..K−1."""
    if target.size and not (int(target.min()) >= 0 and int(target.max()) < num_classes):
        wrong = np.unique(target[(target < 0) | (target >= num_classes)])[:5].tolist()
        raise ValueError(
            f"Expected argument `target` to hold labels 0 to {num_classes - 1} (or the ignored "
            f"one), but got {', '.join(map(str, wrong))}."
        )
