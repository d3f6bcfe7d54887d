"""Reading NIfTI files that may be broken or hostile, and writing results in their grid.

The header is judged before anything is allocated: its sizes must agree with the file's. Arrays
come out as (C, Z, Y, X), the reverse of the file's axis order, slices first.
"""

import gzip
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import nibabel as nib
import numpy as np
from nibabel.volumeutils import array_from_file
from numpy.typing import NDArray

from segcal.data.errors import DataError, disk_errors
from segcal.data.grid import Grid, Shape, Spacing

MAX_VOLUME_BYTES = 16 * 2**30
_MAX_SIDE = 8192
_MAX_HEADER_BYTES = 2**24
# The most that deflate can expand: anything beyond is a header that lies.
_MAX_GZIP_RATIO = 1040
_NUMERIC = {2, 4, 8, 16, 64, 256, 512, 768, 1024, 1280}
_BROKEN = "download or export the file again"


@dataclass(frozen=True)
class Header:
    """What a NIfTI header promises, after it was judged."""

    path: Path
    file_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    slope: float
    intercept: float
    affine: NDArray[np.float64]
    spacing_mm: Spacing

    @property
    def shape(self) -> Shape:
        """Spatial shape (Z, Y, X); a plane has Z = 1."""
        x, y, z = (*self.file_shape, 1, 1)[:3]
        return z, y, x

    @property
    def channels(self) -> int:
        return self.file_shape[3] if len(self.file_shape) == 4 else 1


def read_header(path: Path) -> Header:
    """Read and judge a header; touches no voxel."""
    with _open(path) as stream:
        return _parse(path, _header_bytes(path, stream))


def read_image(path: Path) -> tuple[NDArray[np.float32], Header]:
    """An image as float32 (C, Z, Y, X), finite and not constant in any channel."""
    voxels, header = _read(path)
    with np.errstate(over="ignore"):
        image = np.ascontiguousarray(voxels, dtype=np.float32)
    if not np.isfinite(image).all():
        count = int(np.size(image) - np.isfinite(image).sum())
        raise DataError(
            path, f"holds {count} NaN or infinite voxels", "repair or leave out the case"
        )
    for index, channel in enumerate(image):
        if channel.min() == channel.max():
            which = f"channel {index} is" if len(image) > 1 else "the image is"
            raise DataError(path, f"{which} constant ({channel.min():g})", "leave out the case")
    return image, header


def read_labels(path: Path) -> tuple[NDArray[np.int64], Header]:
    """A label map as int64 (Z, Y, X); whole numbers only."""
    voxels, header = _read(path)
    if len(voxels) != 1:
        raise DataError(path, f"is a label map with {len(voxels)} channels", "give a 3-D label map")
    values = voxels[0]
    if not np.issubdtype(values.dtype, np.integer):
        if not np.isfinite(values).all() or np.abs(values).max() > 2**31:
            raise DataError(path, "holds NaN or huge labels", "labels must be whole numbers")
        wrong = values != np.rint(values)
        if wrong.any():
            example = float(values[wrong].flat[0])
            raise DataError(
                path,
                f"holds labels that are not whole numbers (such as {example:g})",
                "resample label maps with nearest neighbour only",
            )
    return np.ascontiguousarray(values, dtype=np.int64), header


def check_same_grid(header: Header, reference: Header) -> None:
    """Both files must describe the same voxels: shape, and corners within a tenth of a voxel."""
    if header.shape != reference.shape:
        raise DataError(
            header.path,
            f"has shape {header.shape} (z, y, x) but {reference.path.name} has {reference.shape}",
            "both must be on one grid; resample one to the other",
        )
    last = np.array(header.shape[::-1]) - 1
    corners = np.array([[i, j, k, 1] for i in (0, 1) for j in (0, 1) for k in (0, 1)], dtype=float)
    corners[:, :3] *= last
    apart = np.abs((corners @ header.affine.T - corners @ reference.affine.T)[:, :3]).max()
    if apart > 0.1 * min(reference.spacing_mm):
        raise DataError(
            header.path,
            f"lies {apart:.3g} mm away from {reference.path.name} by its affine",
            "both must be on one grid; resample one to the other or correct the header",
        )


