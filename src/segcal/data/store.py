"""A case on disk: a folder with one blosc2 file per array (one chunk per slice) and case.json.

The folder is written under another name and renamed when it is whole, so a case is there with
all its files or not at all.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from segcal._checks import check_choice
from segcal.data.case import Case, CaseProperties
from segcal.data.errors import DataError, disk_errors

DTYPES = ("float16", "uint8")
PARTIAL = ".partial-"
_REBUILD = "delete its folder and run `segcal prepare` again"
# Where uint8 stops: one voxel in a thousand at each end may be clipped, so that a few hot voxels
# do not cost everyone else their resolution.
_CLIP_PERCENT = (0.1, 99.9)


def encode_image(
    image: NDArray[np.float32], dtype: str
) -> tuple[NDArray[Any], tuple[float, ...], tuple[float, ...]]:
    """(stored, scale, offset): `stored · scale + offset` gives the image back, per channel."""
    check_choice("dtype", dtype, DTYPES)
    if dtype == "float16":
        largest = float(np.abs(image).max())
        if largest > float(np.finfo(np.float16).max):
            raise ValueError(f"intensities up to {largest:g} do not fit float16")
        return image.astype(np.float16), (1.0,) * len(image), (0.0,) * len(image)
    stored = np.empty(image.shape, dtype=np.uint8)
    scales, offsets = [], []
    for index, channel in enumerate(image):
        low, high = (float(v) for v in np.percentile(channel, _CLIP_PERCENT))
        if high <= low:
            low, high = float(channel.min()), float(channel.max())
        scale = (high - low) / 255 or 1.0
        stored[index] = np.clip(np.rint((channel - low) / scale), 0, 255)
        scales.append(scale)
        offsets.append(low)
    return stored, tuple(scales), tuple(offsets)


def decode_image(
    stored: NDArray[Any], scale: tuple[float, ...], offset: tuple[float, ...]
) -> NDArray[np.float32]:
    """Undo `encode_image`; channels lead, any number of axes may follow."""
    image: NDArray[np.float32] = stored.astype(np.float32)
    if stored.dtype == np.uint8:
        axes = (-1,) + (1,) * (stored.ndim - 1)
        image *= np.asarray(scale, dtype=np.float32).reshape(axes)
        image += np.asarray(offset, dtype=np.float32).reshape(axes)
    return image


def pack_case(
    case: Case, dtype: str, settings: Mapping[str, str]
) -> tuple[CaseProperties, dict[str, bytes]]:
    """A case's description and its files' bytes by name; nothing is written yet."""
    for name, array in (("image", case.image), ("truth", case.truth)):
        if array is not None and not np.isfinite(array).all():
            raise DataError(case.name, f"has a non-finite {name}", "leave out the case")
    try:
        stored, scale, offset = encode_image(case.image, dtype)
    except ValueError as error:
        raise DataError(case.name, str(error), "use --dtype uint8") from error
    arrays: dict[str, NDArray[Any]] = {"image": stored, "label": case.label}
    if case.truth is not None:
        arrays["truth"] = case.truth.astype(np.float16)
    properties = CaseProperties(
        name=case.name,
        patient=case.patient,
        channels=len(case.image),
        shape=case.grid.shape,
        spacing_mm=case.spacing_mm,
        dtype="uint8" if dtype == "uint8" else "float16",
        scale=scale,
        offset=offset,
        image_range=channel_ranges(decode_image(stored, scale, offset)),
        voxels=count_labels(case.label),
        grid=case.grid,
        intensity=case.intensity,
        voxels_sha256=case.voxels_sha256,
        sha256={name: array_sha256(array) for name, array in arrays.items()},
        settings=dict(settings),
        sources=case.sources,
        notes=case.notes,
    )
    files = {f"{name}.b2nd": _frame(array) for name, array in arrays.items()}
    files["case.json"] = properties.model_dump_json(indent=1).encode()
    return properties, files


def channel_ranges(image: NDArray[np.float32]) -> tuple[tuple[float, float], ...]:
    """Smallest and largest value of each channel."""
    return tuple((float(channel.min()), float(channel.max())) for channel in image)


def count_labels(label: NDArray[np.uint8]) -> dict[int, int]:
    """How many voxels each label that occurs has."""
    counts = np.bincount(label.ravel(), minlength=256)
    return {int(v): int(counts[v]) for v in np.flatnonzero(counts)}


def read_properties(folder: Path) -> CaseProperties:
    path = folder / "case.json"
    try:
        return CaseProperties.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", _REBUILD) from error
    except (ValidationError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(path, f"is not a case description ({reason})", _REBUILD) from error


def open_array(path: Path) -> Any:
    """A blosc2 array; slicing it reads only the chunks it needs."""
    try:
        # Not memory-mapped: a mapped array would keep its file open, and sets have thousands.
        return blosc2.open(str(path), mode="r", dparams=blosc2.DParams(nthreads=1))
    except Exception as error:
        # blosc2 raises many types on damaged files; any of them means the same to the user.
        raise DataError(path, "is not a readable array file", _REBUILD) from error


def array_sha256(array: NDArray[Any]) -> str:
    """Hash of the voxels as stored, before packing: it outlives a change of compressor."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name to write under; it becomes `path` when all went well, and is gone otherwise."""
    partial = path.with_name(f"{PARTIAL}{os.getpid()}-{path.name}")
    try:
        with disk_errors(path.parent):
            yield partial
            if path.is_dir():
                # Away in one step, so that no half-deleted folder can be met.
                old = path.with_name(f"{PARTIAL}{os.getpid()}-old-{path.name}")
                os.rename(path, old)
                os.rename(partial, path)
                shutil.rmtree(old)
            else:
                os.replace(partial, path)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder whole: it appears under its name, or takes the old one's place, at once."""
    with replacing(folder) as partial:
        partial.mkdir()
        for name, data in files.items():
            _write_bytes(partial / name, data)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with replacing(path) as partial:
        _write_bytes(partial, text.encode())


def write_json(path: Path, content: object) -> None:
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _frame(array: NDArray[Any]) -> bytes:
    """The array as a blosc2 file's bytes: slices (all their channels) are the chunks."""
    chunks = (*array.shape[:-3], 1, *array.shape[-2:])
    # LZ4 unpacks a slice three times faster than ZSTD and the files are a sixth larger.
    filters = [blosc2.Filter.BITSHUFFLE if array.itemsize > 1 else blosc2.Filter.NOFILTER]
    packing = blosc2.CParams(codec=blosc2.Codec.LZ4, clevel=5, filters=filters, nthreads=1)
    packed = blosc2.asarray(
        np.ascontiguousarray(array), chunks=chunks, blocks=chunks, cparams=packing
    )
    # Packed in memory and written by Python: a full disk is then an error, not a short file.
    data: bytes = packed.to_cframe()
    return data


def _write_bytes(path: Path, data: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
