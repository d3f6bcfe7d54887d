"""Regions in which calibration is measured: masks of voxels, computed from label maps.

Every region is `region(target, labels=…, spacing_mm=…, …) -> mask`: `target` is the truth, `labels`
the prediction. Voxels with `ignore_index` are in no region. Distances are between voxel centers, in
millimeters.

A calibrated model is sure to score 0 in `all`, and in `predicted` and `predicted_boundary`, which
are chosen by the prediction alone. The other regions are chosen by the truth: in them a calibrated
model need not score 0.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from segcal.core.arrays import Array
from segcal.core.boxes import grow
from segcal.core.checks import check_number
from segcal.metrics._geometry import (
    LabelMap,
    Mask,
    bounding_box,
    check_labels,
    check_spacing,
    within_mm,
)

Spacing = float | Sequence[float]


def _checked(target: Array, spacing_mm: Spacing) -> tuple[LabelMap, tuple[float, ...]]:
    truth = check_labels("target", target)
    return truth, check_spacing(spacing_mm, truth.ndim)


def _prediction(labels: Array | None, truth: LabelMap) -> LabelMap:
    if labels is None:
        raise ValueError("Expected argument `labels` to be the predicted label map, but got None.")
    return check_labels("labels", labels, truth.shape)


def predicted(
    target: Array,
    *,
    labels: Array | None = None,
    spacing_mm: Spacing = 1.0,
    ignore_index: int = -100,
) -> Mask:
    """Voxels whose predicted label is not 0: what the model calls a structure.

    It is chosen by the prediction, so a calibrated model scores 0. Missed structures are outside.
    """
    truth, _ = _checked(target, spacing_mm)
    return np.asarray((_prediction(labels, truth) != 0) & (truth != ignore_index))


def predicted_boundary(
    target: Array,
    *,
    labels: Array | None = None,
    spacing_mm: Spacing = 1.0,
    width_mm: float = 3.0,
    ignore_index: int = -100,
) -> Mask:
    """The band around predicted surfaces: as `boundary`, of the predicted labels.

    It is chosen by the prediction, so a calibrated model scores 0. Most uncertain voxels are here.
    """
    truth, spacing = _checked(target, spacing_mm)
    return _band(_prediction(labels, truth), truth != ignore_index, width_mm, spacing)


def all_voxels(
    target: Array,
    *,
    labels: Array | None = None,
    spacing_mm: Spacing = 1.0,
    ignore_index: int = -100,
) -> Mask:
    """Every voxel.

    Most voxels are easy background; small errors there can hide large ones on the structures.
    """
    truth, _ = _checked(target, spacing_mm)
    return np.asarray(truth != ignore_index)


def foreground(
    target: Array,
    *,
    labels: Array | None = None,
    spacing_mm: Spacing = 1.0,
    ignore_index: int = -100,
) -> Mask:
    """Voxels whose true label is not 0, the region of the NACL and SVLS papers.

    It is chosen by the truth. Of the voxels with 70 % probability for a structure, only those that
    belong to the structure are kept, so a perfectly calibrated model mostly looks under-confident.
    Use it to compare with those papers.
    """
    truth, _ = _checked(target, spacing_mm)
    return np.asarray((truth != 0) & (truth != ignore_index))


def union(
    target: Array,
    *,
    labels: Array | None = None,
    spacing_mm: Spacing = 1.0,
    dilate_mm: float = 5.0,
    ignore_index: int = -100,
) -> Mask:
    """Predicted or true foreground, and all voxels within `dilate_mm` of it.

    It contains misses, false positives and a margin of background, and excludes the easy
    background. It is partly chosen by the truth, so a calibrated model need not score 0: where the
    true structure is larger than expected, the region is larger too.
    """
    truth, spacing = _checked(target, spacing_mm)
    margin = check_number("dilate_mm", dilate_mm, low=0)
    valid = truth != ignore_index
    core = valid & ((truth != 0) | (_prediction(labels, truth) != 0))
    return np.asarray(within_mm(core, margin, spacing) & valid)


def boundary(
    target: Array,
    *,
    labels: Array | None = None,
    spacing_mm: Spacing = 1.0,
    width_mm: float = 3.0,
    ignore_index: int = -100,
) -> Mask:
    """The band around true surfaces: voxels with a voxel of another label within `width_mm`.

    The distance is to the nearest voxel center of another label. Surfaces between two structures
    count as well as those to the background, both sides of a surface are included, and the border
    of the image is not a surface. A width below the finest spacing gives an empty region.

    It is chosen by the truth, so a calibrated model need not score 0: for any probability map,
    about half of the voxels in the band belong to the structure.
    """
    truth, spacing = _checked(target, spacing_mm)
    return _band(truth, truth != ignore_index, width_mm, spacing)


def _band(labels: LabelMap, valid: Mask, width_mm: float, spacing: tuple[float, ...]) -> Mask:
    """Valid voxels with a valid voxel of another label within `width_mm`."""
    width = check_number("width_mm", width_mm, low=0, open_low=True)
    band = np.zeros(labels.shape, dtype=bool)
    box = bounding_box(valid & (labels != _most_common(labels, valid)))
    if box is None:
        return band
    # Outside this box there is only one label within `width`.
    box = grow(box, [int(width / s + 1e-9) for s in spacing], labels.shape)
    band[box] = _near_other_label(labels[box], valid[box], width, spacing)
    band &= valid
    return band


def _most_common(labels: LabelMap, valid: Mask) -> int:
    """The most common label of every fourth voxel along each axis; any label would be correct."""
    few = (slice(None, None, 4),) * labels.ndim
    values, counts = np.unique(labels[few][valid[few]], return_counts=True)
    return int(values[counts.argmax()]) if len(values) else 0


def _near_other_label(labels: Array, valid: Mask, width: float, spacing: tuple[float, ...]) -> Mask:
    """One dilation per label in the box of the label; all boxes come from one pass."""
    from scipy.ndimage import find_objects

    band = np.zeros(labels.shape, dtype=bool)
    planes = zip(labels, valid, strict=True)
    values = np.unique(np.concatenate([np.unique(plane[inside]) for plane, inside in planes]))
    small = np.min_scalar_type(len(values))
    number: Array = np.empty_like(labels, dtype=small)  # from 1; ignored voxels 0
    for i, plane in enumerate(labels):  # one plane at a time: positions take 8 bytes per voxel
        number[i] = np.searchsorted(values, plane) + 1
    number[~valid] = 0
    for i, own_box in enumerate(find_objects(number), start=1):
        box = grow(own_box, [int(width / s + 1e-9) for s in spacing], labels.shape)
        own = number[box] == i
        band[box] |= own & within_mm(valid[box] & ~own, width, spacing)
    return band


Region = Callable[..., Mask]

REGIONS: dict[str, Region] = {
    "predicted": predicted,
    "predicted_boundary": predicted_boundary,
    "foreground": foreground,
    "all": all_voxels,
    "union": union,
    "boundary": boundary,
}
# Where calibration is read unless a region is requested.
DEFAULT_REGION: Final = "all"
