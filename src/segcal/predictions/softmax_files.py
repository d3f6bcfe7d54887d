"""Folders of probabilities (or logits): which files belong to which case, and reading them.

Formats, recognized by the files in the folder:

    nnunet    NAME.npz with `probabilities` (K, z, y, x), and NAME.pkl next to it
    npz, npy  one array (K, *S) in NAME.npz (without NAME.pkl) or NAME.npy
    nifti     NAME.nii.gz with the classes last (4-D), such as NAME_probs.nii.gz of `segcal predict`
              (the map of a single region: NAME_probs.nii.gz, also 3-D)
    classes   NAME_class0.nii.gz, NAME_class1.nii.gz, … (or NAME_0, NAME_1; one 3-D file per class)

The number of a 3-D file is a class only if a case has classes 0, 1, …, no label map has the name of
the file, number included, and a case may have several maps: in a folder with case_000 and case_098,
numbers are those of cases.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError, list_folder
from segcal.core.probabilities import looks_like_labels
from segcal.data import (
    MAX_VOLUME_BYTES,
    Header,
    check_same_grid,
    find_label,
    nifti_name,
    npz_headers,
    open_npy,
    read_header,
    read_npz,
    read_voxels,
)
from segcal.predictions.nnunet_geometry import NnunetGeometry, read_geometry, reorient_array

Format: TypeAlias = Literal["nnunet", "npz", "npy", "nifti", "classes"]
AxisOrder: TypeAlias = Literal["zyx", "xyz"]

NNUNET_KEYS = ("probabilities", "softmax")
_KEYS = ("probs", "logits", "arr_0")
_CLASS_FILE = re.compile(r"^(.+?)[_.-](class)?(?:probs?|label|c|p)?[_-]?(\d{1,4})$", re.IGNORECASE)
_NEEDS_PROBS = (
    "give floating-point probabilities (of nnU-Net: nnUNetv2_predict --save_probabilities)"
)
# Endings of file names that are not part of the case's name.
_SUFFIX = re.compile(r"_(?:probs|probabilities|softmax|logits)$", re.IGNORECASE)


@dataclass(frozen=True)
class SoftmaxFile:
    """The prediction of one case.

    Attributes:
        name: name of the case.
        format: see the module.
        paths: its file, or one per class.
        shape: (K, *S) as stored.
        key: name of the array in an .npz file.
        dtype: dtype of the stored values.
        axes: "zyx" (the array order of SimpleITK and nnU-Net) or "xyz" (that of nibabel).
        geometry: content of nnU-Net's .pkl file.
    """

    name: str
    format: Format
    paths: tuple[Path, ...]
    shape: tuple[int, ...]
    key: str = ""
    dtype: str = "float32"
    axes: AxisOrder = "zyx"
    geometry: NnunetGeometry | None = None

    @property
    def path(self) -> Path:
        """The file that messages name."""
        return self.paths[0]

    @property
    def sidecars(self) -> tuple[Path, ...]:
        """nnU-Net's .pkl file, if there is one."""
        properties = self.path.with_suffix(".pkl")
        return (properties,) if self.format == "nnunet" and properties.is_file() else ()

    @property
    def num_classes(self) -> int:
        return self.shape[0]

    def header(self) -> Header | None:
        """The position of its voxels; None if the files do not contain it."""
        if self.format in ("nifti", "classes"):
            return read_header(self.path)
        if self.geometry is None or self.geometry.affine is None:
            return None
        z, y, x = self.grid_shape
        return Header(
            self.path.with_suffix(".pkl"), (x, y, z), self.geometry.affine, self.geometry.spacing_mm
        )

    @property
    def spacing_mm(self) -> tuple[float, ...] | None:
        """The voxel size along the axes of `read`; None if the files do not contain it."""
        found = self.geometry or self.header()
        return None if found is None else found.spacing_mm[-len(self.grid_shape) :]

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """The spatial shape that `read` returns, (Z, Y, X) where the order is known."""
        return self.reorder(np.broadcast_to(np.False_, (1, *self.shape[1:]))).shape[1:]

    def read(self) -> NDArray[np.floating]:
        """(K, Z, Y, X), or (K, *S) as stored; .npy files are memory-mapped."""
        if self.format in ("nifti", "classes"):
            return _read_nifti(self)
        array = open_npy(self.path) if self.format == "npy" else read_npz(self.path, self.key)
        return self.reorder(array)

    def reorder(self, array: NDArray[Any], *, to_stored: bool = False) -> NDArray[Any]:
        """An array with the axes of a numpy file, with those of `read`; or back."""
        if self.axes == "xyz":
            return array.transpose(0, *range(array.ndim - 1, 0, -1))
        return reorient_array(array, self.geometry, to_file=not to_stored)


