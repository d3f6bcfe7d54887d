"""Anybody's probabilities (or logits) in a folder: which files are which case, and reading them.

Forms, by what lies in the folder:

    nnunet    NAME.npz with `probabilities` (K, z, y, x), and NAME.pkl beside it
    npz, npy  one array (K, *S) in NAME.npz or NAME.npy
    nifti     NAME.nii.gz with the classes last (4-D), such as NAME_probs.nii.gz of `segcal predict`
    classes   NAME_class0.nii.gz, NAME_class1.nii.gz, … (or NAME_0, NAME_1; one 3-D file per class)
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError, list_folder
from segcal.data.formats.nifti import (
    MAX_VOLUME_BYTES,
    Header,
    check_same_grid,
    read_header,
    read_voxels,
)
from segcal.predictions.nnunet import Placement, read_placement, to_file_order

NNUNET_KEYS = ("probabilities", "softmax")
_KEYS = ("probs", "logits", "arr_0")
_NIFTI = (".nii.gz", ".nii")
_CLASS_FILE = re.compile(r"^(.+?)[_.-](?:class|probs?|label|c|p)?[_-]?(\d{1,4})$", re.IGNORECASE)
# What files of probabilities say at the end of their name beside the case.
_SUFFIX = re.compile(r"_(?:probs|probabilities|softmax|logits)$", re.IGNORECASE)
_BROKEN = "write the file again"


@dataclass(frozen=True)
class SoftmaxFile:
    """One case of somebody's predictions.

    Attributes:
        name: of the case.
        form: see the module.
        paths: its file, or one per class.
        shape: (K, *S) as it will be read.
        key: of the array in an .npz.
        dtype: of the stored values.
        axes: "zyx" (as SimpleITK and nnU-Net order arrays) or "xyz" (as nibabel does).
        placement: what nnU-Net's .pkl says.
    """

    name: str
    form: str
    paths: tuple[Path, ...]
    shape: tuple[int, ...]
    key: str = ""
    dtype: str = "float32"
    axes: str = "zyx"
    placement: Placement | None = None

    @property
    def path(self) -> Path:
        """The file to name in messages."""
        return self.paths[0]

    @property
    def num_classes(self) -> int:
        """K."""
        return self.shape[0]

    def header(self) -> Header | None:
        """Where its voxels lie, if the files say so."""
        if self.form in ("nifti", "classes"):
            return read_header(self.path)
        if self.placement is None or self.placement.affine is None:
            return None
        z, y, x = self.grid_shape
        return Header(
            self.path.with_suffix(".pkl"), (x, y, z), np.dtype(self.dtype), 0, 1.0, 0.0,
            self.placement.affine, self.placement.spacing_mm,
        )  # fmt: skip

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """The space S that `read` gives, (Z, Y, X) where it is known to be that."""
        space = self.shape[1:]
        if self.placement is not None and self.placement.reoriented:
            probe = np.empty((1, *space), np.bool_)
            return to_file_order(probe, self.placement).shape[1:]
        return space[::-1] if self.axes == "xyz" else space

    def read(self) -> NDArray[np.floating]:
        """(K, Z, Y, X), or (K, *S) as stored; .npy files are mapped, not loaded."""
        if self.form in ("nifti", "classes"):
            return _read_nifti(self)
        array = _read_npy(self.path) if self.form == "npy" else _read_npz(self.path, self.key)
        if self.placement is not None:
            return to_file_order(array, self.placement)
        return array.transpose(0, *range(array.ndim - 1, 0, -1)) if self.axes == "xyz" else array

    def with_axes(self, axes: str) -> SoftmaxFile:
        """The same, its axes read in this order."""
        return replace(self, axes=axes)


def stem_of(path: Path) -> str:
    """The name of a file without .nii.gz, .npz and the like."""
    for ending in (*_NIFTI, ".npz", ".npy"):
        if path.name.lower().endswith(ending):
            return path.name[: -len(ending)]
    return path.stem


def case_of(path: Path) -> str:
    """The case that a file of probabilities belongs to."""
    return _SUFFIX.sub("", stem_of(path))


def is_nifti(path: Path) -> bool:
    """By its name."""
    return path.name.lower().endswith(_NIFTI)


def find_softmax(folder: Path) -> dict[str, SoftmaxFile]:
    """Every case of a folder, by name, in name order; headers are read, voxels are not."""
    files = [path for path in list_folder(folder, "--probs or --logits") if path.is_file()]
    npz = [path for path in files if path.suffix.lower() == ".npz"]
    npy = [path for path in files if path.suffix.lower() == ".npy"]
    if npz and npy:
        raise PathError(
            folder,
            f"holds .npz and .npy files ({npz[0].name}, {npy[0].name})",
            "give folders of one kind each",
        )
    if npz:
        found = [_describe_npz(path) for path in npz]
    elif npy:
        found = [_describe_npy(path) for path in npy]
    else:
        found = _describe_nifti([path for path in files if is_nifti(path)])
    if not found:
        raise PathError(
            folder,
            "holds no probabilities",
            "give a folder with .npz, .npy, 4-D .nii.gz files, or one .nii.gz per class "
            "(NAME_class0.nii.gz, …)",
        )
    out: dict[str, SoftmaxFile] = {}
    for file in sorted(found, key=lambda file: file.name):
        refuse_twins(out[file.name].path if file.name in out else None, file.path)
        out[file.name] = file
    return out


def refuse_twins(first: Path | None, second: Path) -> None:
    """Two files of one case: neither may be chosen in silence."""
    if first is not None:
        raise PathError(
            second, f"and {first.name} are both of case {case_of(second)}", "remove one of them"
        )


# numpy files


def _check_array(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if dtype.kind != "f" or not 3 <= len(shape) <= 4 or shape[0] < 2 or min(shape) < 1:
        raise PathError(
            path,
            f"holds an array of {dtype} of shape {shape}",
            "give floating-point probabilities (K, *S) with the classes first, in 2-D or 3-D",
        )
    if int(np.prod(shape, dtype=object)) * dtype.itemsize > MAX_VOLUME_BYTES:
        raise PathError(path, f"holds an array of shape {shape}, too large", "split the case")


def _describe_npy(path: Path) -> SoftmaxFile:
    array = _read_npy(path)
    _check_array(path, array.shape, array.dtype)
    return SoftmaxFile(case_of(path), "npy", (path,), array.shape, dtype=array.dtype.name)


def _read_npy(path: Path) -> NDArray[Any]:
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise PathError(path, "is damaged or not an array file", _BROKEN) from error


def _describe_npz(path: Path) -> SoftmaxFile:
    arrays = _npz_headers(path)
    key = next((k for k in (*NNUNET_KEYS, *_KEYS) if k in arrays), None)
    if key is None and len(arrays) == 1:
        key = next(iter(arrays))
    if key is None:
        names = ", ".join(sorted(arrays)) or "nothing"
        raise PathError(
            path, f"holds {names}", "give one array, named probabilities, probs or logits"
        )
    shape, dtype = arrays[key]
    _check_array(path, shape, dtype)
    form, placement = "npz", None
    if key in NNUNET_KEYS:
        form = "nnunet"
        beside = path.with_suffix(".pkl")
        placement = read_placement(beside, shape[1:]) if beside.is_file() else None
    return SoftmaxFile(
        case_of(path), form, (path,), shape, key=key, dtype=dtype.name, placement=placement
    )


def _npz_headers(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and dtype of every array, without unpacking one."""
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
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise PathError(path, "is damaged or not an .npz file", _BROKEN) from error
    return out


