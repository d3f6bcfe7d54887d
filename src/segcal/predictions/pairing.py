"""Predictions with their labels and images: matched by name, checked, read one case at a time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from segcal.core.checks import check_choice
from segcal.core.errors import PathError, list_folder, name_beside
from segcal.core.files import file_sha256
from segcal.core.heads import Heads
from segcal.data import (
    Header,
    check_same_grid,
    find_label,
    read_dataset_json,
    read_header,
    read_image,
    read_labels,
    scan_name,
)
from segcal.predictions.softmax_files import (
    AxisOrder,
    SoftmaxFile,
    check_one_map,
    find_softmax,
    unique_by_name,
)

Axes: TypeAlias = Literal["auto", "zyx", "xyz"]
# The label that ignored voxels get; the default `ignore_index` of metrics and calibrators.
IGNORED = -100


@dataclass(frozen=True)
class LoadedCase:
    """One case in memory: `values` (K, *S) as given, `target` (*S), `image` (C, *S) or None.

    `target` is int16, which halves its memory, unless a label needs int32.
    """

    name: str
    values: NDArray[np.floating]
    target: NDArray[np.signedinteger]
    spacing_mm: tuple[float, ...]
    image: NDArray[np.floating] | None


@dataclass(frozen=True)
class Pair:
    """The files of one case, whose shapes and positions match; `heads` if it has sigmoid heads."""

    softmax: SoftmaxFile
    label: Path
    images: tuple[Path, ...] = ()
    ignore_label: int | None = None
    heads: Heads = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.softmax.name

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file of the case, with nnU-Net's .pkl file."""
        return (*self.softmax.paths, *self.softmax.sidecars, self.label, *self.images)

    def load(self) -> LoadedCase:
        """Read the case; errors name the file."""
        target, spacing = self._read_target()
        values = self.softmax.read()
        if values.ndim == target.ndim:  # a plane, where labels are a volume of one slice
            values = values[:, None]
        k = self.softmax.num_classes
        ignored = np.zeros(target.shape, np.bool_)
        if self.ignore_label is not None:
            ignored = target == self.ignore_label
        unknown = target < 0 if self.heads else (target >= k) | (target < 0)
        invalid = np.unique(target[unknown & ~ignored])
        if len(invalid):
            shown = ", ".join(map(str, invalid[:5].tolist()))
            problem = f"contains label{'s' * (len(invalid) > 1)} {shown}, but"
            problem += f" {name_beside(self.softmax.path, self.label)} has {k} classes"
            remedy = (
                "labels must be numbers of classes, background included; set --ignore-label only "
                "for voxels that do not count, --heads for overlapping regions"
            )
            raise PathError(self.label, f"{problem} (0 to {k - 1})", remedy)
        small = target.size == 0 or target.max() < 1 << 15
        dtype: type[np.signedinteger] = np.int16 if small else np.int32
        labels = target.astype(dtype)
        labels[ignored] = IGNORED
        image = np.concatenate([read_image(p)[0] for p in self.images]) if self.images else None
        return LoadedCase(self.name, values, labels, spacing, image)

    @property
    def has_spacing(self) -> bool:
        """Whether a file contains the voxel size; otherwise 1 mm is assumed."""
        known = self.softmax.header() is not None
        return known or read_header(self.label, "label").has_geometry

    def _read_target(self) -> tuple[NDArray[Any], tuple[float, ...]]:
        labels, header = read_labels(self.label)
        own = self.softmax.header()
        if not header.has_geometry and own is not None:
            return labels, own.spacing_mm
        return labels, header.spacing_mm


@dataclass(frozen=True)
class Pairs:
    """All cases of one network. `unused` are labels without a prediction."""

    folder: Path
    pairs: tuple[Pair, ...]
    unused: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        """K, the same in every case."""
        return self.pairs[0].softmax.num_classes

    @property
    def heads(self) -> Heads:
        """The regions of sigmoid heads, in the order of the channels; empty for a softmax."""
        return self.pairs[0].heads

    @property
    def names(self) -> list[str]:
        return [pair.name for pair in self.pairs]

    def identical(self) -> list[tuple[str, str]]:
        """Names of two cases each whose predictions are the same files: probably one scan."""
        alike = defaultdict(list)
        for pair in self.pairs:  # most files differ in this block, so few are read completely
            alike[tuple(map(_middle, pair.softmax.paths))].append(pair)
        first: dict[tuple[str, ...], str] = {}
        out = []
        for pair in (pair for pairs in alike.values() if len(pairs) > 1 for pair in pairs):
            other = first.setdefault(tuple(map(file_sha256, pair.softmax.paths)), pair.name)
            if other != pair.name:
                out.append((other, pair.name))
        return out

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.pairs)


