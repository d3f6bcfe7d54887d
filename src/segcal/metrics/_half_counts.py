"""Statistics of a map in half precision, which has few values: each is counted, then summed.

A probability is one of 15,361 numbers. How often each occurs determines all counts and sums, so
that bins, squares and logarithms are computed once per number instead of once per voxel. The
numbers are multiples of 2^-24: sums of integers are exact.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import to_numpy
from segcal.core.blocks import BLOCK_VALUES, iter_blocks, take_block
from segcal.metrics._binning import Ints, Tables, bin_index
from segcal.metrics._chunks import in_memory_order, permute
from segcal.metrics._validate import Inspector
from segcal.metrics.levels import LEVELS

# 0x3c00 are the bits of 1.0; rounding may exceed it a little.
_SIZE = 0x3C00 + 8
_VALUES = np.arange(_SIZE, dtype=np.uint16).view(np.float16).astype(np.float32)
_FIXED = (_VALUES.astype(np.float64) * 2**24).astype(np.int64)
_SLAB = 1 << 18  # voxels that are counted at once


@dataclass(frozen=True)
class HalfCounts:
    """How often each value occurs, by group (one of `codes`) and …

    Attributes:
        each: (G, K, values): the probability of each class.
        own: (G, K, values): the probability of the true class, by true class.
        top: (G, 2, values): the largest probability, by whether the label is right.
        levels: (K, 2, values): the same, by predicted class.
    """

    codes: tuple[int, ...]
    each: Ints
    own: Ints
    top: Ints
    levels: Ints

    def tables(self, num_bins: int, clip: float) -> Tables:
        """As `VoxelStatistics.tally`; the groups are those of `codes`."""
        index = bin_index(_VALUES, num_bins)
        values = _VALUES.astype(np.float64)
        squares, logs = values**2, np.log(np.clip(values, clip, 1.0))
        both = self.top.sum(1)
        parts = [
            _tables_of_classes(*pair, index, num_bins, squares)
            for pair in zip(self.each, self.own, strict=True)
        ]
        return {
            "top_count": _by_bin(both, index, num_bins),
            "top_confidence": _by_bin(both * _FIXED, index, num_bins) / 2**24,
            "top_accuracy": _by_bin(self.top[:, 1], index, num_bins).astype(np.float64),
            **{key: np.stack([part[key] for part in parts]) for key in parts[0]},
            "log_loss": -(self.own.sum(1) @ logs),
            "voxels": both.sum(-1),
        }

    def level_tables(self) -> Tables:
        """As `ConfidenceLevels.tally`."""
        index = np.searchsorted(np.array(LEVELS[1:-1], np.float32), _VALUES)
        both, size = self.levels.sum(1), len(LEVELS) - 1
        return {
            "level_count": _by_bin(both, index, size)[None],
            "level_confidence": _by_bin(both * _FIXED, index, size)[None] / 2**24,
            "level_accuracy": _by_bin(self.levels[:, 1], index, size)[None].astype(np.float64),
        }

    def by_confidence(self) -> tuple[npt.NDArray[Any], ...]:
        """Confidence, whether the label is right, code, and the number of such voxels; sorted."""
        value, group, correct = np.nonzero(self.top.transpose(2, 0, 1))
        codes = np.array(self.codes, np.uint8)[group]
        return _VALUES[value], correct == 1, codes, self.top[group, correct, value]


def count_half(
    probs: npt.NDArray[np.float16],
    target: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    codes: npt.NDArray[np.uint8],
    ignore_index: int,
) -> HalfCounts:
    """Check and count all voxels of a case (K, *S) that are not ignored, by their code."""
    k, order = len(probs), in_memory_order(probs)
    # In blocks, because bincount widens its argument to 8 bytes per voxel.
    blocks = (codes[cut].ravel() for cut in iter_blocks(codes.shape, _SLAB))
    present = np.flatnonzero(sum(np.bincount(block, minlength=256) for block in blocks))
    group_of = np.zeros(256, np.int64)
    group_of[present] = np.arange(len(present))
    g, seen = max(len(present), 1), Inspector(k)
    each = np.zeros((k, g * _SIZE), np.int64)
    own, top, levels = (np.zeros(rows * _SIZE, np.int64) for rows in (g * k, g * 2, k * 2))
    arrays = [permute(array, order) for array in (probs, target, labels, codes)]
    for cut in iter_blocks(arrays[0].shape[1:], _SLAB):
        values, truth, label, code = (take_block(array, cut, len(order)) for array in arrays)
        keep = truth != ignore_index
        if not keep.all():
            values, truth, label, code = values[:, keep], truth[keep], label[keep], code[keep]
        if not len(truth):
            continue
        truth, label = truth.astype(np.int64), label.astype(np.int64)
        bits = _checked_bits(values, truth, seen)
        group, at = group_of[code], np.arange(len(truth))
        base = group * _SIZE
        for c in range(k):
            each[c] += np.bincount(base + bits[c], minlength=g * _SIZE)
        flat, correct = bits.ravel(), label == truth
        mine, largest = flat[truth * len(at) + at], flat[label * len(at) + at]
        own += np.bincount((group * k + truth) * _SIZE + mine, minlength=len(own))
        top += np.bincount((group * 2 + correct) * _SIZE + largest, minlength=len(top))
        levels += np.bincount((label * 2 + correct) * _SIZE + largest, minlength=len(levels))
    seen.warn_of_second_softmax()
    return HalfCounts(
        tuple(present.tolist()),
        each.reshape(k, g, _SIZE).swapaxes(0, 1),
        own.reshape(g, k, _SIZE),
        top.reshape(g, 2, _SIZE),
        levels.reshape(k, 2, _SIZE),
    )


def _checked_bits(
    values: npt.NDArray[np.float16], truth: Ints, seen: Inspector
) -> npt.NDArray[np.uint16]:
    """The bits (K, n), which order probabilities as their values do."""
    step = max(BLOCK_VALUES // len(values), 1)
    for start in range(0, len(truth), step):
        here = slice(start, start + step)
        seen.check(to_numpy(values[:, here]), truth[here])
    bits = values.view(np.uint16)
    if bits.max() < _SIZE:
        return bits
    return np.maximum(values, np.float16(0)).view(np.uint16)  # -0.0, or rounding


def _tables_of_classes(
    each: Ints, own: Ints, index: Ints, num_bins: int, squares: npt.NDArray[np.float64]
) -> Tables:
    """The tables by class of one group; of all groups at once they would take 0.1 GB."""
    squared = each @ squares - 2 * (own * _FIXED / 2**24).sum(-1) + own.sum(-1)
    return {
        "class_count": _by_bin(each, index, num_bins),
        "class_confidence": _by_bin(each * _FIXED, index, num_bins) / 2**24,
        "class_frequency": _by_bin(own, index, num_bins).astype(np.float64),
        "squared_error": np.maximum(squared, 0.0),  # rounding may leave -1e-17
    }


def _by_bin(counts: Ints, index: npt.NDArray[Any], num_bins: int) -> Ints:
    """Sums over the values in each bin, (…, values) -> (…, M); `index` does not decrease."""
    sums = np.concatenate([np.zeros_like(counts[..., :1]), counts.cumsum(-1)], axis=-1)
    edges = np.searchsorted(index, np.arange(num_bins + 1))
    return np.asarray(np.diff(sums[..., edges], axis=-1))
