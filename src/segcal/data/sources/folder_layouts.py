"""The layouts of a folder of images and labels."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from segcal.core.errors import PathError, list_folder
from segcal.data.formats import (
    CONTAINERS,
    describe_content,
    files_of,
    find_label,
    is_label_name,
    scan_name,
)
from segcal.data.sources.base import ARRAYS, UNSUPPORTED, FileCase, SourceCase, collect

_FOLDERS = (
    ("imagesTr", "labelsTr"),
    ("images", "labels"),
    ("images", "masks"),
    ("images", "raters"),
)
_RATER = re.compile(r"(.+)_rater(\w+)")
# The folder of masks, one per class, that TotalSegmentator writes.
_MASKS = "segmentations"


def list_folder_cases(
    folder: Path, channels: int, arrays: tuple[str, str]
) -> Iterator[SourceCase | PathError]:
    """The cases of a folder; `channels` is the number that dataset.json names, 0 if none."""
    entries = list_folder(folder)
    pair = next((p for p in _FOLDERS if {folder / p[0], folder / p[1]} <= set(entries)), None)
    if pair:
        return paired_cases(folder / pair[0], folder / pair[1], channels, arrays)
    if patients := [path for path in entries if (path / _MASKS).is_dir()]:
        return collect(patients, _with_masks)
    return paired_cases(folder, folder, channels, arrays)


def paired_cases(
    images: Path, labels: Path, channels: int, arrays: tuple[str, str] = ARRAYS
) -> Iterator[SourceCase | PathError]:
    """The cases of two folders, or of one with NAME and NAME_seg, paired by name."""
    scans, problems = _scans(images)
    maps, twice = _scans(labels)
    if images == labels:
        maps = {name: path for name, path in scans.items() if is_label_name(name)}
        scans = {name: path for name, path in scans.items() if name not in maps}
        usable = bool(maps) or any(p.suffix.lower() in CONTAINERS for p in scans.values())
    else:
        known = {file for path in scans.values() if path.is_file() for file in files_of(path)}
        others = [path for path in list_folder(images) if path not in known]
        problems += twice + [PathError(p, *UNSUPPORTED) for p in others if not scan_name(p)]
        usable = bool(scans) or not others
    if not usable:
        raise _no_pairs(images, one_folder=images == labels)
    yield from problems
    if readers := _maps_by_reader(labels, maps):
        maps = {}
    files = _by_case(scans, maps)
    masks = _masks_by_case(labels, maps, files)
    # One file may hold all channels (4-D); several files must be complete.
    highest = max([max(paths) for paths in files.values()], default=0)
    if highest > 0:
        highest = max(highest, channels - 1)
    used: set[Path] = set()

    def find(item: tuple[str, dict[int, Path]]) -> list[SourceCase]:
        name, paths = item
        first = next(iter(paths.values()))
        whole = first if first.suffix.lower() in CONTAINERS else None
        label = find_label(maps, name) or masks.get(name) or whole
        raters = {reader: drawn.get(name) for reader, drawn in readers.items()}
        if drawn_by := [path for path in raters.values() if path]:
            label = {}
            used.update(drawn_by)
        used.update([label] if isinstance(label, Path) else (label or {}).values())
        missing = [channel for channel in range(highest + 1) if channel not in paths]
        if missing:
            problem = f"is missing (channel {missing[0]} of {highest + 1})"
            remedy = "complete the case (NAME_0000, NAME_0001, …) or remove it"
            ending = first.name[len(scan_name(first) or "") :]
            raise PathError(images / f"{name}_{missing[0]:04d}{ending}", problem, remedy)
        if label is None:
            remedy = "complete the download or remove the case"
            raise PathError(labels / f"{name}.nii.gz", f"is missing (the mask of {name})", remedy)
        ordered = tuple(paths[channel] for channel in sorted(paths))
        return [FileCase(name, name, ordered, label, arrays=arrays, raters=raters)]

    yield from collect(files.items(), find)
    for path in (*maps.values(), *(p for drawn in readers.values() for p in drawn.values())):
        if path not in used:
            problem = "has no image of that name, or is a second label map"
            yield PathError(path, problem, "complete the download or remove it")


def _no_pairs(folder: Path, one_folder: bool) -> PathError:
    """The error that a folder holds no pairs, with what is expected."""
    problem, parent = "holds no images with labels", folder.parent
    if one_folder and any(folder.name in p and (parent / p[1]).is_dir() for p in _FOLDERS):
        remedy = f"give {parent} to --source"
        return PathError(folder, f"{problem}, but is a part of a data set", remedy)
    expected = "expected images/ and labels/, imagesTr/ and labelsTr/, or NAME and NAME_seg"
    return PathError(folder, problem, f"{expected}; {describe_content(folder)}")


def class_names(cases: list[SourceCase | PathError]) -> dict[int, str]:
    """The classes of cases with one mask per class, numbered in the order of their names."""
    labels = [case.label for case in cases if isinstance(case, FileCase)]
    names = {name for label in labels if isinstance(label, Mapping) for name in label}
    return dict(enumerate(["background", *sorted(names)])) if names else {}


def _scans(folder: Path) -> tuple[dict[str, Path], list[PathError]]:
    """The supported files (and folders of slices) by name, and second files of a name."""
    found: dict[str, Path] = {}
    problems = []
    for path in list_folder(folder):
        name = scan_name(path)
        if name in found:
            problems.append(PathError(path, f"is a second file named {name}", "keep one of them"))
        elif name:
            found[name] = path
    return found, problems


def _by_case(scans: Mapping[str, Path], maps: Mapping[str, Path]) -> dict[str, dict[int, Path]]:
    """Case name → image file of each channel.

    Endings such as `_0001` are channels only if every image has one and no label map has it too:
    NAME_0001 can be the name of a case.
    """
    endings = {name: re.fullmatch(r"(.+)_(\d{4})", name) for name in scans}
    split = all(endings.values()) and any(e and e[2] == "0000" for e in endings.values())
    split = split and not any(find_label(maps, name) for name in scans)
    files: dict[str, dict[int, Path]] = {}
    for name, path in scans.items():
        ending = endings[name] if split else None
        case, channel = (ending[1], int(ending[2])) if ending else (name, 0)
        files.setdefault(case, {})[channel] = path
    return files


def _maps_by_reader(labels: Path, maps: Mapping[str, Path]) -> dict[str, dict[str, Path]]:
    """Reader → case → label map (raters/READER/NAME or labels/NAME_raterREADER), or nothing."""
    if labels.name == "raters":
        return {path.name: _scans(path)[0] for path in list_folder(labels) if path.is_dir()}
    readers: dict[str, dict[str, Path]] = {}
    for match, path in ((_RATER.fullmatch(name), path) for name, path in maps.items()):
        if match is None:
            return {}
        readers.setdefault(match[2], {})[match[1]] = path
    return readers


def _masks_by_case(
    labels: Path, maps: Mapping[str, Path], cases: Mapping[str, object]
) -> dict[str, dict[str, Path]]:
    """Case → class → mask: NAME/CLASS.nii.gz or NAME_CLASS.nii.gz, if no case has a label map."""
    masks: dict[str, dict[str, Path]] = {}
    if any(find_label(maps, name) for name in cases):
        return masks
    for name, path in maps.items():
        cuts = [i for i, letter in enumerate(name) if letter == "_" and name[:i] in cases]
        if cuts:
            masks.setdefault(name[: cuts[-1]], {})[name[cuts[-1] + 1 :]] = path
    folders = [labels / name for name in cases if (labels / name).is_dir()]
    return masks | {path.name: _scans(path)[0] for path in folders if path not in maps.values()}


def _with_masks(folder: Path) -> list[SourceCase]:
    """PATIENT/ct.nii.gz (or another name) and PATIENT/segmentations/CLASS.nii.gz."""
    images, masks = _scans(folder)[0], _scans(folder / _MASKS)[0]
    if len(images) != 1 or not masks:
        problem = f"has {len(images)} images and {len(masks)} masks in {_MASKS}/"
        raise PathError(folder, problem, f"expected one image, and one mask per class in {_MASKS}/")
    return [FileCase(folder.name, folder.name, tuple(images.values()), masks)]