@contextmanager
def name_file_in_errors(path: Path) -> Iterator[None]:
    """Put `path` in front of a ValueError or TypeError about its content."""
    try:
        yield
    except PathError:
        raise
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error


def stem_of(path: Path) -> str:
    """The name of a file without .nii.gz, .npz and the like."""
    return nifti_name(path) or path.stem


def find_softmax(
    folder: Path, labels: Mapping[str, Path] = MappingProxyType({}), *, one_map: bool = False
) -> dict[str, SoftmaxFile]:
    """Every case of a folder, by name, in name order; only headers are read.

    `labels` are label maps by name: a file NAME_000 for which there is one is a case, not a class.
    With `one_map`, every case is known to have one map: numbers are those of cases.
    """
    files = [path for path in list_folder(folder, "--probs or --logits") if path.is_file()]
    npz = [path for path in files if path.suffix.lower() == ".npz"]
    npy = [path for path in files if path.suffix.lower() == ".npy"]
    if npz and npy:
        problem = f"contains .npz and .npy files ({npz[0].name}, {npy[0].name})"
        raise PathError(folder, problem, "keep files of one format per folder")
    found = [_describe_npz(path) for path in npz] + [_describe_npy(path) for path in npy]
    found = found or _describe_nifti([p for p in files if nifti_name(p)], labels, one_map)
    if not found:
        per_class = "one .nii.gz per class (NAME_class0.nii.gz, …)"
        remedy = f"give a folder with .npz, .npy or 4-D .nii.gz files, or {per_class}"
        raise PathError(folder, "contains no probabilities", remedy)
    by_path = {file.path: file for file in found}
    cases = unique_by_name((file.name, file.path) for file in found)
    return {name: by_path[path] for name, path in sorted(cases.items())}


def unique_by_name(files: Iterable[tuple[str, Path]]) -> dict[str, Path]:
    """The file of each case; a PathError if a case has two."""
    out: dict[str, Path] = {}
    for name, path in files:
        if name in out:
            problem = f"has two files for case {name}: {out[name].name} and {path.name}"
            raise PathError(path.parent, problem, "remove one")
        out[name] = path
    return out


def _case_of(path: Path) -> str:
    """The case that a file of probabilities belongs to."""
    return _SUFFIX.sub("", stem_of(path))


# numpy files