def _middle(path: Path) -> tuple[int, bytes]:
    """The size of a file, and 4 KB from its middle."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        stream.seek(size // 2)
        return size, stream.read(4096)


def find_pairs(
    folder: Path,
    labels: Path,
    images: Path | None = None,
    *,
    axes: Axes = "auto",
    ignore_label: int | None = None,
    heads: Heads | None = None,
) -> Pairs:
    """Match predictions with labels (and images) by name and check shapes and positions.

    Only headers are read, so that problems are reported before any work starts.

    Args:
        folder: predictions in any format of `segcal.predictions.softmax_files`.
        labels: label maps of any supported format, one per case: NAME, or NAME_gt, NAME_seg, ….
        images: images of any supported format, NAME.nii.gz or nnU-Net's NAME_0000.nii.gz.
        axes: axis order of plain arrays, "zyx" or "xyz"; "auto" derives it from the shapes.
        ignore_label: label of voxels to ignore.
        heads: regions of sigmoid heads; by default those of nnU-Net's dataset.json beside the
            predictions, if it has regions.
    """
    check_choice("axes", axes, get_args(Axes))
    # An .npz file is a prediction: nnU-Net writes it beside its label map.
    maps = _by_name([p for p in list_folder(labels, "--labels") if p.suffix.lower() != ".npz"])
    found = find_softmax(folder, maps)
    first = next(iter(found.values()))
    heads = _find_heads(folder, first, heads)
    label_of = {name: path for name in found if (path := find_label(maps, name))}
    missing = [name for name in found if name not in label_of]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if missing[5:] else "")
        remedy = "give a label map NAME.nii.gz for every prediction"
        if len(missing) == len(found) and any(path.is_dir() for path in labels.iterdir()):
            remedy += ", or a folder in this one (of several readers, give one)"
        raise PathError(labels, f"has no label for {shown} of {folder}", remedy)
    every = {name: read_header(label_of[name], "label") for name in found}
    headers = {name: header for name, header in every.items() if header.has_geometry}
    if axes != "auto" and not headers:
        problem = "contains labels in plain arrays, which have the axis order of the predictions"
        raise PathError(labels, problem, "leave out --axes, or give NIfTI labels")
    files = _with_axis_order(folder, found, headers, axes)
    channels = _find_images(images, found) if images else {}
    pairs = []
    for name, file in files.items():
        check_same_place(file, label_of[name], every[name])
        if file.num_classes != first.num_classes:
            counts = f"{file.num_classes} classes but {first.path.name} has {first.num_classes}"
            raise PathError(file.path, f"has {counts}", "all cases must come from one network")
        case_images = channels.get(name, ())
        for path in case_images if name in headers else ():
            check_same_grid(read_header(path), headers[name])
        pairs.append(Pair(file, label_of[name], case_images, ignore_label, heads))
    # An image NAME beside its label map NAME_gt is no label.
    used = set(label_of.values())
    unused = tuple(sorted(n for n, path in maps.items() if path not in used and n not in found))
    return Pairs(folder, tuple(pairs), unused)


def _find_heads(folder: Path, file: SoftmaxFile, given: Heads | None) -> Heads:
    """The heads given, else the regions of nnU-Net's dataset.json in the folder, else none."""
    heads = given or read_dataset_json(folder / "dataset.json").regions
    if len(heads) not in (0, file.num_classes):
        source = "--heads" if given else "dataset.json"
        regions = f"{len(heads)} regions ({', '.join(heads)})"
        problem = f"has {file.num_classes} maps, but {source} names {regions}"
        raise PathError(file.path, problem, "set --heads NAME=LABEL+LABEL,… with one name per map")
    if not heads and file.num_classes < 2:
        check_one_map(file)
        remedy = "set --heads NAME=LABEL if it is the probability of one region"
        raise PathError(file.path, "has one map only", remedy)
    return heads


def _with_axis_order(
    folder: Path, found: dict[str, SoftmaxFile], headers: dict[str, Header], axes: Axes
) -> dict[str, SoftmaxFile]:
    """Plain arrays in the axis order that matches the labels; all of a folder have one order."""
    plain = {n: f for n, f in found.items() if f.format in ("npz", "npy") and n in headers}
    if not plain:
        return found
    order: AxisOrder = "zyx" if axes == "auto" else axes
    if axes == "auto":
        zyx, xyz = (
            all(_has_shape(replace(f, axes=o), headers[n]) for n, f in plain.items())
            for o in get_args(AxisOrder)
        )
        if zyx and xyz:
            problem = "contains arrays whose shapes match the labels in both axis orders"
            remedy = "set --axes zyx (array order of SimpleITK and nnU-Net) or --axes xyz (nibabel)"
            raise PathError(folder, problem, remedy)
        order = "xyz" if xyz else "zyx"
    return {n: replace(f, axes=order) if n in plain else f for n, f in found.items()}