def write_nifti(path: Path | str, array: NDArray[np.generic], grid: Grid) -> None:
    """Write (Z, Y, X), or (K, Z, Y, X) as a 4-D file, on the original grid of a case."""
    path = Path(path)
    if not path.name.endswith((".nii", ".nii.gz")):
        raise ValueError(f"Expected argument `path` to end in .nii or .nii.gz, but got {path}.")
    if array.shape[-3:] != grid.original_shape or array.ndim not in (3, 4):
        raise ValueError(
            f"Expected argument `array` to have the original shape {grid.original_shape}, "
            f"but got {array.shape}."
        )
    # NIfTI keeps channels last; the reverse of (K, Z, Y, X) is (X, Y, Z, K).
    image = nib.Nifti1Image(np.asarray(array).T, np.array(grid.affine))  # type: ignore[no-untyped-call]
    image.header.set_xyzt_units("mm")  # type: ignore[no-untyped-call]
    # As in the source file, where an affine may be a placeholder beside the true spacing.
    image.header["pixdim"][1:4] = grid.original_spacing_mm[::-1]
    ending = ".nii.gz" if path.name.endswith(".gz") else ".nii"
    partial = path.with_name(f".partial-{os.getpid()}-{path.name.removesuffix(ending)}{ending}")
    try:
        with disk_errors(path.parent):
            nib.save(image, partial)
            os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _open(path: Path) -> IO[bytes]:
    try:
        return gzip.open(path) if _is_gzip(path) else path.open("rb")  # type: ignore[return-value]
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", "check the path") from error


def _is_gzip(path: Path) -> bool:
    # By content: files are renamed to .nii and back more often than one would think.
    with path.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


def _header_bytes(path: Path, stream: IO[bytes]) -> bytes:
    try:
        data = stream.read(540)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(path, "is a truncated or damaged gzip file", _BROKEN) from error
    if len(data) < 352:
        raise DataError(path, "is not a NIfTI file (too short)", _BROKEN)
    return data


def _parse(path: Path, data: bytes) -> Header:
    size = struct.unpack("<i", data[:4])[0], struct.unpack(">i", data[:4])[0]
    kinds: dict[int, Any] = {348: nib.Nifti1Header, 540: nib.Nifti2Header}
    kind = next((kinds[s] for s in size if s in kinds), None)
    magic = data[344:348] if kind is nib.Nifti1Header else data[4:8]
    if kind is None or magic[:3] not in (b"n+1", b"n+2"):
        raise DataError(path, "is not a single-file NIfTI (.nii or .nii.gz)", "convert it to NIfTI")
    try:
        raw = kind(data[: 348 if kind is nib.Nifti1Header else 540], check=False)
        return _judge(path, raw)
    except DataError:
        raise
    except Exception as error:
        # nibabel raises many types on nonsense; any of them means the same to the user.
        reason = " ".join(str(error).split())
        raise DataError(path, f"has a nonsensical NIfTI header ({reason})", _BROKEN) from error


def _judge(path: Path, raw: Any) -> Header:
    def refuse(problem: str) -> DataError:
        return DataError(path, f"has a NIfTI header with {problem}", _BROKEN)

    if int(raw["datatype"]) not in _NUMERIC:
        raise refuse(f"unsupported datatype {int(raw['datatype'])}")
    dtype = np.dtype(raw.get_data_dtype())
    if int(raw["bitpix"]) != 8 * dtype.itemsize:
        raise refuse(f"bitpix {int(raw['bitpix'])} for datatype {dtype}")
    shape = _file_shape(raw, refuse)
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    offset = float(raw["vox_offset"])
    # 0 is a common way to write "right after the header".
    minimum = 352 if int(raw["sizeof_hdr"]) == 348 else 544
    offset = minimum if offset == 0 else offset
    if not (np.isfinite(offset) and minimum <= offset <= _MAX_HEADER_BYTES):
        raise refuse(f"vox_offset {offset:g}")
    _check_size(path, size + int(offset))
    affine = np.array(raw.get_best_affine(), dtype=np.float64)
    if len(shape) == 2 and not affine[:3, 2].any():
        affine[2, 2] = 1.0
    slope, intercept = raw.get_slope_inter()
    if slope is None:
        slope, intercept = 1.0, 0.0
    spacing_mm = _spacing(raw, affine, refuse)
    return Header(path, shape, dtype, int(offset), slope, intercept, affine, spacing_mm)


