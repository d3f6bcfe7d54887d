"""Reading NIfTI files that may be broken or hostile, and writing results on their grid.

The header is checked before anything is allocated: its sizes must agree with that of the file.
Arrays are (C, Z, Y, X), the reverse of the axis order in the file.
"""

import gzip
import struct
import zlib
from pathlib import Path
from typing import IO, Any, NamedTuple

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError, read_errors
from segcal.core.files import atomic_path
from segcal.data.formats.header import (
    DAMAGED,
    MAX_RATIO,
    MAX_VOLUME_BYTES,
    Header,
    Opened,
    check_space,
)
from segcal.data.grid import Grid, Spacing

_MAX_SIDE = 8192
_MAX_HEADER_BYTES = 2**24
_NUMERIC_TYPES = {2, 4, 8, 16, 64, 256, 512, 768, 1024, 1280}
_COLOR_TYPES = {128, 2304}
_PORTABLE_TYPES = {
    "bool": np.uint8, "float16": np.float32, "int64": np.int32, "uint64": np.int32,
}  # fmt: skip
# Lower bits of xyzt_units: unknown (millimeters by convention), meter, millimeter, micrometer.
_UNITS = {0: 1.0, 1: 1e3, 2: 1.0, 3: 1e-3}


class _Stored(NamedTuple):
    """How the voxels are stored in the file."""

    dtype: np.dtype[Any]
    offset: int
    slope: float
    intercept: float


def open_nifti(path: Path) -> Opened:
    """The header, and the function that reads the values, scaled as the header says."""
    with _open(path) as stream:
        header, stored = _parse_header(path, stream)

    def load() -> NDArray[Any]:
        with _open(path) as stream:
            try:
                stream.seek(stored.offset)
                voxels: NDArray[Any] = np.empty(header.file_shape, stored.dtype, order="F")
                rest = memoryview(voxels.reshape(-1, order="A").view(np.uint8).data)
                while rest:  # in pieces: gzip copies what it reads at once
                    count = stream.readinto(rest[: 2**22])  # type: ignore[attr-defined]
                    if not count:
                        raise EOFError
                    rest = rest[count:]
                # gzip verifies its checksum at the end of the stream only.
                while isinstance(stream, gzip.GzipFile) and stream.read(2**20):
                    pass
            except (OSError, EOFError, zlib.error, ValueError) as error:
                raise PathError(path, "is truncated or damaged", DAMAGED) from error
        if (stored.slope, stored.intercept) != (1.0, 0.0):
            # Float32 represents 8- and 16-bit values exactly and needs half the memory.
            scaled: NDArray[Any] = voxels.astype(np.float32 if voxels.itemsize <= 2 else np.float64)
            voxels = scaled * stored.slope + stored.intercept
        return np.asarray(voxels).T

    return header, load


def write_nifti(path: Path | str, array: NDArray[np.generic], grid: Grid) -> None:
    """Write (Z, Y, X), or (K, Z, Y, X) as a 4-D file, on the original grid of a case.

    Types that some NIfTI readers do not support are converted: bool to uint8, 64-bit integers to
    int32, float16 to float32.
    """
    path = Path(path)
    if not path.name.endswith((".nii", ".nii.gz")):
        raise ValueError(f"Expected argument `path` to end in .nii or .nii.gz, but got {path}.")
    if array.shape[-3:] != grid.original_shape or array.ndim not in (3, 4):
        raise ValueError(
            f"Expected argument `array` to have the original shape {grid.original_shape}, "
            f"but got {array.shape}."
        )
    # NIfTI has the channels last; the reverse of (K, Z, Y, X) is (X, Y, Z, K).
    portable = array.astype(_PORTABLE_TYPES.get(array.dtype.name, array.dtype), copy=False)
    if portable.dtype == np.int32 and not np.array_equal(portable, array):
        raise ValueError("Expected argument `array` to fit 32-bit integers, but it does not.")
    image = nib.Nifti1Image(portable.T, np.array(grid.affine))  # type: ignore[no-untyped-call]
    image.header.set_xyzt_units("mm")  # type: ignore[no-untyped-call]
    # As in the source file, where the affine may be a placeholder.
    image.header["pixdim"][1:4] = grid.original_spacing_mm[::-1]
    with atomic_path(path) as partial:
        nib.save(image, partial)


def _open(path: Path) -> IO[bytes]:
    with read_errors(path):
        return gzip.open(path) if _is_gzip(path) else path.open("rb")  # type: ignore[return-value]


def _is_gzip(path: Path) -> bool:
    """By content: files are sometimes renamed from .nii.gz to .nii and back."""
    with path.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


def _parse_header(path: Path, stream: IO[bytes]) -> tuple[Header, _Stored]:
    try:
        data = stream.read(540)
    except (OSError, EOFError, zlib.error) as error:
        raise PathError(path, "is a truncated or damaged gzip file", DAMAGED) from error
    if len(data) < 352:
        raise PathError(path, "is not a NIfTI file (too short)", DAMAGED)
    sizes = struct.unpack("<i", data[:4]) + struct.unpack(">i", data[:4])
    raw: Any
    try:
        if 348 in sizes and data[344:347] in (b"n+1", b"n+2"):
            raw = nib.Nifti1Header(data[:348], check=False)  # type: ignore[no-untyped-call]
        elif 540 in sizes and data[4:7] in (b"n+1", b"n+2"):
            raw = nib.Nifti2Header(data[:540], check=False)  # type: ignore[no-untyped-call]
        else:
            problem = "is not a single-file NIfTI (.nii or .nii.gz)"
            raise PathError(path, problem, "convert it to NIfTI")
        return _check_header(path, raw)
    except PathError:
        raise
    except Exception as error:
        # Our own checks raise ValueError; nibabel raises many types on invalid values.
        reason = " ".join(str(error).split())
        raise PathError(path, f"has an invalid NIfTI header: {reason}", DAMAGED) from error