def _has_shape(file: SoftmaxFile, header: Header) -> bool:
    space = file.grid_shape
    return ((1, *space) if len(space) == 2 else space) == header.shape


def check_same_place(file: SoftmaxFile, label: Path, header: Header) -> None:
    """Raise a PathError if a label map differs from the prediction in shape or position.

    `header` is that of the label map.
    """
    if not _has_shape(file, header):
        own_shape = f"{file.grid_shape} for {file.num_classes} classes"
        order = " (z, y, x)" if header.has_geometry else ""
        other = f"{name_beside(label, file.path)} has {header.shape}{order}"
        problem = f"has shape {own_shape}, but {other}"
        remedy = "both must have the same grid"
        if file.format == "nifti" and (file.num_classes, *file.grid_shape[:-1]) == header.shape:
            remedy = "its first axis holds the classes: move them to the last one"
        raise PathError(file.path, problem, remedy)
    own = file.header()
    if own is None:
        return
    if "spacing" in header.notes or "spacing" in own.notes:
        # The affine is a placeholder, which every library reads in its own way.
        own = replace(own, affine=header.affine)
    check_same_grid(own, header)


def _by_name(paths: Iterable[Path]) -> dict[str, Path]:
    return unique_by_name((name, path) for path in paths if (name := scan_name(path)))


def _find_images(folder: Path, names: Iterable[str]) -> dict[str, tuple[Path, ...]]:
    """The images of every case: NAME.nii.gz, or its channels NAME_0000.nii.gz, …"""
    files = _by_name(list_folder(folder, "--images"))
    channels: dict[str, list[Path]] = defaultdict(list)
    for stem, path in files.items():
        if re.fullmatch(r"_\d{4}", stem[-5:]):
            channels[stem[:-5]].append(path)
    out = {}
    for name in names:
        if name not in files and name not in channels:
            remedy = "give NAME.nii.gz or NAME_0000.nii.gz"
            raise PathError(folder, f"has no image for {name}", remedy)
        out[name] = (files[name],) if name in files else tuple(channels[name])
    return out


@dataclass(frozen=True)
class Unlabeled:
    """A prediction without labels; `header` has the position of its voxels, if a file has it."""

    softmax: SoftmaxFile
    images: tuple[Path, ...] = ()
    header: Header | None = None

    @property
    def name(self) -> str:
        return self.softmax.name

    @property
    def spacing_mm(self) -> tuple[float, ...] | None:
        """The voxel size along the axes of the prediction; None if no file has it."""
        if self.softmax.spacing_mm is not None or self.header is None:
            return self.softmax.spacing_mm
        return self.header.spacing_mm[-len(self.softmax.grid_shape) :]


def find_unlabeled(
    folder: Path, images: Path | None = None, *, axes: Axes = "auto", one_map: bool = False
) -> tuple[Unlabeled, ...]:
    """Every prediction of a folder, matched with images.

    Arguments are as in `find_pairs`, and `one_map` as in `find_softmax`.
    """
    check_choice("axes", axes, get_args(Axes))
    found = find_softmax(folder, one_map=one_map)
    channels = _find_images(images, found) if images else {}
    every = {name: read_header(paths[0]) for name, paths in channels.items()}
    headers = {name: header for name, header in every.items() if header.has_geometry}
    if axes == "auto" or headers:
        found = _with_axis_order(folder, found, headers, axes)
    else:
        plain = ("npz", "npy")
        found = {n: replace(f, axes=axes) if f.format in plain else f for n, f in found.items()}
    out = []
    for name, file in found.items():
        for path in channels.get(name, ()):
            check_same_place(file, path, read_header(path))
        own = file.header()
        out.append(Unlabeled(file, channels.get(name, ()), own or headers.get(name)))
    return tuple(out)


def class_names(
    folder: Path, num_classes: int, given: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Names of the classes, background first: those given, else those of nnU-Net's dataset.json
    beside the predictions, else numbers.
    """
    names = tuple(given) if given is not None else _default_names(folder, num_classes)
    if len(names) != num_classes or len(set(names)) != num_classes:
        expected = f"expected {num_classes} different names, background first"
        raise ValueError(f"--classes {','.join(names)}: {expected}")
    return names


def _default_names(folder: Path, num_classes: int) -> tuple[str, ...]:
    plain = ("background", *(f"class {k}" for k in range(1, num_classes)))
    classes = read_dataset_json(folder / "dataset.json").classes
    names = tuple(classes.get(k, plain[k]) for k in range(num_classes))
    return names if len(set(names)) == num_classes else plain
