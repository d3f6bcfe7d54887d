"""Probabilities of one structure in one scan as a histogram, from which everything is computed.

Bins are fine near 0 and 1 and found by shifting the bits of a float32: 32 per factor of two of p
(or of 1 − p above 0.5). Each bin keeps the exact count and the exact sum of its voxels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SHIFT = 18  # keeps five bits of the mantissa
_FIRST = (103 << 5) - 1  # index of 2^-24, minus one: smaller probabilities are in bin 0
_HALF = (126 << 5) - _FIRST  # index of 0.5
BINS = 2 * (_HALF + 1)


def bin_index(probs: NDArray[Any]) -> NDArray[np.int32]:
    """The bin of each probability; larger probabilities have the same or a larger index."""
    probs = probs.astype(np.float32, copy=False)
    index: NDArray[np.int32] = np.minimum(probs, 1 - probs).view(np.int32)
    index >>= _SHIFT
    index -= _FIRST
    np.maximum(index, 0, out=index)
    np.subtract(BINS - 1, index, out=index, where=probs > 0.5)
    return index


def _lower_edges() -> Floats:
    """The smallest float32 of each bin."""
    index = np.arange(1, _HALF + 2, dtype=np.int32)
    starts = ((index + _FIRST) << _SHIFT).view(np.float32)
    above = np.nextafter(1 - starts[::-1], np.float32(2))
    return np.concatenate([[0.0], starts[:-1], above]).astype(np.float64)


EDGES = _lower_edges()


@dataclass(frozen=True)
class ProbHistogram:
    """Voxels of one structure, grouped by probability, in increasing order.

    Attributes:
        count: voxels of each group.
        prob: their mean probability.
        edge: the smallest probability that belongs to the group.
    """

    count: Floats
    prob: Floats
    edge: Floats

    @classmethod
    def of(cls, probs: NDArray[Any] | Self) -> Self:
        """The histogram of probabilities of any shape; a histogram as it is."""
        if isinstance(probs, cls):
            return probs
        flat = np.asarray(probs).reshape(-1)
        index = bin_index(flat)
        return cls.from_bins(np.bincount(index, minlength=BINS), np.bincount(index, flat, BINS))

    @classmethod
    def from_bins(cls, count: NDArray[Any], sums: NDArray[Any]) -> Self:
        """From the count and the sum of probabilities of each of the `BINS` bins."""
        used = np.flatnonzero(count)
        kept = count[used].astype(np.float64)
        return cls(kept, np.clip(sums[used] / kept, 0, 1), EDGES[used])

    @property
    def voxels(self) -> float:
        """Number of voxels."""
        return float(self.count.sum())

    @property
    def expected(self) -> float:
        """Expected number of voxels of the structure, Σp."""
        return float(self.count @ self.prob)
