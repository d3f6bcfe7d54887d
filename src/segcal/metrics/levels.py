"""How often a model is right at what it states: top-label confidence by predicted class."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import is_tensor, to_numpy
from segcal.core.checks import check_int
from segcal.metrics._additive import AdditiveStatistics
from segcal.metrics._binning import Floats, Ints, Tables
from segcal.metrics._chunks import Chunk
from segcal.metrics._validate import Inspector

# Edges of the levels, which are right-closed; a reader thinks in these, not in 15 equal bins.
LEVELS: Final = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


class ConfidenceLevels(AdditiveStatistics):
    """Voxels, their confidence and their correct labels, by predicted class and stated level.

    The voxels of class k are those that the model calls k, so a calibrated model is right as often
    as it states in every row, and rows 1 to K-1 together are the region `predicted`. Additive like
    `CalibrationBins`: `merge`, `+`, `state`.

    Example:
        >>> import numpy as np
        >>> levels = ConfidenceLevels(num_classes=2)
        >>> _ = levels.update(np.array([[0.03, 0.02, 0.9], [0.97, 0.98, 0.1]]), np.array([1, 0, 0]))
        >>> levels.level_count[1].tolist(), levels.level_accuracy[1].tolist()
        ([0, 0, 0, 0, 0, 2, 0], [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0])
    """

    _settings = ("num_classes",)
    _sums = _stored = ("level_count", "level_confidence", "level_accuracy")

    def __init__(self, num_classes: int) -> None:
        self.num_classes = check_int("num_classes", num_classes, low=1)
        self._seen = Inspector(self.num_classes)
        shape = (self.num_classes, len(LEVELS) - 1)
        self.level_count: Ints = np.zeros(shape, np.int64)
        self.level_confidence: Floats = np.zeros(shape)
        self.level_accuracy: Floats = np.zeros(shape)

    @classmethod
    def _empty_for(cls, state: Mapping[str, npt.NDArray[Any]]) -> "ConfidenceLevels":
        return cls(len(state["level_count"]))

    @property
    def voxels(self) -> int:
        """Number of voxels counted."""
        return int(self.level_count.sum())

    def tally(self, chunk: Chunk, groups: int = 1) -> Tables:
        """The sums of the voxels of a checked chunk, as one group."""
        top, label = chunk.top
        if chunk.target.ndim == 1:
            right = label == chunk.target
        else:
            right = chunk.target.take(chunk.index_of(label))
        top, label, right = (to_numpy(x) if is_tensor(x) else x for x in (top, label, right))
        inner = np.array(LEVELS[1:-1], top.dtype)
        cell = label.astype(np.int64) * (len(LEVELS) - 1) + np.searchsorted(inner, top)
        shape = self.level_count.shape
        weights = {"level_count": None, "level_confidence": top, "level_accuracy": right}
        return {
            name: np.bincount(cell, weight, self.level_count.size).reshape(1, *shape)
            for name, weight in weights.items()
        }
