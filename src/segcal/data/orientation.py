"""Where the axes of a file point, and reorienting volumes without interpolation (nibabel)."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from nibabel.orientations import (
    aff2axcodes,
    apply_orientation,
    axcodes2ornt,
    inv_ornt_aff,
    ornt_transform,
)
from numpy.typing import NDArray

from segcal.data.formats import Header
from segcal.data.grid import Grid, GridRecipe, plan_grid

UNKNOWN = "unknown"


def training_space(grids: Iterable[Grid]) -> dict[str, Any]:
    """The orientations and the range of spacing of these cases, as in `run.json`."""
    known = list(grids)
    spacing = np.array([grid.spacing_mm for grid in known])
    pairs = zip(spacing.min(0).tolist(), spacing.max(0).tolist(), strict=True)
    counts = Counter(grid_orientation(grid) for grid in known)
    return {"orientations": dict(counts.most_common()), "spacing_mm": tuple(pairs)}


def axis_codes(affine: Any) -> str:
    """Where the axes (x, y, z) of a file with this affine point.

    Example:
        >>> axis_codes(np.diag([-2.0, -2.0, 5.0, 1.0]))
        'LPS'
    """
    return "".join(aff2axcodes(np.asarray(affine)))  # type: ignore[no-untyped-call]


def grid_orientation(grid: Grid) -> str:
    """Axis codes of a case's source file; "unknown" if its affine is a placeholder.

    The steps of a placeholder differ from the spacing in pixdim. ACDC is distributed with such
    files; their affines say nothing about the patient.
    """
    steps = np.sqrt((np.array(grid.affine)[:3, :3] ** 2).sum(axis=0))
    if not np.allclose(steps, grid.original_spacing_mm[::-1], rtol=0.02):
        return UNKNOWN
    return axis_codes(grid.affine)


def reorient(array: NDArray[Any], codes: str, target: str) -> NDArray[Any]:
    """Flip and permute (…, Z, Y, X) of a file with axis codes `codes` so that it has `target`.

    The result is contiguous. `reorient(result, target, codes)` undoes it exactly.
    """
    # nibabel counts the axes (x, y, z, …), the reverse of ours.
    turned = apply_orientation(array.T, _transform(codes, target))  # type: ignore[no-untyped-call]
    return np.ascontiguousarray(turned.T)


def turn_labels(
    labels: NDArray[np.integer], header: Header, reference: Header
) -> tuple[NDArray[np.integer], Header]:
    """Flip and permute labels (Z, Y, X) to the axis codes of the image; no interpolation."""
    codes, target = axis_codes(header.affine), axis_codes(reference.affine)
    known = header.has_geometry and reference.has_geometry
    if codes == target or not known or "spacing" in header.notes | reference.notes:
        return labels, header
    grid = plan_grid(header.shape, header.spacing_mm, header.affine, GridRecipe())
    turned = turned_grid(grid, GridRecipe(), target)
    shape, affine = turned.original_shape[::-1], np.array(turned.affine)
    moved = replace(header, file_shape=shape, affine=affine, spacing_mm=turned.original_spacing_mm)
    return reorient(labels, codes, target), moved


def turned_grid(grid: Grid, recipe: GridRecipe, target: str | None) -> Grid:
    """The grid by `recipe` of a file's volume after `reorient` to the axis codes `target`.

    A file with a placeholder affine keeps its orientation, and so does every file without a target.
    """
    if target is None or UNKNOWN in (grid_orientation(grid), target):
        target = axis_codes(grid.affine)
    change = _transform(axis_codes(grid.affine), target)
    # Row i of `change` has the new position of the old axis i, both counted (x, y, z).
    order = [2 - int(old) for old in np.argsort(change[:, 0])[::-1]]
    z, y, x = (grid.original_shape[axis] for axis in order)
    dz, dy, dx = (grid.original_spacing_mm[axis] for axis in order)
    undo = inv_ornt_aff(change, grid.original_shape[::-1])  # type: ignore[no-untyped-call]
    return plan_grid((z, y, x), (dz, dy, dx), np.array(grid.affine) @ undo, recipe)


def _transform(codes: str, target: str) -> NDArray[np.float64]:
    change: NDArray[np.float64] = ornt_transform(axcodes2ornt(codes), axcodes2ornt(target))  # type: ignore[no-untyped-call]
    return change
