"""The .pkl file next to an nnU-Net .npz file: spacing, position and orientation of its voxels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel.orientations as ornt
import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError
from segcal.data import axis_codes, reorient
from segcal.predictions.restricted_pickle import REMEDY, read_restricted_pickle


@dataclass(frozen=True)
class NnunetGeometry:
    """The grid of an array (K, Z, Y, X) of nnU-Net.

    `affine` maps the voxel indices (x, y, z) of the *image file* to millimeters (None: unknown).
    `reoriented`: the array is in RAS order instead of the file's, as nnU-Net's readers
    NibabelIOWithReorient and SimpleITKIOWithReorient return it.
    """

    spacing_mm: tuple[float, float, float]
    affine: NDArray[np.float64] | None
    reoriented: bool


def read_geometry(path: Path, space: Sequence[int]) -> NnunetGeometry:
    """The grid of an array (K, *space) according to its .pkl file, or a PathError."""
    content = read_restricted_pickle(path)
    try:
        return _geometry(content, tuple(space))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        problem = f"is not a properties file of nnU-Net ({type(error).__name__}: {error})"
        raise PathError(path, problem, REMEDY) from error


def _geometry(content: Any, space: tuple[int, ...]) -> NnunetGeometry:
    spacing = [float(s) for s in content["spacing"]]
    spacing = [1.0] * (3 - len(spacing)) + spacing
    if len(spacing) != 3 or not np.isfinite(spacing).all() or min(spacing) <= 0:
        raise ValueError(f"invalid spacing {spacing}")
    z, y, x = spacing
    nibabel = content.get("nibabel_stuff")
    if nibabel is not None:
        affine = _finite(nibabel["original_affine"], (4, 4))
        if "reoriented_affine" in nibabel:
            return _reoriented(affine)
        return NnunetGeometry((z, y, x), affine, False)
    itk = content.get("sitk_stuff")
    if itk is None or len(itk["spacing"]) != 3:
        return NnunetGeometry((z, y, x), None, False)
    affine = np.eye(4)
    affine[:3, :3] = _finite(itk["direction"], (3, 3)) * _finite(itk["spacing"], (3,))
    affine[:3, 3] = _finite(itk["origin"], (3,))
    affine[:2] *= -1  # ITK uses LPS coordinates, NIfTI uses RAS
    codes = itk.get("original_orientation")
    if codes is None:
        return NnunetGeometry((z, y, x), affine, False)
    # `affine` is that of the image in RAS order, `codes` are the axis codes of the file. ITK's
    # three letters name the direction an axis points to, as nibabel's do.
    if len(space) != 3:
        raise ValueError(f"an orientation for an array of shape {space}")
    if axis_codes(affine) != "RAS":
        raise ValueError("a reoriented image that is not in RAS order")
    to_file = ornt.ornt_transform(ornt.axcodes2ornt("RAS"), ornt.axcodes2ornt(str(codes)))  # type: ignore[no-untyped-call]
    return _reoriented(affine @ ornt.inv_ornt_aff(to_file, space[::-1]))  # type: ignore[no-untyped-call]


def _finite(values: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64).reshape(shape)
    if not np.isfinite(array).all():
        raise ValueError("numbers that are not finite")
    return array


def _reoriented(affine: NDArray[np.float64]) -> NnunetGeometry:
    # nnU-Net stores the spacing of the reoriented image; the affine has that of the file.
    x, y, z = (float(s) for s in np.sqrt((affine[:3, :3] ** 2).sum(0)))
    return NnunetGeometry((z, y, x), affine, True)


def reorient_array(
    array: NDArray[Any], geometry: NnunetGeometry | None, *, to_file: bool
) -> NDArray[Any]:
    """(K, Z, Y, X) of nnU-Net in the axis order of the image file (as Z, Y, X), or back."""
    if geometry is None or not geometry.reoriented or geometry.affine is None:
        return array
    codes = axis_codes(geometry.affine)
    return reorient(array, "RAS", codes) if to_file else reorient(array, codes, "RAS")