def _read_npz(path: Path, key: str) -> NDArray[Any]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return np.asarray(archive[key])
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise PathError(path, "is damaged or not an .npz file", _BROKEN) from error


# NIfTI


def _describe_nifti(files: list[Path]) -> list[SoftmaxFile]:
    """4-D files are cases; if there are none, 3-D files are classes of cases by their numbers."""
    headers = {path: read_header(path) for path in files}
    whole = {path: h for path, h in headers.items() if h.channels > 1}
    if whole:
        return [
            SoftmaxFile(case_of(path), "nifti", (path,), (h.channels, *h.shape))
            for path, h in whole.items()
        ]
    groups: dict[str, dict[int, Path]] = defaultdict(dict)
    for path in files:
        match = _CLASS_FILE.match(stem_of(path))
        if match:
            parts = groups[match[1]]
            refuse_twins(parts.get(int(match[2])), path)
            parts[int(match[2])] = path
    return [_one_per_class(name, parts, headers) for name, parts in groups.items()]


def _one_per_class(name: str, parts: dict[int, Path], headers: dict[Path, Header]) -> SoftmaxFile:
    first = parts[min(parts)]
    missing = sorted(set(range(max(parts) + 1)) - set(parts))
    if missing or len(parts) < 2:
        has = ", ".join(map(str, sorted(parts)))
        raise PathError(
            first,
            f"case {name} has files of class {has} only",
            "give one file for every class from 0 on, or a 4-D file with the classes last",
        )
    ordered = tuple(parts[k] for k in sorted(parts))
    for path in ordered[1:]:
        check_same_grid(headers[path], headers[first])
    return SoftmaxFile(name, "classes", ordered, (len(ordered), *headers[first].shape))


def _read_nifti(file: SoftmaxFile) -> NDArray[Any]:
    parts = [read_voxels(path)[0] for path in file.paths]
    array = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if array.dtype.kind != "f":
        raise PathError(
            file.path, f"holds {array.dtype} values", "give floating-point probabilities"
        )
    return array
