"""Reading NIfTI files that may be broken or hostile, and writing results in their grid.

The header is judged before anything is allocated: its sizes must agree with the file's. Arrays
come out as (C, Z, Y, X), the reverse of the file's axis order, slices first.
"""

import gzip
import struct
import zlib
from dataclasses import dataclass, field
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
# The most that deflate can expand: anything beyond is a header that lies.
_MAX_GZIP_RATIO = 1040
_NUMERIC = {2, 4, 8, 16, 64, 256, 512, 768, 1024, 1280}
_COLOUR = {128, 2304}
_BROKEN = "download or export the file again"
# xyzt_units' lower bits: unknown (millimetres by custom), metre, millimetre, micrometre.
_UNITS = {
    0: ("unknown", 1.0),
    1: ("metres", 1e3),
    2: ("millimetres", 1.0),
    3: ("micrometres", 1e-3),
}
# Whole numbers that went through a scaling or a float file.
_WHOLE = 1e-4


@dataclass(frozen=True)
class Header:
    """What a NIfTI header promises, after it was judged. Millimetres, whatever the file's unit.

    `notes` says what had to be decided: a placeholder affine, another unit, no slice thickness.
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


def read_image(path: Path) -> tuple[NDArray[np.floating], Header]:
    """An image as (C, Z, Y, X), finite and not constant in any channel.

    float32, or float64 where the file has more digits than float32 keeps: a spread of 1 about a
    mean of 1e8 would be lost before it is standardised.
    """
    voxels, header = read_voxels(path)
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(voxels, dtype=np.float32)
    finite = np.isfinite(single)
    image: NDArray[np.floating] = single
    if voxels.dtype.itemsize > 2 and voxels.dtype != np.float32:
        image = np.ascontiguousarray(voxels, dtype=np.float64)
    if not finite.all():
        count = int(finite.size - finite.sum())
        raise PathError(
            path, f"holds {count} NaN or infinite voxels", "repair or leave out the case"
        )
    for index, channel in enumerate(image):
        if channel.min() == channel.max():
            which = f"channel {index} is" if len(image) > 1 else "the image is"
            raise PathError(path, f"{which} constant ({channel.min():g})", "leave out the case")
    return image, header


def read_labels(path: Path) -> tuple[NDArray[np.integer], Header]:
    """A label map (Z, Y, X) in the file's integer type, or int32; whole numbers only."""
    voxels, header = read_voxels(path)
    if len(voxels) != 1:
        raise PathError(path, f"is a label map with {len(voxels)} channels", "give a 3-D label map")
    values = voxels[0]
    if not np.issubdtype(values.dtype, np.integer):
        if not np.isfinite(values).all() or np.abs(values).max() > 2**31:
            raise PathError(path, "holds NaN or huge labels", "labels must be whole numbers")
        whole = np.rint(values)
        wrong = np.abs(values - whole) > _WHOLE
        if wrong.any():
            example = float(values[wrong].flat[0])
            scaled = (header.slope, header.intercept) != (1.0, 0.0)
            how = f" after scl_slope {header.slope!r}" if scaled else ""
            raise PathError(
                path,
                f"holds labels that are not whole numbers (such as {example!r}{how})",
                "write label maps unscaled"
                if scaled
                else "resample label maps with nearest neighbour only",
            )
        values = whole.astype(np.int32)
    return np.ascontiguousarray(values), header


def check_same_grid(header: Header, reference: Header) -> None:
    """Both files must describe the same voxels: shape, spacing, corners within a tenth of a voxel.

    Spacing apart from corners: beside a placeholder affine only pixdim tells.
    """
    if header.shape != reference.shape:
        raise PathError(
            header.path,
            f"has shape {header.shape} (z, y, x) but {reference.path.name} has {reference.shape}",
            "both must be on one grid; resample one to the other",
        )
    if not np.allclose(header.spacing_mm, reference.spacing_mm, rtol=0.02):
        spacings = [" × ".join(f"{s:.4g}" for s in h.spacing_mm) for h in (header, reference)]
        raise PathError(
            header.path,
            f"has spacing {spacings[0]} mm (z, y, x) but {reference.path.name} has {spacings[1]}",
            "both must be on one grid; correct the header that is wrong",
        )
    last = np.array(header.shape[::-1]) - 1
    corners = np.array([[i, j, k, 1] for i in (0, 1) for j in (0, 1) for k in (0, 1)], dtype=float)
    corners[:, :3] *= last
    apart = np.abs((corners @ header.affine.T - corners @ reference.affine.T)[:, :3]).max()
    if apart > 0.1 * min(reference.spacing_mm):
        raise PathError(
            header.path,
            f"lies {apart:.3g} mm away from {reference.path.name} by its affine",
            "both must be on one grid; resample one to the other or correct the header",
        )


