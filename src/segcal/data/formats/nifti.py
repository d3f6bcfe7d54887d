"""Reading NIfTI files that may be broken or hostile, and writing results on their grid.

The header is checked before anything is allocated: its sizes must agree with that of the file.
Arrays are (C, Z, Y, X), the reverse of the axis order in the file.
"""

import gzip
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import IO, Any

import nibabel as nib
import numpy as np
from nibabel.volumeutils import array_from_file
from numpy.typing import NDArray

from segcal.core.errors import PathError
from segcal.core.files import atomic_path
from segcal.data.grid import Grid, Shape, Spacing

MAX_VOLUME_BYTES = 16 * 2**30
_MAX_SIDE = 8192
_MAX_HEADER_BYTES = 2**24
# Deflate cannot expand data further; a header that needs more is wrong.
_MAX_GZIP_RATIO = 1040
_NUMERIC_TYPES = {2, 4, 8, 16, 64, 256, 512, 768, 1024, 1280}
_COLOR_TYPES = {128, 2304}
_PORTABLE_TYPES = {
    "bool": np.uint8, "float16": np.float32, "int64": np.int32, "uint64": np.int32,
}  # fmt: skip
_DAMAGED = "download or export the file again"
_ONE_GRID = "both must be on one grid; resample one to the other or correct the header"
# Lower bits of xyzt_units: unknown (millimeters by convention), meter, millimeter, micrometer.
_UNITS = {0: 1.0, 1: 1e3, 2: 1.0, 3: 1e-3}
# Tolerance for labels that were scaled or stored as float.
_INTEGER_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Header:
    """The checked content of a NIfTI header, in millimeters whatever the unit of the file.

    `notes` records decisions: a placeholder affine, another unit, a missing slice thickness.
    """

    path: Path
    file_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    slope: float
    intercept: float
    affine: NDArray[np.float64]
    spacing_mm: Spacing
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        """Spatial shape (Z, Y, X); a 2-D image has Z = 1."""
        x, y, z = (*self.file_shape, 1, 1)[:3]
        return z, y, x

    @property
    def channels(self) -> int:
        return self.file_shape[3] if len(self.file_shape) == 4 else 1


def read_header(path: Path) -> Header:
    """Read and check a header; reads no voxels."""
    with _open(path) as stream:
        return _parse_header(path, stream)


def read_voxels(path: Path) -> tuple[NDArray[Any], Header]:
    """The values of a NIfTI file, scaled as its header says, (C, Z, Y, X)."""
    with _open(path) as stream:
        header = _parse_header(path, stream)
        try:
            voxels: NDArray[Any] = array_from_file(
                header.file_shape, header.dtype, stream, header.offset, mmap=False  # type: ignore[arg-type]
            )  # fmt: skip
            # gzip verifies its checksum at the end of the stream only.
            while isinstance(stream, gzip.GzipFile) and stream.read(2**20):
                pass
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise PathError(path, "is truncated or damaged", _DAMAGED) from error
    if (header.slope, header.intercept) != (1.0, 0.0):
        # Float32 represents 8- and 16-bit values exactly and needs half the memory.
        scaled: NDArray[Any] = voxels.astype(np.float32 if voxels.itemsize <= 2 else np.float64)
        voxels = scaled * header.slope + header.intercept
    return np.asarray(voxels).T.reshape(header.channels, *header.shape), header


def read_image(path: Path) -> tuple[NDArray[np.floating], Header]:
    """An image as (C, Z, Y, X), finite and not constant in any channel.

    The type is float32, or float64 if the file has a type that float32 does not represent: with a
    mean of 1e8 and a standard deviation of 1, float32 would lose the variation.
    """
    voxels, header = read_voxels(path)
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(voxels, dtype=np.float32)
    invalid = single.size - np.count_nonzero(np.isfinite(single))
    if invalid:
        raise PathError(path, f"holds {invalid} NaN or infinite voxels", "repair or remove it")
    image: NDArray[np.floating] = single
    if voxels.dtype.itemsize > 2 and voxels.dtype != np.float32:
        image = np.ascontiguousarray(voxels, dtype=np.float64)
    for index, channel in enumerate(image):
        if channel.min() == channel.max():
            which = f"channel {index} is" if len(image) > 1 else "the image is"
            raise PathError(path, f"{which} constant ({channel.min():g})", "remove the case")
    return image, header


def read_channels(paths: Sequence[Path], channels: int) -> tuple[NDArray[np.floating], Header]:
    """The image (C, Z, Y, X) in one file, or in one file per channel on one grid."""
    parts = [read_image(path) for path in paths]
    check_channels([header for _, header in parts], channels)
    image = np.concatenate([part for part, _ in parts]) if len(parts) > 1 else parts[0][0]
    return image, parts[0][1]