def _check_array(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if dtype.kind != "f" or not 3 <= len(shape) <= 4 or min(shape) < 1:
        remedy = "give floating-point probabilities (K, *S) with the classes first, in 2-D or 3-D"
        raise PathError(path, f"contains an array of {dtype} of shape {shape}", remedy)
    if int(np.prod(shape, dtype=object)) * dtype.itemsize > MAX_VOLUME_BYTES:
        raise PathError(path, f"contains an array of shape {shape}, too large", "split the case")


def _describe_npy(path: Path) -> SoftmaxFile:
    array = open_npy(path)
    _check_array(path, array.shape, array.dtype)
    return SoftmaxFile(_case_of(path), "npy", (path,), array.shape, dtype=array.dtype.name)


def _describe_npz(path: Path) -> SoftmaxFile:
    arrays = npz_headers(path)
    key = next((k for k in (*NNUNET_KEYS, *_KEYS) if k in arrays), None)
    if key is None and len(arrays) == 1:
        key = next(iter(arrays))
    if key is None:
        names = ", ".join(sorted(arrays)) or "no array"
        remedy = "give one array, named probabilities, probs or logits"
        raise PathError(path, f"contains {names}", remedy)
    shape, dtype = arrays[key]
    _check_array(path, shape, dtype)
    properties = path.with_suffix(".pkl")
    if key not in NNUNET_KEYS or not properties.is_file():
        # Other programs use nnU-Net's keys too: without its .pkl the axis order is unknown.
        return SoftmaxFile(_case_of(path), "npz", (path,), shape, key, dtype.name)
    geometry = read_geometry(properties, shape[1:])
    return SoftmaxFile(_case_of(path), "nnunet", (path,), shape, key, dtype.name, geometry=geometry)


# NIfTI files


def _describe_nifti(
    files: list[Path], labels: Mapping[str, Path], one_map: bool
) -> list[SoftmaxFile]:
    """4-D files are cases, or else NAME_probs, or else those of one class each, or else all."""
    headers = {path: read_header(path) for path in files}
    four_d = [path for path, h in headers.items() if h.channels > 1]
    cases = four_d or [path for path in files if _SUFFIX.search(stem_of(path))]
    by_case = {} if cases or one_map else _class_files(files, labels)
    if by_case:
        return [_one_per_class(case, by_class, headers) for case, by_class in by_case.items()]
    return [
        SoftmaxFile(
            _case_of(path), "nifti", (path,), (headers[path].channels, *headers[path].shape)
        )
        for path in cases or files
    ]


def _class_files(files: list[Path], labels: Mapping[str, Path]) -> dict[str, dict[int, Path]]:
    """The files of the classes of each case; empty if numbers are those of cases."""
    numbered = [(m, path) for path in files if (m := _CLASS_FILE.match(stem_of(path)))]
    unique_by_name((f"{m[1]}, class {int(m[3])}", path) for m, path in numbered)
    groups: dict[str, dict[int, Path]] = defaultdict(dict)
    for match, path in numbered:
        groups[match[1]][int(match[3])] = path
    for match, path in numbered:
        if find_label(labels, stem_of(path)) is not None:
            groups.pop(match[1], None)
    stated = any(match[2] for match, _ in numbered)
    return groups if stated or any(map(_is_complete, groups.values())) else {}


def _is_complete(by_class: dict[int, Path]) -> bool:
    return len(by_class) > 1 and sorted(by_class) == list(range(len(by_class)))


def _one_per_class(
    name: str, by_class: dict[int, Path], headers: dict[Path, Header]
) -> SoftmaxFile:
    ordered = tuple(by_class[k] for k in sorted(by_class))
    if not _is_complete(by_class):
        problem = f"case {name} has files of class {', '.join(map(str, sorted(by_class)))} only"
        remedy = "give one file for every class from 0 on, or a 4-D file with the classes last"
        raise PathError(ordered[0], problem, remedy)
    for path in ordered[1:]:
        check_same_grid(headers[path], headers[ordered[0]])
    return SoftmaxFile(name, "classes", ordered, (len(ordered), *headers[ordered[0]].shape))


def _read_nifti(file: SoftmaxFile) -> NDArray[Any]:
    parts = [read_voxels(path)[0] for path in file.paths]
    array = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if array.dtype.kind != "f":
        problem = f"contains {array.dtype} values, like a label map or an image"
        raise PathError(file.path, problem, _NEEDS_PROBS)
    return array


def check_one_map(file: SoftmaxFile) -> None:
    """Raise a PathError if the only map of a case is a label map or an image."""
    values = file.read()
    if looks_like_labels(values):
        problem = f"contains whole numbers up to {values.max():g}, like a label map or an image"
        raise PathError(file.path, problem, _NEEDS_PROBS)