def write_nifti(path: Path | str, array: NDArray[np.generic], grid: Grid) -> None:
    """Write (Z, Y, X), or (K, Z, Y, X) as a 4-D file, on the original grid of a case.

    Types that NIfTI readers do not share are widened or narrowed: bool to uint8, 64-bit integers
    to int32, float16 to float32.
    """
    path = Path(path)
    if not path.name.endswith((".nii", ".nii.gz")):
        raise ValueError(f"Expected argument `path` to end in .nii or .nii.gz, but got {path}.")
    if array.shape[-3:] != grid.original_shape or array.ndim not in (3, 4):
        raise ValueError(
            f"Expected argument `array` to have the original shape {grid.original_shape}, "
            f"but got {array.shape}."
        )
    # NIfTI keeps channels last; the reverse of (K, Z, Y, X) is (X, Y, Z, K).
    image = nib.Nifti1Image(_portable(array).T, np.array(grid.affine))  # type: ignore[no-untyped-call]
    image.header.set_xyzt_units("mm")  # type: ignore[no-untyped-call]
    # As in the source file, where an affine may be a placeholder beside the true spacing.
    image.header["pixdim"][1:4] = grid.original_spacing_mm[::-1]
    with atomic_path(path) as partial:
        nib.save(image, partial)


def _portable(array: NDArray[np.generic]) -> NDArray[Any]:
    values: NDArray[Any] = np.asarray(array)
    if values.dtype == np.bool_:
        return values.astype(np.uint8)
    if values.dtype == np.float16:
        return values.astype(np.float32)
    if values.dtype in (np.int64, np.uint64):
        if values.size and (values.min() < -(2**31) or values.max() >= 2**31):
            raise ValueError("Expected argument `array` to fit 32-bit integers, but it does not.")
        return values.astype(np.int32)
    return values


def _open(path: Path) -> IO[bytes]:
    try:
        return gzip.open(path) if _is_gzip(path) else path.open("rb")  # type: ignore[return-value]
    except OSError as error:
        raise PathError(path, f"cannot be read ({error.strerror})", "check the path") from error


def _is_gzip(path: Path) -> bool:
    # By content: files are renamed to .nii and back more often than one would think.
    with path.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


def _header_bytes(path: Path, stream: IO[bytes]) -> bytes:
    try:
        data = stream.read(540)
    except (OSError, EOFError, zlib.error) as error:
        raise PathError(path, "is a truncated or damaged gzip file", _BROKEN) from error
    if len(data) < 352:
        raise PathError(path, "is not a NIfTI file (too short)", _BROKEN)
    return data


def _parse(path: Path, data: bytes) -> Header:
    size = struct.unpack("<i", data[:4])[0], struct.unpack(">i", data[:4])[0]
    kinds: dict[int, Any] = {348: nib.Nifti1Header, 540: nib.Nifti2Header}
    kind = next((kinds[s] for s in size if s in kinds), None)
    magic = data[344:348] if kind is nib.Nifti1Header else data[4:8]
    if kind is None or magic[:3] not in (b"n+1", b"n+2"):
        raise PathError(path, "is not a single-file NIfTI (.nii or .nii.gz)", "convert it to NIfTI")
    try:
        raw = kind(data[: 348 if kind is nib.Nifti1Header else 540], check=False)
        return _judge(path, raw)
    except PathError:
        raise
    except Exception as error:
        # nibabel raises many types on nonsense; any of them means the same to the user.
        reason = " ".join(str(error).split())
        raise PathError(path, f"has a nonsensical NIfTI header ({reason})", _BROKEN) from error


