"""Checks of probabilities and targets."""

import math
import sys
import warnings
from typing import Any

import numpy as np

from segcal.core.arrays import Array, to_numpy
from segcal.core.probabilities import hint_out_of_range

# Rounding in interpolated maps exceeds [0, 1] by less than this; logits exceed it by more.
_RANGE_SLACK = 1e-6
# bfloat16 rounds each probability by up to 2^-9 of itself, hence their sum by as much. A map that
# was widened afterwards cannot be distinguished. Real mistakes differ from 1 by far more.
_SUM_SLACK = 1e-2
# Modules between a check and the caller that a warning names; functools holds cached properties.
_INTERNAL = ("segcal.metrics", "functools")
# Fewer voxels than this could all be uncertain by chance.
_SECOND_SOFTMAX_VOXELS = 1024


class Inspector:
    """Checks chunks, and stores the range of all probabilities for a check of the whole map."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.low, self.high, self.voxels = math.inf, -math.inf, 0
        self.warned = False

    def merge(self, other: "Inspector") -> None:
        """Include the range of `other`."""
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.voxels += other.voxels
        self.warned |= other.warned

    def check(self, probs: Array, target: Array) -> None:
        """Raise if a chunk is invalid: `probs` (K, n) and `target` (n,) or (K, n)."""
        low, high = float(probs.min()), float(probs.max())
        if not (low >= -_RANGE_SLACK and high <= 1 + _RANGE_SLACK):  # also true for NaN
            raise ValueError(_out_of_range(probs, low, high))
        off = float(abs(probs.sum(0) - 1).max())
        if off > _SUM_SLACK:
            raise ValueError(
                "Expected argument `probs` to sum to 1 over the classes of every voxel, but got "
                f"sums that differ from it by up to {off:.3g}. They are not normalized: sigmoid "
                "outputs of overlapping regions (use `evaluate_heads` (on the command line: "
                "--heads)), a softmax over another axis than the class axis, or missing classes."
            )
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.voxels += int(probs.shape[1])
        low, high = float(target.min()), float(target.max())
        if target.ndim == 1:
            if low < 0 or high >= self.num_classes:
                wrong = np.unique(to_numpy(target[(target < 0) | (target >= self.num_classes)]))
                raise ValueError(label_message("target", wrong, self.num_classes))
            return
        off = float(abs(target.sum(0) - 1).max())
        if not (low >= -_RANGE_SLACK and high <= 1 + _RANGE_SLACK and off <= _SUM_SLACK):
            raise ValueError(
                "Expected argument `target` to hold, where it is soft, values in [0, 1] that sum "
                f"to 1 over the classes, but got values in [{low:.4g}, {high:.4g}] and sums that "
                f"differ from 1 by up to {off:.3g}."
            )

    def warn_of_second_softmax(self) -> None:
        """Warn once if all probabilities are in the range of a softmax of probabilities.

        A very uncertain network could give such a map, so this is not an error.
        """
        if self.warned:
            return
        spread = math.e + self.num_classes - 1
        narrow = self.low >= 1 / spread - 1e-6 and self.high <= math.e / spread + 1e-6
        if self.num_classes > 1 and narrow and self.voxels >= _SECOND_SOFTMAX_VOXELS:
            self.warned = True
            warnings.warn(
                f"All {self.voxels} voxels have probabilities in [{self.low:.3f}, {self.high:.3f}]."
                " It looks like a second softmax: a softmax of probabilities over "
                f"{self.num_classes} classes stays in [{1 / spread:.3f}, {math.e / spread:.3f}]. "
                "Ignore this if the network really is this uncertain.",
                stacklevel=_caller_stacklevel(),
            )


def _caller_stacklevel() -> int:
    """The `stacklevel` of the first caller outside `segcal.metrics`."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(_INTERNAL):
        level, frame = level + 1, frame.f_back
    return level + 1


def label_message(name: str, values: "np.ndarray[Any, Any] | list[int]", num_classes: int) -> str:
    """The message for labels outside 0..K-1."""
    found = [int(value) for value in values]
    shown = ", ".join(map(str, found[:8])) + (", …" if len(found) > 8 else "")
    return (
        f"Expected argument `{name}` to hold labels in 0..{num_classes - 1} (or `ignore_index`), "
        f"but got {shown}."
    )


def _out_of_range(probs: Array, low: float, high: float) -> str:
    expected = "Expected argument `probs` to hold probabilities in [0, 1], but got "
    if math.isnan(low) or math.isnan(high):
        count = int((probs != probs).sum())
        return f"{expected}NaN at {count} of {int(np.prod(tuple(probs.shape)))} values."
    values = f"{expected}values in [{low:.4g}, {high:.4g}]. "
    logits = "It looks like logits: apply softmax over the class axis, once"
    return values + (hint_out_of_range(probs) or f"{logits} (on the command line: --logits).")
