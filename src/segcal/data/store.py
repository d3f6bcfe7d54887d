"""A case on disk: a folder with one blosc2 file per array (one chunk per slice) and case.json."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
from numpy.typing import NDArray

from segcal.core.checks import check_choice
from segcal.core.documents import read_model
from segcal.core.errors import PathError
from segcal.data.case import Case, CaseProperties
from segcal.data.grid import IGNORED
from segcal.data.info import Dtype

DTYPES: tuple[Dtype, ...] = ("float16", "uint8")
REBUILD = "delete its folder and run `segcal prepare` again"
# The range of uint8: one voxel in a thousand is clipped at each end, so that a few very bright
# voxels do not reduce the resolution of all others.
_CLIP_PERCENT = (0.1, 99.9)


def encode_image(
    image: NDArray[np.float32], dtype: Dtype
) -> tuple[NDArray[Any], tuple[float, ...], tuple[float, ...]]:
    """(stored, scale, offset): the image is `stored · scale + offset`, per channel."""
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
    """Undo `encode_image`; the first axis holds the channels, any number of axes may follow."""
    image: NDArray[np.float32] = stored.astype(np.float32)
    if stored.dtype == np.uint8:
        axes = (-1,) + (1,) * (stored.ndim - 1)
        image *= np.asarray(scale, dtype=np.float32).reshape(axes)
        image += np.asarray(offset, dtype=np.float32).reshape(axes)
    return image


def pack_case(
    case: Case, dtype: Dtype, settings: Mapping[str, str]
) -> tuple[CaseProperties, dict[str, bytes]]:
    """The properties of a case, and the bytes of its files by name; writes nothing."""
    for name, array in (("image", case.image), ("truth", case.truth)):
        if array is not None and not np.isfinite(array).all():
            raise PathError(case.name, f"has a non-finite {name}", "remove the case")
    try:
        stored, scale, offset = encode_image(case.image, dtype)
    except ValueError as error:
        raise PathError(case.name, str(error), "use --dtype uint8") from error
    arrays: dict[str, NDArray[Any]] = {"image": stored, "label": case.label}
    if case.truth is not None:
        arrays["truth"] = case.truth.astype(np.float16)
    if case.raters:
        arrays["raters"] = np.stack(list(case.raters.values()))
    as_in_case = ("name", "patient", "grid", "intensity", "voxels_sha256", "group", "annotated",
                  "sources", "notes")  # fmt: skip
    properties = CaseProperties(
        **{key: getattr(case, key) for key in as_in_case},
        channels=len(case.image),
        shape=case.grid.shape,
        spacing_mm=case.grid.spacing_mm,
        dtype=dtype,
        scale=scale,
        offset=offset,
        image_range=tuple(
            (float(channel.min()), float(channel.max()))
            for channel in decode_image(stored, scale, offset)
        ),
        voxels=count_labels(case.label),
        sha256={name: array_sha256(array) for name, array in arrays.items()},
        settings=dict(settings),
        readers={name: count_labels(drawn) for name, drawn in case.raters.items()},
    )
    files = {f"{name}.b2nd": _frame(array) for name, array in arrays.items()}
    files["case.json"] = properties.model_dump_json(indent=1).encode()
    return properties, files


def count_labels(label: NDArray[np.uint8]) -> dict[int, int]:
    """Number of voxels of each class that occurs; ignored voxels are not counted."""
    counts = np.bincount(label.ravel(), minlength=256)[:IGNORED]
    return {int(v): int(counts[v]) for v in np.flatnonzero(counts)}


def read_properties(folder: Path) -> CaseProperties:
    return read_model(folder / "case.json", CaseProperties, "a case description", REBUILD)


def open_array(path: Path) -> Any:
    """A blosc2 array; slicing it reads only the chunks it needs."""
    try:
        # Not memory-mapped: a mapped array keeps its file open, and data sets have thousands.
        return blosc2.open(str(path), mode="r", dparams=blosc2.DParams(nthreads=1))
    except Exception as error:
        # blosc2 raises many types on damaged files; all of them mean the same to the user.
        raise PathError(path, "is not a readable array file", REBUILD) from error


def array_sha256(array: NDArray[Any]) -> str:
    """Hash of the voxels as stored, before compression."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _frame(array: NDArray[Any]) -> bytes:
    """The array as the bytes of a blosc2 file; a chunk is a slice with all channels or readers."""
    chunks = (*array.shape[:-3], 1, *array.shape[-2:])
    # LZ4 decompresses a slice three times faster than ZSTD; the files are a sixth larger.
    filters = [blosc2.Filter.BITSHUFFLE if array.itemsize > 1 else blosc2.Filter.NOFILTER]
    packing = blosc2.CParams(codec=blosc2.Codec.LZ4, clevel=5, filters=filters, nthreads=1)
    data = np.ascontiguousarray(array)
    packed = blosc2.asarray(data, chunks=chunks, blocks=chunks, cparams=packing)
    # Compressed in memory and written by Python: a full disk is then an error.
    return bytes(packed.to_cframe())