def _judge(path: Path, raw: Any) -> Header:
    def refuse(problem: str) -> PathError:
        return PathError(path, f"has a NIfTI header with {problem}", _BROKEN)

    if int(raw["datatype"]) in _COLOUR:
        raise PathError(
            path,
            "is a colour (RGB) image",
            "save it with one number per voxel, or one file per colour as channels",
        )
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
    slope, intercept = raw.get_slope_inter()
    if slope is None:
        slope, intercept = 1.0, 0.0
    affine, spacing_mm, notes = _space(raw, shape, refuse)
    return Header(path, shape, dtype, int(offset), slope, intercept, affine, spacing_mm, notes)


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
        raise PathError(
            path,
            f"promises {needed:,} bytes of voxels but has only {length:,} bytes",
            _BROKEN if needed <= MAX_VOLUME_BYTES else "the volume is too large or its header is",
        )


def _space(
    raw: Any, shape: tuple[int, ...], refuse: Any
) -> tuple[NDArray[np.float64], Spacing, dict[str, str]]:
    """Affine and spacing in millimetres, and notes. Spacing is pixdim's; the affine must agree.

    One exception: an affine of unit steps along the axes, without any offset, beside another pixdim
    is a placeholder (ACDC is distributed so), and pixdim holds.
    """
    notes: dict[str, str] = {}
    unit, factor = _UNITS.get(int(raw["xyzt_units"]) % 8, ("", 0.0))
    if not factor:
        raise refuse(f"unknown units ({int(raw['xyzt_units'])})")
    affine = np.array(raw.get_best_affine(), dtype=np.float64)
    zooms = np.abs(np.array(raw["pixdim"][1:4], dtype=np.float64))
    placeholder = np.array_equal(np.abs(affine), np.eye(4))
    _complete(affine, zooms, shape, notes)
    affine[:3] *= factor
    zooms *= factor
    if factor != 1.0:
        notes["units"] = f"{unit}, converted to millimetres"
    columns = np.sqrt((affine[:3, :3] ** 2).sum(axis=0))
    if not np.isfinite(affine).all() or np.abs(affine).max() > 1e6:
        raise refuse("a non-finite affine")
    for spacing in (columns, zooms):
        if not (spacing.min() >= 1e-4 and spacing.max() <= 1e4):
            raise refuse(f"voxel spacing {spacing.tolist()}")
    if abs(np.linalg.det(affine[:3, :3] / columns)) < 1e-3:
        raise refuse("an affine that flattens space")
    if not np.allclose(zooms, columns, rtol=0.02):
        if not placeholder:
            both = f"pixdim {np.round(zooms, 4).tolist()}, affine {np.round(columns, 4).tolist()}"
            raise refuse(f"two different spacings ({both})")
        notes["spacing"] = "from pixdim; the affine is a placeholder"
    x, y, z = (float(c) for c in zooms)
    return affine, (z, y, x), notes


def _complete(
    affine: NDArray[np.float64],
    zooms: NDArray[np.float64],
    shape: tuple[int, ...],
    notes: dict[str, str],
) -> None:
    """A single slice may come without a thickness: the affine's, else 1, is filled in."""
    if len(shape) > 2 and (shape[2] > 1 or zooms[2] != 0):
        return
    if not affine[:3, 2].any():
        normal = np.cross(affine[:3, 0], affine[:3, 1])
        length = float(np.linalg.norm(normal))
        affine[:3, 2] = normal / length if length else (0.0, 0.0, 1.0)
    zooms[2] = np.linalg.norm(affine[:3, 2])
    if len(shape) > 2:
        notes["thickness"] = f"not in the header, taken as {zooms[2]:g}"


def read_voxels(path: Path) -> tuple[NDArray[Any], Header]:
    """Whatever numbers a NIfTI file holds, scaled as its header says, (C, Z, Y, X)."""
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
            # To the end: only there does gzip verify its checksum.
            while isinstance(stream, gzip.GzipFile) and stream.read(2**20):
                pass
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise PathError(path, "is truncated or damaged", _BROKEN) from error
    if (header.slope, header.intercept) != (1.0, 0.0):
        # Single precision holds 8- and 16-bit values and costs half the memory.
        scaled: NDArray[Any] = voxels.astype(np.float32 if voxels.itemsize <= 2 else np.float64)
        voxels = scaled * header.slope + header.intercept
    voxels = np.asarray(voxels).T
    while voxels.ndim < 3:
        voxels = voxels[None]
    return (voxels if voxels.ndim == 4 else voxels[None]), header
