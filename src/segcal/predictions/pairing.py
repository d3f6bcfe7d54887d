"""Predictions beside their labels and images: matched by name, checked, read one at a time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.core.checks import check_choice
from segcal.core.errors import PathError, list_folder
from segcal.data.formats.nifti import Header, check_same_grid, read_header, read_image, read_labels
from segcal.predictions.softmax_files import (
    SoftmaxFile,
    find_softmax,
    is_nifti,
    refuse_twins,
    stem_of,
)

AXES = ("auto", "zyx", "xyz")
# What labels of voxels that do not count become; `segcal.metrics` and `segcal.posthoc` know it.
IGNORED = -100


@dataclass(frozen=True)
class Loaded:
    """One case in memory: `values` (K, *S) as given, `target` (*S), `image` (C, *S) or None."""

    name: str
    values: NDArray[np.floating]
    target: NDArray[np.int32]
    spacing_mm: tuple[float, ...]
    image: NDArray[np.floating] | None


@dataclass(frozen=True)
class Pair:
    """The files of one case, checked against each other by shape and place."""

    softmax: SoftmaxFile
    label: Path
    images: tuple[Path, ...] = ()
    ignore_label: int | None = None

    @property
    def name(self) -> str:
        """Of the case."""
        return self.softmax.name

    def load(self) -> Loaded:
        """Read the case; a problem names the file."""
        target, spacing = self._read_target()
        values = as_volume(self.softmax.read(), target.ndim)
        k = self.softmax.num_classes
        ignored = np.zeros(target.shape, np.bool_)
        if self.ignore_label is not None:
            ignored = target == self.ignore_label
        strange = np.unique(target[((target >= k) | (target < 0)) & ~ignored])
        if len(strange):
            shown = ", ".join(map(str, strange[:5].tolist()))
            raise PathError(
                self.label,
                f"holds label {shown}, but {self.softmax.path.name} has {k} classes (0 to {k - 1})",
                "give probabilities of every class, or say --ignore-label",
            )
        labels = target.astype(np.int32)
        labels[ignored] = IGNORED
        image = read_channels(self.images) if self.images else None
        return Loaded(self.name, values, labels, spacing, image)

    @property
    def has_spacing(self) -> bool:
        """Whether a file says how large a voxel is; else it counts as 1 mm."""
        return is_nifti(self.label) or self.softmax.header() is not None

    def _read_target(self) -> tuple[NDArray[Any], tuple[float, ...]]:
        if is_nifti(self.label):
            labels, header = read_labels(self.label)
            return labels, header.spacing_mm
        array = _open_labels(self.label)
        own = self.softmax.header()
        spacing = own.spacing_mm if own is not None else (1.0, 1.0, 1.0)
        return np.array(array), spacing[-array.ndim :]


def read_channels(paths: Sequence[Path]) -> NDArray[np.floating]:
    """The image (C, Z, Y, X) of a case, all its channels."""
    return np.concatenate([read_image(path)[0] for path in paths])


def _open_labels(path: Path) -> NDArray[Any]:
    """Labels in an .npy file, mapped."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise PathError(path, "is damaged or not an array file", "write it again") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
        raise PathError(path, "does not hold integer labels", "write labels as integers")
    return array


def as_volume(values: NDArray[Any], dims: int) -> NDArray[Any]:
    """(K, *S); a plane becomes a volume of one slice where `dims` is 3."""
    return values[:, None] if values.ndim - 1 < dims else values


@dataclass(frozen=True)
class Pairs:
    """All cases of one network. `unused` are labels that have no prediction."""

    folder: Path
    pairs: tuple[Pair, ...]
    unused: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        """K, the same in every case."""
        return self.pairs[0].softmax.num_classes

    @property
    def axes(self) -> str:
        """The order in which plain arrays are read, "zyx" or "xyz"."""
        return self.pairs[0].softmax.axes

    @property
    def names(self) -> list[str]:
        """Of the cases, in order."""
        return [pair.name for pair in self.pairs]

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.pairs)


