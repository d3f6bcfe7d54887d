"""The .pkl beside an nnU-Net .npz: where its voxels lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError
from segcal.predictions.plain_pickle import read_plain_pickle

_RERUN = "predict again with --save_probabilities, or delete the .pkl"


@dataclass(frozen=True)
class Placement:
    """Where an array (K, Z, Y, X) of nnU-Net lies.

    `affine` maps the voxel indices (x, y, z) of the *file* to millimetres (None: not said).
    `reoriented`: the array is in RAS order, not in the file's (nnU-Net's NibabelIOWithReorient and
    SimpleITKIOWithReorient).
    """

    spacing_mm: tuple[float, float, float]
    affine: NDArray[np.float64] | None
    reoriented: bool


def read_placement(path: Path, space: Sequence[int]) -> Placement:
    """What an nnU-Net .pkl says of the grid of an array (K, *space), or a PathError."""
    content = read_plain_pickle(path)
    try:
        return _placement(content, tuple(space))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise PathError(
            path, f"is not a properties file of nnU-Net ({type(error).__name__}: {error})", _RERUN
        ) from error


def _placement(content: Any, space: tuple[int, ...]) -> Placement:
    spacing = [float(s) for s in content["spacing"]]
    spacing = [1.0] * (3 - len(spacing)) + spacing
    if len(spacing) != 3 or not np.isfinite(spacing).all() or min(spacing) <= 0:
        raise ValueError(f"spacing {spacing}")
    z, y, x = spacing
    nibabel = content.get("nibabel_stuff")
    if nibabel is not None:
        affine = _finite(nibabel["original_affine"], (4, 4))
        if "reoriented_affine" in nibabel:
            return _turned(affine)
        return Placement((z, y, x), affine, False)
    itk = content.get("sitk_stuff")
    if itk is None or len(itk["spacing"]) != 3:
        return Placement((z, y, x), None, False)
    affine = np.eye(4)
    affine[:3, :3] = _finite(itk["direction"], (3, 3)) * _finite(itk["spacing"], (3,))
    affine[:3, 3] = _finite(itk["origin"], (3,))
    affine[:2] *= -1  # ITK points left and back where NIfTI points right and front
    before = itk.get("original_orientation")
    if before is None:
        return Placement((z, y, x), affine, False)
    return _turned(_affine_before(affine, str(before), space))


def _finite(values: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64).reshape(shape)
    if not np.isfinite(array).all():
        raise ValueError("numbers that are not finite")
    return array


def _turned(affine: NDArray[np.float64]) -> Placement:
    # The spacing that nnU-Net keeps is that of the turned image; the affine's is the file's.
    x, y, z = (float(s) for s in np.sqrt((affine[:3, :3] ** 2).sum(0)))
    return Placement((z, y, x), affine, True)


def _affine_before(
    affine: NDArray[np.float64], codes: str, space: tuple[int, ...]
) -> NDArray[np.float64]:
    """The file's affine, from that of its image turned to RAS and where its axes had pointed.

    ITK's three letters say where an axis leads, as nibabel's do.
    """
    import nibabel.orientations as turns

    if len(space) != 3:
        raise ValueError(f"an orientation for an array of shape {space}")
    ras = turns.axcodes2ornt("RAS")  # type: ignore[no-untyped-call]
    now = turns.io_orientation(affine)  # type: ignore[no-untyped-call]
    if not np.array_equal(now, ras):
        raise ValueError("a turned image that is not in RAS order")
    file = turns.axcodes2ornt(codes)  # type: ignore[no-untyped-call]
    back = turns.ornt_transform(ras, file)  # type: ignore[no-untyped-call]
    moved = turns.inv_ornt_aff(back, space[::-1])  # type: ignore[no-untyped-call]
    return np.asarray(affine @ moved, dtype=np.float64)


def to_file_order(array: NDArray[Any], placement: Placement) -> NDArray[Any]:
    """(K, Z, Y, X) of nnU-Net in the axis order of the file, reversed as everywhere."""
    return _turn(array, placement, back=False)


def from_file_order(array: NDArray[Any], placement: Placement) -> NDArray[Any]:
    """The inverse of `to_file_order`."""
    return _turn(array, placement, back=True)


def _turn(array: NDArray[Any], placement: Placement, back: bool) -> NDArray[Any]:
    if not placement.reoriented or placement.affine is None:
        return array
    import nibabel.orientations as turns

    file = turns.io_orientation(placement.affine)  # type: ignore[no-untyped-call]
    ras = turns.axcodes2ornt("RAS")  # type: ignore[no-untyped-call]
    change = turns.ornt_transform(*((file, ras) if back else (ras, file)))  # type: ignore[no-untyped-call]
    turned = turns.apply_orientation(array.transpose(3, 2, 1, 0), change)  # type: ignore[no-untyped-call]
    return np.asarray(turned).transpose(3, 2, 1, 0)
