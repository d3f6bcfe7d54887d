"""The .pkl beside an nnU-Net .npz: where its voxels lie. Read without executing anything.

A pickle is a program. This reads only those that build plain values and numeric arrays.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.data import DataError

_MAX_BYTES = 256 * 2**20
_RERUN = "predict again with --save_probabilities, or delete the .pkl"


@dataclass(frozen=True)
class Placement:
    """Where an array (K, Z, Y, X) of nnU-Net lies.

    `affine` maps the voxel indices (x, y, z) of the *file* to millimetres (None: not said).
    `reoriented`: the array is in RAS order, not in the file's (nnU-Net's NibabelIOWithReorient).
    """

    spacing_mm: tuple[float, float, float]
    affine: NDArray[np.float64] | None
    reoriented: bool


def read_placement(path: Path) -> Placement:
    """What an nnU-Net .pkl says of the grid, or a DataError that names the file."""
    content = read_plain_pickle(path)
    try:
        return _placement(content)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(
            path, f"is not a properties file of nnU-Net ({type(error).__name__}: {error})", _RERUN
        ) from error


def _placement(content: Any) -> Placement:
    spacing = [float(s) for s in content["spacing"]]
    spacing = [1.0] * (3 - len(spacing)) + spacing
    if len(spacing) != 3 or not np.isfinite(spacing).all() or min(spacing) <= 0:
        raise ValueError(f"spacing {spacing}")
    z, y, x = spacing
    nibabel = content.get("nibabel_stuff")
    if nibabel is not None:
        affine = np.asarray(nibabel["original_affine"], dtype=np.float64).reshape(4, 4)
        reoriented = "reoriented_affine" in nibabel
        if reoriented:
            # The spacing is that of the turned image; the affine's is the file's.
            x, y, z = (float(s) for s in np.sqrt((affine[:3, :3] ** 2).sum(0)))
        return Placement((z, y, x), affine, reoriented)
    itk = content.get("sitk_stuff")
    if itk is None or len(itk["spacing"]) != 3:
        return Placement((z, y, x), None, False)
    direction = np.asarray(itk["direction"], dtype=np.float64).reshape(3, 3)
    affine = np.eye(4)
    affine[:3, :3] = direction * np.asarray(itk["spacing"], dtype=np.float64)
    affine[:3, 3] = np.asarray(itk["origin"], dtype=np.float64)
    affine[:2] *= -1  # ITK points left and back where NIfTI points right and front
    return Placement((z, y, x), affine, False)


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


def read_plain_pickle(path: Path) -> Any:
    """The value of a pickle made of plain containers, numbers, text and numeric arrays."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise DataError(path, "is too large for a properties file", _RERUN)
        data = path.read_bytes()
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", "check the path") from error
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except _NotPlainError as error:
        raise DataError(path, f"holds more than plain values ({error})", _RERUN) from error
    except Exception as error:
        # A damaged pickle may raise anything; all of it means the same to the user.
        raise DataError(path, f"is damaged ({type(error).__name__})", _RERUN) from error


class _NotPlainError(pickle.UnpicklingError):
    pass


def _numeric_dtype(*arguments: Any) -> np.dtype[Any]:
    made: np.dtype[Any] = np.dtype(*arguments)
    if made.kind not in "biufcSU":
        raise _NotPlainError(f"an array of {made}")
    return made


def _encode(text: Any, encoding: Any) -> bytes:
    """What old pickles call to make bytes."""
    if not isinstance(text, str) or encoding != "latin1":
        raise _NotPlainError("_codecs.encode")
    return text.encode("latin1")


def _allowed() -> dict[tuple[str, str], Any]:
    # numpy moved its core; files of both kinds are about. The three functions build arrays and
    # scalars of the dtype they are given, and that comes from here, too.
    array, number = np.zeros(1), np.float64(0)
    out: dict[tuple[str, str], Any] = {
        ("collections", "OrderedDict"): OrderedDict,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): _numeric_dtype,
        ("_codecs", "encode"): _encode,
    }
    for core in ("numpy.core", "numpy._core"):
        out[f"{core}.multiarray", "_reconstruct"] = array.__reduce__()[0]
        out[f"{core}.multiarray", "scalar"] = number.__reduce__()[0]
        out[f"{core}.numeric", "_frombuffer"] = array.__reduce_ex__(5)[0]
    return out


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _allowed()[module, name]
        except KeyError:
            raise _NotPlainError(f"{module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        raise _NotPlainError("a reference")
