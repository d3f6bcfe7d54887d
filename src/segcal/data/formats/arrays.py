"""Arrays without geometry: .npy, .npz and HDF5; (Y, X), (Z, Y, X) or (C, Z, Y, X)."""

import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.core.checks import require
from segcal.core.errors import PathError
from segcal.data.formats.header import Opened, plain_header

_BROKEN = "write the file again"
# What numpy, zipfile and h5py raise on damaged files.
_DAMAGE = (
    OSError, ValueError, TypeError, EOFError, KeyError, AttributeError, RuntimeError, SyntaxError,
    OverflowError, MemoryError, zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip


def open_array(path: Path, key: str) -> Opened:
    """The array of an .npy file, or the array `key` (or the only one) of an .npz or HDF5 file."""
    if path.suffix.lower() == ".npy":
        array = open_npy(path)
        return _opened(path, array.shape, array.dtype, lambda: np.asarray(array))
    if path.suffix.lower() == ".npz":
        arrays = npz_headers(path)
        name = _choose(path, arrays, key)
        shape, dtype = arrays[name]
        return _opened(path, shape, dtype, lambda: read_npz(path, name))
    h5py = require("h5py")
    try:
        with h5py.File(path) as file:
            # A key may name a dataset in a group.
            names = [key] if key in file else [n for n in file if isinstance(file[n], h5py.Dataset)]
            name = _choose(path, names, key)
            shape, dtype = file[name].shape, file[name].dtype
    except PathError:
        raise
    except _DAMAGE as error:
        raise PathError(path, "is truncated, damaged or not an HDF5 file", _BROKEN) from error

    def load() -> NDArray[Any]:
        try:
            with h5py.File(path) as file:
                return np.asarray(file[name][()])
        except _DAMAGE as error:
            raise PathError(path, "is truncated or damaged", _BROKEN) from error

    return _opened(path, shape, dtype, load)


def _choose(path: Path, names: Iterable[str], key: str) -> str:
    found = sorted(names)
    if key in found:
        return key
    if len(found) == 1 and found[0] not in ("image", "label"):
        return found[0]
    listed = ", ".join(found) or "no array"
    raise PathError(path, f"has no array named {key!r} (it holds {listed})", "rename it")


def _opened(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], load: Any) -> Opened:
    if dtype.kind not in "biuf" or not 2 <= len(shape) <= 4 or min(shape) < 1:
        problem = f"holds an array of {dtype} of shape {shape}"
        raise PathError(path, problem, "expected numbers (Y, X), (Z, Y, X) or (C, Z, Y, X)")
    return plain_header(path, shape[::-1], dtype.itemsize), load


def open_npy(path: Path) -> NDArray[Any]:
    """An array in an .npy file, memory-mapped."""
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except _DAMAGE as error:
        raise PathError(path, "is damaged or not an array file", _BROKEN) from error


def npz_headers(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and dtype of every array, without decompressing one."""
    out = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if not name.endswith(".npy"):
                    continue
                with archive.open(name) as stream:
                    version = np.lib.format.read_magic(stream)
                    if version == (1, 0):
                        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
                    else:
                        shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
                out[name.removesuffix(".npy")] = (shape, dtype)
    except _DAMAGE as error:
        raise PathError(path, "is damaged or not an .npz file", _BROKEN) from error
    return out


def read_npz(path: Path, key: str) -> NDArray[Any]:
    """One array of an .npz file."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return np.asarray(archive[key])
    except _DAMAGE as error:
        raise PathError(path, "is damaged or not an .npz file", _BROKEN) from error
