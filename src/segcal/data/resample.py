"""Resizing and centre cropping in index space; affines are carried along by `grid`.

Voxel centres follow the half-voxel convention: output voxel i sits at input coordinate
(i + 1/2) · in/out − 1/2, so a volume keeps its extent in millimetres whatever its shape, and
resizing back undoes the move exactly. When an axis shrinks, the linear kernel widens with it
(area averaging), so that fine structure is averaged rather than aliased.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

Float = NDArray[np.float32]
Labels = NDArray[np.uint8]


def linear_weights(n_in: int, n_out: int) -> Float:
    """The (n_out, n_in) matrix that resizes one axis; its rows sum to 1."""
    step = n_in / n_out
    centre = (np.arange(n_out) + 0.5) * step - 0.5
    distance = np.abs(np.arange(n_in)[None, :] - centre[:, None]) / max(step, 1.0)
    weights = np.clip(1.0 - distance, 0.0, None)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float32)


def resize_linear(array: NDArray[np.floating], shape: Sequence[int]) -> Float:
    """Resize the last len(shape) axes of `array`; the axes before them are channels."""
    out = np.asarray(array, dtype=np.float32)
    first = out.ndim - len(shape)
    for axis, size in enumerate(shape, start=first):
        if out.shape[axis] != size:
            # Sparse: a row has few weights, and the result does not depend on BLAS threads.
            weights = csr_array(linear_weights(out.shape[axis], size))
            front = np.moveaxis(out, axis, 0)
            resized = weights @ front.reshape(len(front), -1)
            out = np.moveaxis(resized.reshape(size, *front.shape[1:]), 0, axis)
    return np.ascontiguousarray(out)


def resize_labels(labels: NDArray[np.integer], shape: Sequence[int]) -> Labels:
    """Give each output voxel the class that fills the largest share of it.

    Each class's mask is resized linearly and the largest wins, ties going to the smaller label.
    Unlike nearest-neighbour picking, this neither shifts boundaries nor drops thin structures by
    chance. One class at a time, so memory does not grow with their number.
    """
    if labels.shape == tuple(shape):
        return np.asarray(labels, dtype=np.uint8)
    best = np.zeros(tuple(shape), dtype=np.uint8)
    largest = np.full(tuple(shape), -1.0, dtype=np.float32)
    for value in np.unique(labels):
        share = resize_linear((labels == value).astype(np.float32), shape)
        # Float rounding must not decide a tie: a later label needs a real margin.
        wins = share > largest + 1e-5
        best[wins] = value
        largest[wins] = share[wins]
    return best


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


def centre_start(size: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Where a centred box of `shape` begins in an array of `size`; negative means padding."""
    return tuple((have - want) // 2 for have, want in zip(size, shape, strict=True))
