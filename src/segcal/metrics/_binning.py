"""Counting for calibration: a chunk of voxels is turned into small additive tables.

numpy counts on the CPU (measured: its bincount on one core is faster than torch's on two), torch on
CUDA, where only the tables are copied from the device.

Bin b of M is (b/M, (b+1)/M]; the first bin also holds 0. The edges are b/M rounded to the dtype of
the probabilities (float32 or float64; half precision is widened to float32, which is exact). Values
are compared with the edges, so the number nearest to b/M is in bin b-1 in both dtypes and on every
device. Widening a float32 map to float64 can move values that lie exactly on an edge.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import Array, is_tensor, to_numpy
from segcal.metrics._chunks import Chunk

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Tables = dict[str, npt.NDArray[Any]]  # sums by name; the first axis is the group of voxels

# With this factor p·M is at least b for every p of at least fl(b/M), in float32 and in float64. It
# may also reach b slightly below the edge, which the comparison with the edge corrects.
_OVERSHOOT = 1 + 1e-6


def bin_edges(num_bins: int) -> Floats:
    """The M + 1 edges 0, 1/M, …, 1."""
    return np.arange(num_bins + 1, dtype=np.float64) / num_bins


def bin_index(probs: Array, num_bins: int) -> Array:
    """The bin of each probability, for a numpy array or a tensor of float32 or float64.

    int64 in torch, which indexes with int64 only; int32 in numpy, which is faster.
    """
    if is_tensor(probs):
        import torch

        lower = bin_edges(num_bins)[:-1]
        lower[0] = -1.0  # nothing is below the first bin
        edges = torch.as_tensor(lower, device=probs.device).to(probs.dtype)
        index = (probs * (num_bins * _OVERSHOOT)).long().clamp_(0, num_bins - 1)
        return index.sub_((probs <= edges.take(index)).long())
    scale = probs.dtype.type(num_bins * _OVERSHOOT)
    index = (probs * scale).astype(np.int32)
    np.minimum(index, num_bins - 1, out=index)
    # The lower edge is computed for each value: looking it up takes several times longer.
    edge = index.astype(probs.dtype)
    edge /= probs.dtype.type(num_bins)
    index -= probs <= edge
    return np.maximum(index, 0, out=index)  # nothing is below the first bin


def tally(chunk: Chunk, num_bins: int, groups: int = 1) -> Tables:
    """Tables of one chunk: (G, M) for the top label, and (G, K, M) per class."""
    probs, target = chunk.probs, chunk.target
    num_classes = probs.shape[0]
    each, top_shape = (groups, num_classes, num_bins), (groups, num_bins)
    confidence, label = chunk.top
    cell = bin_index(probs, num_bins)
    top = cell.take(chunk.index_of(label))
    cell = cell + (chunk.arange(num_classes) * num_bins)[:, None]
    if chunk.group is not None:
        cell += chunk.group * (num_classes * num_bins)
        top = top + chunk.group * num_bins
    if target.ndim == 1:
        # One bincount for correct and wrong voxels.
        hits = _count(2 * top + (label == target), (*top_shape, 2))
        top_count, accuracy = hits.sum(-1), hits[..., 1].astype(np.float64)
        frequency = _count(cell.take(chunk.target_index), each).astype(np.float64)
    else:
        top_count = _count(top, top_shape)
        accuracy = _total(top, target.take(chunk.index_of(label)), top_shape)
        frequency = _total(cell, target, each)
    return {
        "top_count": top_count,
        "top_confidence": _total(top, confidence, top_shape),
        "top_accuracy": accuracy,
        "class_count": _count(cell, each),
        "class_confidence": _total(cell, probs, each),
        "class_frequency": frequency,
    }


def add_tables(total: Tables, new: Tables) -> Tables:
    """The sum of two sets of tables; an empty dict is zero."""
    return {name: total.get(name, 0) + table for name, table in new.items()}


def _count(at: Array, shape: tuple[int, ...]) -> Ints:
    """How often each cell of a table of this shape occurs."""
    at, size = at.reshape(-1), math.prod(shape)
    counts = at.bincount(minlength=size) if is_tensor(at) else np.bincount(at, minlength=size)
    return to_numpy(counts).astype(np.int64, copy=False).reshape(shape)


def _total(at: Array, weights: Array, shape: tuple[int, ...]) -> Floats:
    """The sum of the weights of each cell."""
    at, weights, size = at.reshape(-1), weights.reshape(-1), math.prod(shape)
    if not is_tensor(at):
        return np.bincount(at, weights, size).astype(np.float64, copy=False).reshape(shape)
    import torch

    weights = weights.double()
    if torch.are_deterministic_algorithms_enabled():  # bincount with weights is not, on CUDA
        return to_numpy(weights.new_zeros(size).index_add_(0, at, weights)).reshape(shape)
    return to_numpy(at.bincount(weights, size)).reshape(shape)
