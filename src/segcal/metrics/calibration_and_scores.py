"""Calibration and proper scores of the same voxels in one pass over them."""

from __future__ import annotations

from dataclasses import dataclass

from segcal.core.arrays import Array
from segcal.metrics._binning import empty_tables, tally
from segcal.metrics._chunks import iter_chunks
from segcal.metrics._validate import Inspector
from segcal.metrics.calibration import CalibrationBins
from segcal.metrics.scores import CLIP, ProperScores, score_groups


@dataclass(frozen=True)
class Measured:
    """What was counted: `bins` for ECE and its relatives, `scores` for Brier and NLL.

    Both are additive, and so are these: `a + b`, `sum(many)`.
    """

    bins: CalibrationBins
    scores: ProperScores

    def __add__(self, other: Measured) -> Measured:
        if not isinstance(other, Measured):
            return NotImplemented
        return Measured(self.bins + other.bins, self.scores + other.scores)

    def __radd__(self, other: object) -> Measured:
        """`sum(many)` starts from 0."""
        return self if other == 0 else NotImplemented


def measure(
    probs: Array,
    target: Array,
    num_classes: int,
    mask: Array | None = None,
    *,
    num_bins: int = 15,
    clip: float = CLIP,
    ignore_index: int = -100,
    batched: bool | None = None,
) -> Measured:
    """`CalibrationBins` and `ProperScores` of one volume or batch, reading it once.

    It gives what the two objects give by themselves, in less time. Arguments and errors as
    `CalibrationBins.update`.

    Example:
        >>> import numpy as np
        >>> both = measure(np.array([[0.2], [0.8]]), np.array([1]), num_classes=2)
        >>> round(both.bins.ece(), 3), round(both.scores.nll(), 3)
        (0.2, 0.223)
    """
    bins, scores = CalibrationBins(num_classes, num_bins), ProperScores(num_classes, clip)
    tables, seen = empty_tables(1, num_classes, num_bins), Inspector(num_classes)
    for chunk in iter_chunks(
        probs, target, num_classes,
        mask=mask, ignore_index=ignore_index, batched=batched, seen=seen,
    ):  # fmt: skip
        tables += tally(chunk, num_bins)
        scores.merge(score_groups(chunk, num_classes, 1, clip)[0])
    bins.merge(CalibrationBins.from_tables(tables, 0))
    if mask is None:
        seen.warn_of_second_softmax()
    return Measured(bins, scores)
