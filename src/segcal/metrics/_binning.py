"""Counting for calibration: a chunk of voxels is turned into small additive tables.

There are two implementations of one rule: numpy for the CPU (measured: its bincount on one core is
faster than torch's on two), torch for CUDA, where only the tables are copied from the device.

Bin b of M is (b/M, (b+1)/M]; the first bin also holds 0. The edges are b/M rounded to the dtype of
the probabilities (float32 or float64; half precision is widened to float32, which is exact). Values
are compared with the edges, so the number nearest to b/M is in bin b-1 in both dtypes and on every
device. Widening a float32 map to float64 can move values that lie exactly on an edge.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import Array, is_tensor, to_numpy
from segcal.metrics._chunks import Chunk

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass
class BinTables:
    """Additive tables of G groups of voxels, K classes, M bins: (G, M) for the top label, and
    (G, K, M) per class."""

    top_count: Ints
    top_confidence: Floats
    top_accuracy: Floats
    class_count: Ints
    class_confidence: Floats
    class_frequency: Floats

    def __iadd__(self, other: "BinTables") -> "BinTables":
        for field in fields(self):
            total = getattr(self, field.name)
            total += getattr(other, field.name)
        return self


def empty_tables(groups: int, num_classes: int, num_bins: int) -> BinTables:
    """Tables without any voxel."""
    top, each = (groups, num_bins), (groups, num_classes, num_bins)
    return BinTables(
        np.zeros(top, np.int64), np.zeros(top), np.zeros(top),
        np.zeros(each, np.int64), np.zeros(each), np.zeros(each),
    )  # fmt: skip


def bin_edges(num_bins: int) -> Floats:
    """The M + 1 edges 0, 1/M, …, 1."""
    return np.arange(num_bins + 1, dtype=np.float64) / num_bins


# With this factor p·M is at least b for every p of at least fl(b/M), in float32 and in float64. It
# may also reach b slightly below the edge, which the comparison with the edge corrects.
_OVERSHOOT = 1 + 1e-6


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


def tally(chunk: Chunk, num_bins: int, groups: int = 1) -> BinTables:
    """Count one chunk."""
    return (
        _tally_torch(chunk, num_bins, groups)
        if is_tensor(chunk.probs)
        else _tally_numpy(chunk, num_bins, groups)
    )


def top_label(probs: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Largest probability and its class, (K, …) -> (…) each; ties go to the smaller class.

    One pass over each class. Up to 256 classes the label is a byte, which is several times faster.
    """
    confidence = probs[0].copy(order="K")
    small = np.uint8 if len(probs) <= 256 else np.int64
    label = np.zeros_like(confidence, dtype=small)
    for k in range(1, len(probs)):
        # k is larger than any label so far, so the maximum assigns k where p_k is larger.
        np.maximum(label, (probs[k] > confidence) * small(k), out=label)
        np.maximum(confidence, probs[k], out=confidence)
    return confidence, label


def top_of(chunk: Chunk) -> tuple[Array, Array]:
    """Confidence and label (int64) of each voxel; a known label is not computed again."""
    probs = chunk.probs
    if is_tensor(probs):
        label = probs.max(dim=0)[1] if chunk.label is None else chunk.label
        return probs.gather(0, label[None])[0], label
    if chunk.label is None:
        confidence, small = top_label(probs)
        return confidence, small.astype(np.int64)
    n = probs.shape[1]
    return probs.ravel().take(chunk.label * n + np.arange(n)), chunk.label


def _tally_numpy(chunk: Chunk, num_bins: int, groups: int) -> BinTables:
    probs, target = chunk.probs, chunk.target
    num_classes, n = probs.shape
    each, top_shape = (groups, num_classes, num_bins), (groups, num_bins)
    index = bin_index(probs, num_bins)
    confidence, label = top_of(chunk)
    place = label * n + np.arange(n)
    top = index.ravel().take(place).astype(np.int64)
    cell = index + (np.arange(num_classes) * num_bins)[:, None]
    if chunk.group is not None:
        cell += chunk.group * (num_classes * num_bins)
        top += chunk.group * num_bins
    flat = cell.ravel()

    def count(at: Ints, shape: tuple[int, ...]) -> Ints:
        return np.bincount(at, minlength=math.prod(shape)).astype(np.int64).reshape(shape)

    def total(at: Ints, weights: npt.NDArray[Any], shape: tuple[int, ...]) -> Floats:
        sums = np.bincount(at, weights=weights, minlength=math.prod(shape))
        return np.asarray(sums, dtype=np.float64).reshape(shape)

    if target.ndim == 1:
        # One bincount for correct and wrong voxels.
        hits = count(2 * top + (label == target), (*top_shape, 2))
        top_count, accuracy = hits.sum(-1), hits[..., 1].astype(np.float64)
        frequency = count(flat.take(chunk.target_index), each).astype(np.float64)
    else:
        top_count = count(top, top_shape)
        accuracy = total(top, target.ravel().take(place), top_shape)
        frequency = total(flat, target.ravel(), each)
    return BinTables(
        top_count=top_count,
        top_confidence=total(top, confidence, top_shape),
        top_accuracy=accuracy,
        class_count=count(flat, each),
        class_confidence=total(flat, probs.ravel(), each),
        class_frequency=frequency,
    )


def _tally_torch(chunk: Chunk, num_bins: int, groups: int) -> BinTables:
    import torch

    probs, target = chunk.probs, chunk.target
    num_classes = probs.shape[0]
    each, top_shape = (groups, num_classes, num_bins), (groups, num_bins)
    cell = bin_index(probs, num_bins)
    confidence, label = top_of(chunk)
    top = cell.gather(0, label[None])[0]
    cell += torch.arange(num_classes, device=probs.device)[:, None] * num_bins
    if chunk.group is not None:
        cell += chunk.group * (num_classes * num_bins)
        top += chunk.group * num_bins

    def count(at: Array, shape: tuple[int, ...]) -> Ints:
        counts = torch.bincount(at.reshape(-1), minlength=math.prod(shape))
        return to_numpy(counts).reshape(shape)

    def total(at: Array, weights: Array, shape: tuple[int, ...]) -> Floats:
        at, weights, size = at.reshape(-1), weights.reshape(-1).double(), math.prod(shape)
        if torch.are_deterministic_algorithms_enabled():  # bincount with weights is not, on CUDA
            sums = weights.new_zeros(size).index_add_(0, at, weights)
        else:
            sums = torch.bincount(at, weights=weights, minlength=size)
        return to_numpy(sums).reshape(shape)

    if target.ndim == 1:
        accuracy = count(top[label == target], top_shape).astype(np.float64)
        frequency = count(cell.gather(0, target[None]), each).astype(np.float64)
    else:
        accuracy = total(top, target.gather(0, label[None]), top_shape)
        frequency = total(cell, target, each)
    return BinTables(
        top_count=count(top, top_shape),
        top_confidence=total(top, confidence, top_shape),
        top_accuracy=accuracy,
        class_count=count(cell, each),
        class_confidence=total(cell, probs, each),
        class_frequency=frequency,
    )