def _check_header(path: Path, raw: Any) -> tuple[Header, _Stored]:
    if int(raw["datatype"]) in _COLOR_TYPES:
        remedy = "save it with one number per voxel, or one file per color as channels"
        raise PathError(path, "is a color (RGB) image", remedy)
    if int(raw["datatype"]) not in _NUMERIC_TYPES:
        raise ValueError(f"unsupported datatype {int(raw['datatype'])}")
    dtype = np.dtype(raw.get_data_dtype())
    if int(raw["bitpix"]) != 8 * dtype.itemsize:
        raise ValueError(f"bitpix {int(raw['bitpix'])} for datatype {dtype}")
    shape = _file_shape(raw)
    minimum = 352 if int(raw["sizeof_hdr"]) == 348 else 544
    # Some writers use 0 for "right after the header".
    offset = float(raw["vox_offset"]) or minimum
    if not (np.isfinite(offset) and minimum <= offset <= _MAX_HEADER_BYTES):
        raise ValueError(f"vox_offset {offset:g}")
    # The header must not announce more voxels than the file can hold.
    needed = int(offset) + int(np.prod(shape, dtype=object)) * dtype.itemsize
    length = path.stat().st_size
    capacity = length * (MAX_RATIO if _is_gzip(path) else 1)
    if needed > min(capacity, MAX_VOLUME_BYTES):
        problem = f"announces {needed:,} bytes of voxels but has only {length:,} bytes"
        too_large = "the volume is too large or its header is damaged"
        raise PathError(path, problem, DAMAGED if needed <= MAX_VOLUME_BYTES else too_large)
    affine, spacing_mm, notes = _space(raw, shape)
    slope, intercept = raw.get_slope_inter()
    if slope is None:
        slope, intercept = 1.0, 0.0
    stored = _Stored(dtype, int(offset), slope, intercept)
    return Header(path, shape, affine, spacing_mm, notes), stored


def _file_shape(raw: Any) -> tuple[int, ...]:
    dims = [int(d) for d in raw["dim"]]
    if not 2 <= dims[0] <= 7:
        raise ValueError(f"{dims[0]} dimensions")
    shape = dims[1 : dims[0] + 1]
    if min(shape) < 1 or max(shape) > _MAX_SIDE:
        raise ValueError(f"dimensions {tuple(shape)}")
    while len(shape) > 3 and shape[-1] == 1:
        shape.pop()
    if len(shape) == 5 and shape[3] == 1:
        # A vector image has its channels in the fifth dimension.
        shape.pop(3)
    if len(shape) > 4:
        raise ValueError(f"{len(shape)} dimensions {tuple(shape)}")
    return tuple(shape)


def _space(raw: Any, shape: tuple[int, ...]) -> tuple[NDArray[np.float64], Spacing, dict[str, str]]:
    """Affine and spacing in millimeters, and notes. The spacing is pixdim; the affine must agree.

    One exception: an affine of unit steps without any offset, beside another pixdim, is a
    placeholder (ACDC is distributed like this), and pixdim is used.
    """
    notes: dict[str, str] = {}
    factor = _UNITS.get(int(raw["xyzt_units"]) % 8)
    if factor is None:
        raise ValueError(f"unknown units ({int(raw['xyzt_units'])})")
    affine = np.array(raw.get_best_affine(), dtype=np.float64)
    zooms = np.abs(np.array(raw["pixdim"][1:4], dtype=np.float64))
    placeholder = np.array_equal(np.abs(affine), np.eye(4))
    if len(shape) == 2 or (shape[2] == 1 and zooms[2] == 0):
        # A single slice may lack its thickness: that of the affine is taken, else 1.
        if not affine[:3, 2].any():
            normal = np.cross(affine[:3, 0], affine[:3, 1])
            length = float(np.linalg.norm(normal))
            affine[:3, 2] = normal / length if length else (0.0, 0.0, 1.0)
        zooms[2] = np.linalg.norm(affine[:3, 2])
        if len(shape) > 2:
            notes["thickness"] = f"not in the header, taken as {zooms[2]:g}"
    affine[:3] *= factor
    zooms *= factor
    if factor != 1.0:
        notes["units"] = f"{'meters' if factor > 1 else 'micrometers'}, converted to millimeters"
    columns = np.sqrt((affine[:3, :3] ** 2).sum(axis=0))
    check_space(affine, columns, zooms)
    if not np.allclose(zooms, columns, rtol=0.02):
        if not placeholder:
            both = f"pixdim {np.round(zooms, 4).tolist()}, affine {np.round(columns, 4).tolist()}"
            raise ValueError(f"two different spacings ({both})")
        notes["spacing"] = "from pixdim; the affine is a placeholder"
    x, y, z = (float(c) for c in zooms)
    return affine, (z, y, x), notes
