"""Resizing and center cropping in index space; `grid` keeps the affines consistent.

Voxel centers follow the half-voxel convention: output voxel i lies at input coordinate
(i + 1/2) · in/out − 1/2, so a volume keeps its extent in millimeters whatever its shape. When an
axis shrinks, the linear kernel of images widens with it, so that fine structure is averaged and
not aliased; labels are weighted by exact area.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

Float = NDArray[np.float32]
Labels = NDArray[np.uint8]

# Shares that differ by less are a tie: rounding errors must not decide.
_MARGIN = 1e-5


def linear_weights(n_in: int, n_out: int) -> Float:
    """The (n_out, n_in) matrix that resizes one axis; its rows sum to 1."""
    step = n_in / n_out
    center = (np.arange(n_out) + 0.5) * step - 0.5
    distance = np.abs(np.arange(n_in)[None, :] - center[:, None]) / max(step, 1.0)
    weights = np.clip(1.0 - distance, 0.0, None)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float32)


def area_weights(n_in: int, n_out: int) -> Float:
    """The (n_out, n_in) matrix of the fraction of each output voxel that each input voxel fills."""
    edges = np.linspace(0, n_in, n_out + 1)
    first = np.arange(n_in)
    overlap = np.minimum(edges[1:, None], first + 1) - np.maximum(edges[:-1, None], first)
    weights = np.clip(overlap, 0.0, None)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float32)


def resize_linear(array: NDArray[np.floating], shape: Sequence[int]) -> Float:
    """Resize the last len(shape) axes of `array`; the axes before them are channels."""
    return _resize(array, shape, linear_weights)


def resize_labels(labels: NDArray[np.integer], shape: Sequence[int]) -> Labels:
    """Give each output voxel the class that fills the largest share of it.

    The mask of each class is resized (linearly where an axis grows, by exact area where it
    shrinks) and the class with the largest share is taken. A tie goes to the class of the input
    voxel under the output voxel's center, so that edges move neither in nor out on average. A
    structure thinner than about half an output voxel can vanish. Classes are processed one at a
    time, so memory does not grow with their number.
    """
    if labels.shape == tuple(shape):
        return np.asarray(labels, dtype=np.uint8)
    under = [
        np.minimum(np.floor((np.arange(out) + 0.5) * have / out).astype(np.int64), have - 1)
        for have, out in zip(labels.shape, shape, strict=True)
    ]
    best = labels[np.ix_(*under)].astype(np.uint8)
    near, near_share = best.copy(), np.zeros(tuple(shape), dtype=np.float32)
    largest = np.zeros(tuple(shape), dtype=np.float32)
    for value in present(labels):
        share = _resize((labels == value).astype(np.float32), shape, _label_weights)
        here = near == value
        near_share[here] = share[here]
        wins = share > largest + _MARGIN
        best[wins] = value
        largest[wins] = share[wins]
    tied = near_share >= largest - _MARGIN
    best[tied] = near[tied]
    return best


def present(labels: NDArray[np.integer]) -> list[int]:
    """The labels that occur, in order. Small types are counted, which is faster than sorting."""
    if labels.dtype == np.uint8:
        return [int(v) for v in np.flatnonzero(np.bincount(labels.ravel(), minlength=256))]
    if labels.dtype.itemsize <= 2:
        low = int(labels.min())
        shifted = labels.ravel().astype(np.int32) - low
        return [int(v) + low for v in np.flatnonzero(np.bincount(shifted))]
    return [int(v) for v in np.unique(labels)]


def _label_weights(n_in: int, n_out: int) -> Float:
    return area_weights(n_in, n_out) if n_out < n_in else linear_weights(n_in, n_out)


def _resize(
    array: NDArray[np.floating], shape: Sequence[int], weights_of: Callable[[int, int], Float]
) -> Float:
    out = np.asarray(array, dtype=np.float32)
    first = out.ndim - len(shape)
    for axis, size in enumerate(shape, start=first):
        if out.shape[axis] != size:
            # Sparse: rows have few weights, and the result does not depend on BLAS threads.
            weights = csr_array(weights_of(out.shape[axis], size))
            front = np.moveaxis(out, axis, 0)
            resized = weights @ front.reshape(len(front), -1)
            out = np.moveaxis(resized.reshape(size, *front.shape[1:]), 0, axis)
    return np.ascontiguousarray(out)


def crop_or_pad(
    array: NDArray[np.generic], start: Sequence[int], shape: Sequence[int], fill: float
) -> NDArray[np.generic]:
    """Cut the box [start, start + shape) out of the last axes; outside the array it is `fill`."""
    axes = len(shape)
    lead = array.shape[: array.ndim - axes]
    size = array.shape[array.ndim - axes :]
    if size == tuple(shape) and not any(start):
        return array
    out = np.full((*lead, *shape), fill, dtype=array.dtype)
    source, target = [slice(None)] * len(lead), [slice(None)] * len(lead)
    for begin, length, available in zip(start, shape, size, strict=True):
        low, high = max(begin, 0), min(begin + length, available)
        source.append(slice(low, max(high, low)))
        target.append(slice(low - begin, max(high, low) - begin))
    out[tuple(target)] = array[tuple(source)]
    return out


def center_start(size: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """The first index of a centered box of `shape` in an array of `size`; negative: padding."""
    return tuple((have - want) // 2 for have, want in zip(size, shape, strict=True))