def find_pairs(
    folder: Path,
    labels: Path,
    images: Path | None = None,
    *,
    axes: str = "auto",
    ignore_label: int | None = None,
) -> Pairs:
    """Match predictions with labels (and images) by name and check shapes and places.

    No voxel is read, but every header is: what does not fit is said before any work.

    Args:
        folder: predictions, in any form of `segcal.predictions.softmax_files`.
        labels: NIfTI label maps (or .npy arrays) named as the cases.
        images: NIfTI images, NAME.nii.gz or nnU-Net's NAME_0000.nii.gz.
        axes: order of the axes of plain arrays, "zyx" or "xyz"; "auto" tells by the shapes.
        ignore_label: label of voxels that do not count.
    """
    check_choice("axes", axes, AXES)
    found = find_softmax(folder)
    by_name: dict[str, Path] = {}
    for path in list_folder(labels, "--labels"):
        if is_nifti(path) or path.suffix == ".npy":
            refuse_twins(by_name.get(stem_of(path)), path)
            by_name[stem_of(path)] = path
    without = [name for name in found if name not in by_name]
    if without:
        raise PathError(
            labels,
            f"has no label for {_listed(without)} of {folder}",
            "give every prediction its label map, NAME.nii.gz",
        )
    _check_classes(list(found.values()))
    headers = {name: read_header(by_name[name]) for name in found if is_nifti(by_name[name])}
    if axes != "auto" and not headers:
        raise PathError(
            labels,
            "holds labels in plain arrays, which lie as the predictions do",
            "leave out --axes, or give NIfTI labels",
        )
    files = arrange(folder, found, headers, axes)
    channels = find_images(images, found) if images else {}
    pairs = []
    for name, file in files.items():
        check_place(file, by_name[name], headers.get(name))
        pictures = channels.get(name, ())
        for path in pictures if name in headers else ():
            check_same_grid(read_header(path), headers[name])
        pairs.append(Pair(file, by_name[name], pictures, ignore_label))
    unused = tuple(sorted(set(by_name) - set(found)))
    return Pairs(folder, tuple(pairs), unused)


def _listed(names: Sequence[str], limit: int = 5) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def _check_classes(files: Sequence[SoftmaxFile]) -> None:
    first = files[0]
    for file in files:
        if file.num_classes != first.num_classes:
            raise PathError(
                file.path,
                f"has {file.num_classes} classes but {first.path.name} has {first.num_classes}",
                "all cases must come from one network",
            )


def arrange(
    folder: Path, found: dict[str, SoftmaxFile], headers: dict[str, Header], axes: str
) -> dict[str, SoftmaxFile]:
    """Plain arrays with their axes in the order that fits the labels' (or images') headers.

    All of a folder have one order, and one case whose shape tells is enough.
    """
    plain = {n: f for n, f in found.items() if f.form in ("npz", "npy") and n in headers}
    if not plain:
        return found
    if axes == "auto":
        fits = {
            order: all(_fits(f.with_axes(order), headers[n]) for n, f in plain.items())
            for order in ("zyx", "xyz")
        }
        if fits["zyx"] and fits["xyz"]:
            raise PathError(
                folder,
                "holds arrays whose shapes fit in both axis orders",
                "say --axes zyx (as SimpleITK and nnU-Net order arrays) or --axes xyz (as nibabel)",
            )
        axes = "xyz" if fits["xyz"] else "zyx"
    return {n: f.with_axes(axes) if n in plain else f for n, f in found.items()}


def _fits(file: SoftmaxFile, header: Header) -> bool:
    return _as_3d(file.grid_shape) == header.shape


def _as_3d(space: tuple[int, ...]) -> tuple[int, ...]:
    return (1, *space) if len(space) == 2 else space


def check_place(file: SoftmaxFile, label: Path, header: Header | None) -> None:
    """Refuse a label map of another shape, or elsewhere, than the prediction."""
    if header is None:  # labels in a plain array
        array = _open_labels(label)
        if array.shape != file.grid_shape:
            raise _wrong_shape(file, label, array.shape)
        return
    if not _fits(file, header):
        raise _wrong_shape(file, label, header.shape)
    own = file.header()
    if own is None:
        return
    if "spacing" in header.notes or "spacing" in own.notes:
        # The affine is a placeholder, which every library reads in its own way.
        own = Header(**{**vars(own), "affine": header.affine})
    check_same_grid(own, header)


def _wrong_shape(file: SoftmaxFile, label: Path, shape: tuple[int, ...]) -> PathError:
    return PathError(
        file.path,
        f"has shape {file.grid_shape} for {file.num_classes} classes, but {label.name} has {shape}",
        "predictions and labels must be on one grid",
    )


def find_images(folder: Path, names: Iterable[str]) -> dict[str, tuple[Path, ...]]:
    """The files of every case: NAME.nii.gz, or its channels NAME_0000.nii.gz, …"""
    own: dict[str, Path] = {}
    channels: dict[str, list[Path]] = defaultdict(list)
    for path in list_folder(folder, "--images"):
        if is_nifti(path):
            stem = stem_of(path)
            refuse_twins(own.get(stem), path)
            own[stem] = path
            if re.fullmatch(r"_\d{4}", stem[-5:]):
                channels[stem[:-5]].append(path)
    out = {}
    for name in names:
        if name not in own and name not in channels:
            raise PathError(
                folder, f"has no image for {name}", "give NAME.nii.gz or NAME_0000.nii.gz"
            )
        out[name] = (own[name],) if name in own else tuple(channels[name])
    return out
