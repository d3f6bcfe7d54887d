"""The counting behind calibration: one chunk of voxels in, small additive tables out.

Two kernels, one rule. `numpy` serves the CPU (measured: its bincount on one core is faster and
steadier than torch's on two), `torch` serves CUDA, where only the tables leave the device.

The rule of the bins. Bin b of M is (b/M, (b+1)/M], the first one also holds 0. The edges are b/M
rounded to the dtype of the probabilities (float32 or float64; half precision is widened to float32,
which is exact), and
membership is decided by comparing with them, never by the rounding of a product: the number nearest
to b/M closes bin b-1 in either dtype and on every device. Widening a float32 map to float64
beforehand can therefore move values that lie exactly on an edge, and only those.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from segcal.metrics._arrays import Array, is_tensor, to_numpy
from segcal.metrics._voxels import Chunk

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass
class BinTables:
    """Additive tables: (G, K, M) per class, and per predicted class for the top label.

    G groups of voxels, K classes, M bins. `top_*[g, k, b]` is over the voxels whose first largest
    probability is class k's; the sum over k is the top-label table.
    """

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
    """Tables of nothing."""
    shape = (groups, num_classes, num_bins)
    return BinTables(
        np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape),
        np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape),
    )  # fmt: skip


def bin_edges(num_bins: int) -> Floats:
    """The M + 1 edges 0, 1/M, …, 1."""
    return np.arange(num_bins + 1, dtype=np.float64) / num_bins


# Makes p·M reach b for every p that is at least fl(b/M), in float32 as in float64; it may reach b
# too early, by far less than a bin, which the comparison with the edge then takes back.
_OVERSHOOT = 1 + 1e-6


def bin_index(probs: Array, num_bins: int) -> Array:
    """The bin of each probability, int64, for a numpy array or a tensor of float32 or float64."""
    lower = bin_edges(num_bins)[:-1]
    lower[0] = -1.0  # nothing is below the first bin
    if is_tensor(probs):
        import torch

        edges = torch.as_tensor(lower, device=probs.device).to(probs.dtype)
        index = (probs * (num_bins * _OVERSHOOT)).long().clamp_(0, num_bins - 1)
        return index.sub_((probs <= edges.take(index)).long())
    scale = probs.dtype.type(num_bins * _OVERSHOOT)
    index = (probs * scale).astype(np.int64)
    np.minimum(index, num_bins - 1, out=index)
    too_high = probs <= lower.astype(probs.dtype).take(index)
    np.subtract(index, 1, out=index, where=too_high)
    return index


def tally(chunk: Chunk, num_bins: int, groups: int = 1) -> BinTables:
    """Count one chunk."""
    return (
        _tally_torch(chunk, num_bins, groups)
        if is_tensor(chunk.probs)
        else _tally_numpy(chunk, num_bins, groups)
    )


def top_label(probs: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Ints]:
    """Largest probability and its class; ties go to the smaller class. One pass over each class."""
    confidence = probs[0].copy()
    small = np.uint8 if len(probs) <= 256 else np.int64  # bytes are several times faster here
    label = np.zeros(probs.shape[1], small)
    for k in range(1, len(probs)):
        # Where p_k is larger, k is larger than any label so far: a maximum is an assignment.
        np.maximum(label, (probs[k] > confidence) * small(k), out=label)
        np.maximum(confidence, probs[k], out=confidence)
    return confidence, label.astype(np.int64)


def _tally_numpy(chunk: Chunk, num_bins: int, groups: int) -> BinTables:
    probs, target = chunk.probs, chunk.target
    num_classes, n = probs.shape
    shape = (groups, num_classes, num_bins)
    size = groups * num_classes * num_bins
    cell = bin_index(probs, num_bins)
    cell += np.arange(num_classes)[:, None] * num_bins
    if chunk.group is not None:
        cell += chunk.group * (num_classes * num_bins)
    flat, voxel = cell.ravel(), np.arange(n)

    def count(index: Ints) -> Ints:
        return np.bincount(index, minlength=size).astype(np.int64).reshape(shape)

    def total(index: Ints, weights: npt.NDArray[Any]) -> Floats:
        sums: Floats = np.bincount(index, weights=weights, minlength=size).astype(np.float64)
        return sums.reshape(shape)

    confidence, label = top_label(probs)
    top = flat.take(label * n + voxel)
    if target.ndim == 1:
        accuracy = count(top[label == target]).astype(np.float64)
        frequency = count(flat.take(target * n + voxel)).astype(np.float64)
    else:
        accuracy = total(top, target.ravel().take(label * n + voxel))
        frequency = total(flat, target.ravel())
    return BinTables(
        top_count=count(top),
        top_confidence=total(top, confidence),
        top_accuracy=accuracy,
        class_count=count(flat),
        class_confidence=total(flat, probs.ravel()),
        class_frequency=frequency,
    )


def _tally_torch(chunk: Chunk, num_bins: int, groups: int) -> BinTables:
    import torch

    probs, target = chunk.probs, chunk.target
    num_classes = probs.shape[0]
    shape = (groups, num_classes, num_bins)
    size = groups * num_classes * num_bins
    cell = bin_index(probs, num_bins)
    cell += torch.arange(num_classes, device=probs.device)[:, None] * num_bins
    if chunk.group is not None:
        cell += chunk.group * (num_classes * num_bins)

    def count(index: Array) -> Ints:
        return to_numpy(torch.bincount(index.reshape(-1), minlength=size)).reshape(shape)

    def total(index: Array, weights: Array) -> Floats:
        index, weights = index.reshape(-1), weights.reshape(-1).double()
        if torch.are_deterministic_algorithms_enabled():  # bincount with weights is not, on CUDA
            sums = weights.new_zeros(size).index_add_(0, index, weights)
        else:
            sums = torch.bincount(index, weights=weights, minlength=size)
        return to_numpy(sums).reshape(shape)

    confidence, label = probs.max(dim=0)
    top = cell.gather(0, label[None])[0]
    if target.ndim == 1:
        accuracy = count(top[label == target]).astype(np.float64)
        frequency = count(cell.gather(0, target[None])).astype(np.float64)
    else:
        accuracy = total(top, target.gather(0, label[None]))
        frequency = total(cell, target)
    return BinTables(
        top_count=count(top),
        top_confidence=total(top, confidence),
        top_accuracy=accuracy,
        class_count=count(cell),
        class_confidence=total(cell, probs),
        class_frequency=frequency,
    )