def check_channels(headers: Sequence[Header], channels: int) -> None:
    """The files of a case must be on one grid and have `channels` channels together."""
    for other in headers[1:]:
        check_same_grid(other, headers[0])
    found = sum(header.channels for header in headers)
    if found != channels:
        problem = f"has {found} channels where the data set has {channels}"
        remedy = "all cases of a data set must have the same channels"
        raise PathError(headers[0].path, problem, remedy)


def read_labels(path: Path) -> tuple[NDArray[np.integer], Header]:
    """A label map (Z, Y, X) in the integer type of the file, or int32; whole numbers only."""
    voxels, header = read_voxels(path)
    if len(voxels) != 1:
        raise PathError(path, f"is a label map with {len(voxels)} channels", "give a 3-D label map")
    values = voxels[0]
    if not np.issubdtype(values.dtype, np.integer):
        if not np.isfinite(values).all() or np.abs(values).max() > 2**31:
            raise PathError(path, "holds NaN or huge labels", "labels must be whole numbers")
        rounded = np.rint(values)
        wrong = np.abs(values - rounded) > _INTEGER_TOLERANCE
        if wrong.any():
            example, remedy = repr(float(values[wrong].flat[0])), "resample labels with nearest"
            if (header.slope, header.intercept) != (1.0, 0.0):
                example += f" after scl_slope {header.slope!r}"
                remedy = "write label maps without scaling"
            problem = f"holds labels that are not whole numbers (such as {example})"
            raise PathError(path, problem, remedy)
        values = rounded.astype(np.int32)
    return np.ascontiguousarray(values), header


def check_same_grid(header: Header, reference: Header) -> None:
    """Both files must have the same shape, spacing and corners (within a tenth of a voxel).

    The spacing is compared too: where affines are placeholders, only pixdim differs.
    """
    other, problem = reference.path.name, ""
    corners = np.array([(*c, 1) for c in product(*((0, n - 1) for n in header.shape[::-1]))])
    apart = np.abs((corners @ (header.affine - reference.affine).T)[:, :3]).max()
    if header.shape != reference.shape:
        problem = f"has shape {header.shape} (z, y, x) but {other} has {reference.shape}"
    elif not np.allclose(header.spacing_mm, reference.spacing_mm, rtol=0.02):
        spacings = [" × ".join(f"{s:.4g}" for s in h.spacing_mm) for h in (header, reference)]
        problem = f"has spacing {spacings[0]} mm (z, y, x) but {other} has {spacings[1]}"
    elif apart > 0.1 * min(reference.spacing_mm):
        problem = f"lies {apart:.3g} mm away from {other} by its affine"
    if problem:
        raise PathError(header.path, problem, _ONE_GRID)


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
    try:
        return gzip.open(path) if _is_gzip(path) else path.open("rb")  # type: ignore[return-value]
    except OSError as error:
        raise PathError(path, f"cannot be read ({error.strerror})", "check the path") from error


def _is_gzip(path: Path) -> bool:
    """By content: files are sometimes renamed from .nii.gz to .nii and back."""
    with path.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


def _parse_header(path: Path, stream: IO[bytes]) -> Header:
    try:
        data = stream.read(540)
    except (OSError, EOFError, zlib.error) as error:
        raise PathError(path, "is a truncated or damaged gzip file", _DAMAGED) from error
    if len(data) < 352:
        raise PathError(path, "is not a NIfTI file (too short)", _DAMAGED)
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
        raise PathError(path, f"has an invalid NIfTI header: {reason}", _DAMAGED) from error


def _check_header(path: Path, raw: Any) -> Header:
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
    capacity = length * (_MAX_GZIP_RATIO if _is_gzip(path) else 1)
    if needed > min(capacity, MAX_VOLUME_BYTES):
        problem = f"announces {needed:,} bytes of voxels but has only {length:,} bytes"
        too_large = "the volume is too large or its header is damaged"
        raise PathError(path, problem, _DAMAGED if needed <= MAX_VOLUME_BYTES else too_large)
    affine, spacing_mm, notes = _space(raw, shape)
    slope, intercept = raw.get_slope_inter()
    if slope is None:
        slope, intercept = 1.0, 0.0
    return Header(path, shape, dtype, int(offset), slope, intercept, affine, spacing_mm, notes)


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
    if not np.isfinite(affine).all() or np.abs(affine).max() > 1e6:
        raise ValueError("a non-finite affine")
    for spacing in (columns, zooms):
        if not (spacing.min() >= 1e-4 and spacing.max() <= 1e4):
            raise ValueError(f"voxel spacing {spacing.tolist()}")
    if abs(np.linalg.det(affine[:3, :3] / columns)) < 1e-3:
        raise ValueError("a singular affine")
    if not np.allclose(zooms, columns, rtol=0.02):
        if not placeholder:
            both = f"pixdim {np.round(zooms, 4).tolist()}, affine {np.round(columns, 4).tolist()}"
            raise ValueError(f"two different spacings ({both})")
        notes["spacing"] = "from pixdim; the affine is a placeholder"
    x, y, z = (float(c) for c in zooms)
    return affine, (z, y, x), notes
