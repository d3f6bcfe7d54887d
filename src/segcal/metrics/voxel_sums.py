"""Calibration and proper scores of the same voxels, from one pass over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from segcal.core.arrays import Array
from segcal.metrics._binning import Tables
from segcal.metrics._chunks import Chunk, iter_chunks
from segcal.metrics._validate import Inspector
from segcal.metrics.calibration import CalibrationBins
from segcal.metrics.scores import CLIP, ProperScores


@dataclass(frozen=True)
class VoxelStatistics:
    """`bins` for calibration errors and `scores` for Brier and NLL, of the same voxels.

    Both are additive, and so are these: `a + b`, `sum(many)`.
    """

    bins: CalibrationBins
    scores: ProperScores

    @classmethod
    def empty(cls, num_classes: int, num_bins: int = 15, clip: float = CLIP) -> VoxelStatistics:
        """Statistics of no voxels."""
        return cls(CalibrationBins(num_classes, num_bins), ProperScores(num_classes, clip))

    def add(self, tables: Tables, group: int = 0) -> None:
        """Add one group of the result of `tally`."""
        self.bins.add(tables, group)
        self.scores.add(tables, group)

    def tally(self, chunk: Chunk, groups: int = 1) -> Tables:
        """All sums of the voxels of a checked chunk, for each of their groups."""
        return self.bins.tally(chunk, groups) | self.scores.tally(chunk, groups)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """All sums as arrays; `from_state` is the inverse."""
        return self.bins.state() | self.scores.state()

    @classmethod
    def from_state(cls, state: Mapping[str, npt.ArrayLike]) -> VoxelStatistics:
        """Statistics from the result of `state`."""
        return cls(CalibrationBins.from_state(state), ProperScores.from_state(state))

    def __add__(self, other: VoxelStatistics) -> VoxelStatistics:
        if not isinstance(other, VoxelStatistics):
            return NotImplemented
        return VoxelStatistics(self.bins + other.bins, self.scores + other.scores)

    def __radd__(self, other: object) -> VoxelStatistics:
        """`sum(many)` starts from 0."""
        return self if other == 0 else NotImplemented


def voxel_statistics(
    probs: Array,
    target: Array,
    num_classes: int,
    mask: Array | None = None,
    *,
    num_bins: int = 15,
    clip: float = CLIP,
    ignore_index: int = -100,
    batched: bool | None = None,
) -> VoxelStatistics:
    """`CalibrationBins` and `ProperScores` of one volume or batch, which is read once.

    Arguments and errors as `CalibrationBins.update`.

    Example:
        >>> import numpy as np
        >>> found = voxel_statistics(np.array([[0.2], [0.8]]), np.array([1]), num_classes=2)
        >>> round(found.bins.ece(), 3), round(found.scores.nll(), 3)
        (0.2, 0.223)
    """
    found = VoxelStatistics.empty(num_classes, num_bins, clip)
    for chunk in iter_chunks(
        probs, target, num_classes, mask=mask, ignore_index=ignore_index, batched=batched,
        seen=Inspector(num_classes),
    ):  # fmt: skip
        found.add(found.tally(chunk))
    return found
