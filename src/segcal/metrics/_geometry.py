"""Label maps in space: spacing, bounding boxes and distances in millimeters."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import Array, to_numpy
from segcal.core.boxes import Box, grow
from segcal.core.checks import check_number, per_axis

Mask = npt.NDArray[np.bool_]
LabelMap = npt.NDArray[Any]
# A mask is dilated by at most so many shifts; beyond, a distance transform is faster.
_MOST_SHIFTS = 1000


def check_labels(name: str, value: Array, shape: tuple[int, ...] | None = None) -> LabelMap:
    """An integer label map of one case, 1-D to 3-D, as numpy; `shape` is that of the target."""
    labels = to_numpy(value)
    if labels.dtype.kind not in "iu":
        raise TypeError(
            f"Expected argument `{name}` to hold integer labels, but got {labels.dtype}."
        )
    if not 1 <= labels.ndim <= 3:
        raise ValueError(
            f"Expected argument `{name}` to be the label map of one case, with 1 to 3 axes, "
            f"but got shape {labels.shape}."
        )
    if shape is not None and labels.shape != shape:
        raise ValueError(
            f"Expected argument `{name}` to have the shape of `target`, {shape}, "
            f"but got {labels.shape}."
        )
    return labels


def narrow(labels: LabelMap) -> LabelMap:
    """The labels as uint8 if all are in 0..255, so that later passes read less memory.

    The bitwise or of all labels, from one pass, shows whether they are.
    """
    if labels.itemsize == 1 or labels.size == 0:
        return labels
    bits = int(np.bitwise_or.reduce(labels, axis=None))
    return labels.astype(np.uint8) if 0 <= bits < 256 else labels


def check_spacing(spacing_mm: float | Sequence[float], axes: int) -> tuple[float, ...]:
    """The voxel size along each axis, every one above 0."""
    plain = spacing_mm.tolist() if hasattr(spacing_mm, "tolist") else spacing_mm  # numpy, torch
    values = per_axis("spacing_mm", plain, axes)
    return tuple(
        check_number(
            "spacing_mm", v.item() if isinstance(v, np.generic) else v, low=0, open_low=True
        )
        for v in values
    )


def bounding_box(mask: Mask) -> Box | None:
    """The smallest box that contains `mask`; None if it is empty."""
    box: list[slice] = []
    for axis in range(mask.ndim):
        # The range of each axis reduces what is read for the next.
        mask = mask[(slice(None),) * (axis - 1) + (box[-1],)] if box else mask
        others = tuple(a for a in range(mask.ndim) if a != axis)
        line = np.flatnonzero(mask.any(axis=others))
        if line.size == 0:
            return None
        box.append(slice(int(line[0]), int(line[-1]) + 1))
    return tuple(box)


def within_mm(mask: Mask, reach_mm: float, spacing_mm: Sequence[float]) -> Mask:
    """Voxels whose centre is at most `reach_mm` from the centre of a voxel of `mask`.

    Distances are in mm, so with thick slices the margin has fewer voxels across than along them.
    """
    out = np.zeros(mask.shape, dtype=bool)
    box = bounding_box(mask)
    if box is None:
        return out
    margin = [math.floor(reach_mm / s + 1e-9) for s in spacing_mm]
    box = grow(box, margin, mask.shape)
    inside = mask[box]
    if not any(margin) or inside.all():
        out[box] = inside
        return out
    # A voxel at exactly the limit counts, despite rounding.
    limit = (reach_mm * (1 + 1e-9)) ** 2
    if math.prod(2 * m + 1 for m in margin[:-1]) <= _MOST_SHIFTS:
        out[box] = _dilated(inside, margin, spacing_mm, limit)
    else:
        out[box] = _near_by_transform(inside, spacing_mm, limit)
    return out


def _dilated(inside: Mask, margin: list[int], spacing_mm: Sequence[float], limit: float) -> Mask:
    """The mask and all voxels at a squared distance of at most `limit`.

    The ellipsoid is a set of lines along the last axis: the mask is dilated along that axis by
    every length that occurs, and then shifted along the other axes. Measured (3 mm, 1 mm voxels):
    about ten times faster than a distance transform.
    """
    shifts: dict[int, list[tuple[int, ...]]] = {}  # length of the line -> shifts
    for shift in itertools.product(*(range(-m, m + 1) for m in margin[:-1])):
        square = sum((d * s) ** 2 for d, s in zip(shift, spacing_mm, strict=False))
        fits = [r for r in range(margin[-1] + 1) if square + (r * spacing_mm[-1]) ** 2 <= limit]
        if fits and all(abs(d) < n for d, n in zip(shift, inside.shape, strict=False)):
            shifts.setdefault(fits[-1], []).append(shift)
    line, out = inside.copy(), np.zeros_like(inside)
    for r in range(margin[-1] + 1):
        if r:
            line[..., r:] |= inside[..., :-r]
            line[..., :-r] |= inside[..., r:]
        for shift in shifts.get(r, ()):
            back = [-d for d in shift]
            out[_shifted(shift, inside.shape)] |= line[_shifted(back, inside.shape)]
    return out


def _shifted(shift: Sequence[int], shape: Sequence[int]) -> Box:
    """The voxels of an image that lie in it after a shift along its first axes."""
    return tuple(slice(max(d, 0), n + min(d, 0)) for d, n in zip(shift, shape, strict=False))


def _near_by_transform(inside: Mask, spacing_mm: Sequence[float], limit: float) -> Mask:
    """The same by a distance transform, for reaches of very many voxels."""
    from scipy.ndimage import distance_transform_edt

    # Indices of the nearest voxels only: distances from scipy take three times the memory.
    nearest = distance_transform_edt(
        ~inside, sampling=spacing_mm, return_distances=False, return_indices=True
    )
    grid = np.ogrid[tuple(slice(0, n) for n in inside.shape)]
    out = np.zeros_like(inside)
    for i, found in enumerate(np.moveaxis(nearest, 1, 0)):
        square = np.zeros(found.shape[1:])
        for axis, spacing in enumerate(spacing_mm):
            here = i if axis == 0 else grid[axis][0]
            square += ((found[axis] - here) * spacing) ** 2
        out[i] = square <= limit
    return out