def _file_shape(raw: Any, refuse: Any) -> tuple[int, ...]:
    dims = [int(d) for d in raw["dim"]]
    if not 2 <= dims[0] <= 7:
        raise refuse(f"{dims[0]} dimensions")
    shape = dims[1 : dims[0] + 1]
    if min(shape) < 1 or max(shape) > _MAX_SIDE:
        raise refuse(f"dimensions {tuple(shape)}")
    while len(shape) > 3 and shape[-1] == 1:
        shape.pop()
    if len(shape) == 5 and shape[3] == 1:
        # A vector image: channels in the fifth dimension.
        shape.pop(3)
    if len(shape) > 4:
        raise refuse(f"{len(shape)} dimensions {tuple(shape)}")
    return tuple(shape)


def _check_size(path: Path, needed: int) -> None:
    """The header must not promise more voxels than the file can hold."""
    length = path.stat().st_size
    capacity = length * (_MAX_GZIP_RATIO if _is_gzip(path) else 1)
    if needed > min(capacity, MAX_VOLUME_BYTES):
        raise DataError(
            path,
            f"promises {needed:,} bytes of voxels but has only {length:,} bytes",
            _BROKEN if needed <= MAX_VOLUME_BYTES else "the volume is too large or its header is",
        )


def _spacing(raw: Any, affine: NDArray[np.float64], refuse: Any) -> Spacing:
    """Spacing from pixdim, which must agree with the affine.

    One exception: an affine with unit steps beside another pixdim is a placeholder (ACDC is
    distributed so), and pixdim holds.
    """
    columns = np.sqrt((affine[:3, :3] ** 2).sum(axis=0))
    if not np.isfinite(affine).all() or np.abs(affine).max() > 1e6:
        raise refuse("a non-finite affine")
    if not (columns.min() >= 1e-4 and columns.max() <= 1e4):
        raise refuse(f"voxel spacing {tuple(float(c) for c in columns)}")
    if abs(np.linalg.det(affine[:3, :3] / columns)) < 1e-3:
        raise refuse("an affine that flattens space")
    used = min(int(raw["dim"][0]), 3)
    zooms = columns.copy()
    zooms[:used] = np.abs(np.array(raw["pixdim"][1 : used + 1], dtype=np.float64))
    if not (np.isfinite(zooms).all() and zooms.min() >= 1e-4 and zooms.max() <= 1e4):
        raise refuse(f"voxel spacing {zooms.tolist()}")
    if not (np.allclose(zooms, columns, rtol=0.02) or np.allclose(columns, 1.0)):
        both = f"pixdim {np.round(zooms, 4).tolist()}, affine {np.round(columns, 4).tolist()}"
        raise refuse(f"two different spacings ({both})")
    x, y, z = (float(c) for c in zooms)
    return z, y, x


def _read(path: Path) -> tuple[NDArray[Any], Header]:
    with _open(path) as stream:
        header = _parse(path, _header_bytes(path, stream))
        try:
            voxels = array_from_file(
                header.file_shape,
                header.dtype,
                stream,  # type: ignore[arg-type]
                offset=header.offset,
                mmap=False,
            )
            # One byte more makes gzip verify its checksum when the voxels end the file.
            stream.read(1)
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise DataError(path, "is truncated or damaged", _BROKEN) from error
    if (header.slope, header.intercept) != (1.0, 0.0):
        voxels = voxels * header.slope + header.intercept
    voxels = np.asarray(voxels).T
    while voxels.ndim < 3:
        voxels = voxels[None]
    return (voxels if voxels.ndim == 4 else voxels[None]), header
