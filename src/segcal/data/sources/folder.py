"""Any folder: images and labels paired by name, or nnU-Net's raw layout."""

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from segcal.core.checks import check_choice
from segcal.core.errors import PathError, list_folder
from segcal.data.formats.nifti import read_header
from segcal.data.info import Description
from segcal.data.intensity import CT_WINDOW, Intensity
from segcal.data.sources.base import NiftiCase, Source, SourceCase
from segcal.data.sources.dataset_json import DatasetJson, read_dataset_json
from segcal.data.sources.files import (
    collect,
    labels_without_image,
    nifti_name,
    require_nifti,
    require_nifti_name,
)

Modality = Literal["mr", "ct"]
_FOLDERS = (("imagesTr", "labelsTr"), ("images", "labels"), ("images", "raters"))
_RATER = re.compile(r"(.+)_rater(\w+)")


class FolderSource(Source):
    """Images and labels paired by name, or nnU-Net's raw layout.

    Plain: images/NAME.nii.gz and labels/NAME.nii.gz.

    nnU-Net: imagesTr/NAME_0000.nii.gz, NAME_0001.nii.gz, … (one file per channel) and
    labelsTr/NAME.nii.gz, with dataset.json.

    Several readers: raters/READER/NAME.nii.gz instead of labels/NAME.nii.gz, or
    labels/NAME_raterREADER.nii.gz. A reader may lack some cases.
    """

    name = "folder"
    layout = "images/NAME.nii.gz and labels/NAME.nii.gz, or the same in imagesTr/ and labelsTr/"
    knows_patients = False
    folder: Path

    def __init__(
        self,
        folder: Path | str,
        *,
        modality: Annotated[
            Modality | None, "mr or ct, if dataset.json does not name the channels."
        ] = None,
        window: Annotated[tuple[float, float] | None, "CT window: lower and upper value."] = None,
        classes: Annotated[str | None, "Names of labels 1, 2, …, separated by commas."] = None,
    ) -> None:
        self.folder = Path(folder)
        list_folder(self.folder)
        content = read_dataset_json(self.folder / "dataset.json")
        self._found = list(self.list_cases(content))
        self.description = Description(
            name=self.folder.resolve().name,
            channels=content.channels or _numbered_channels(self._found),
            classes=content.classes if classes is None else _named_classes(classes),
            regions=content.regions,
            intensity=_intensity(content.channels, modality, window),
        )

    def cases(self) -> Iterator[SourceCase | PathError]:
        return iter(self._found)

    def list_cases(self, content: DatasetJson) -> Iterator[SourceCase | PathError]:
        """As `cases`; `content` is that of dataset.json."""
        names = {p.name for p in list_folder(self.folder)}
        pair = next((p for p in _FOLDERS if set(p) <= names), None)
        if pair is None:
            remedy = "expected images/ and labels/ (or raters/), or imagesTr/ and labelsTr/"
            raise PathError(self.folder, "has no image and label folders", remedy)
        images, labels = self.folder / pair[0], self.folder / pair[1]
        files, problems = _files_by_case(images, labels)
        yield from problems
        # One file may hold all channels (4-D); several files must be complete.
        highest = max([max(paths) for paths in files.values()], default=0)
        if highest > 0:
            highest = max(highest, len(content.channels) - 1)

        def find(item: tuple[str, dict[int, Path]]) -> list[SourceCase]:
            name, paths = item
            missing = [channel for channel in range(highest + 1) if channel not in paths]
            if missing:
                problem = f"is missing (channel {missing[0]} of {highest + 1})"
                remedy = "complete the case (NAME_0000, NAME_0001, …) or remove it"
                raise PathError(images / f"{name}_{missing[0]:04d}.nii.gz", problem, remedy)
            ordered = tuple(paths[channel] for channel in sorted(paths))
            if readers:
                found = {reader: masks.get(name) for reader, masks in readers.items()}
                if not any(found.values()):
                    problem, remedy = f"has no label map of {name}", "add one or remove the case"
                    raise PathError(labels, problem, remedy)
                return [NiftiCase(name, name, ordered, None, raters=found)]
            label = require_nifti(labels, name, f"the mask of {name}")
            return [NiftiCase(name, name, ordered, label)]

        readers = _label_maps_by_reader(labels)
        yield from collect(files.items(), find)
        if not readers:
            yield from labels_without_image(labels, files)
        for masks in readers.values():
            for path in (path for name, path in masks.items() if name not in files):
                problem, remedy = "has no image of that name", "complete the download or remove it"
                yield PathError(path, problem, remedy)


def _files_by_case(
    images: Path, labels: Path
) -> tuple[dict[str, dict[int, Path]], list[PathError]]:
    """Case name → image file of each channel; and files that are not images or occur twice.

    Endings such as `_0001` are channels only if every image has one and no label map has it too:
    NAME_0001 can be the name of a case.
    """
    named: list[tuple[str, Path]] = []
    problems: list[PathError] = []
    for path in list_folder(images):
        try:
            named.append((require_nifti_name(path), path))
        except PathError as problem:
            problems.append(problem)
    endings = [re.fullmatch(r"(.+)_(\d{4})", name) for name, _ in named]
    label_names = {nifti_name(path) for path in list_folder(labels)}
    split = all(endings) and any(e and e[2] == "0000" for e in endings)
    split = split and not any(name in label_names for name, _ in named)
    files: dict[str, dict[int, Path]] = {}
    for ending, (name, path) in zip(endings, named, strict=True):
        case, channel = (ending[1], int(ending[2])) if split and ending else (name, 0)
        if channel in files.setdefault(case, {}):
            problems.append(PathError(path, f"is a second file named {name}", "keep one of them"))
        files[case].setdefault(channel, path)
    return files, problems


def _label_maps_by_reader(labels: Path) -> dict[str, dict[str, Path]]:
    """Reader → case name → label map; empty if each case has one label map."""
    readers: dict[str, dict[str, Path]] = {}
    if labels.name == "raters":
        for folder in filter(Path.is_dir, list_folder(labels)):
            readers[folder.name] = {n: p for p in list_folder(folder) if (n := nifti_name(p))}
        return readers
    for path in list_folder(labels):
        match = _RATER.fullmatch(nifti_name(path) or "")
        if match is None:
            return {}
        readers.setdefault(match[2], {})[match[1]] = path
    return readers


def _numbered_channels(found: Iterable[SourceCase | PathError]) -> tuple[str, ...]:
    """ "channel 0", …: as many as the first readable case has; the others must agree with it."""
    for case in found:
        if isinstance(case, NiftiCase):
            try:
                count = max(len(case.images), read_header(case.images[0]).channels)
            except PathError:
                continue  # reported when the case is read
            return tuple(f"channel {index}" for index in range(count))
    return ("channel 0",)


def _named_classes(classes: str) -> dict[int, str]:
    names = ["background", *(name.strip() for name in classes.split(","))]
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(
            "Expected argument `classes` to be different names of labels 1, 2, …, separated by "
            f"commas, but got {classes!r}."
        )
    return dict(enumerate(names))


def _intensity(
    channels: tuple[str, ...], modality: str | None, window: tuple[float, float] | None
) -> Intensity:
    """A window for CT, z-score for everything else; `modality` overrides the channel names."""
    if modality is None:
        modality = "ct" if channels and all(c.lower() == "ct" for c in channels) else "mr"
    check_choice("modality", modality, ("mr", "ct"))
    if modality == "mr":
        if window is not None:
            raise ValueError("Expected argument `window` for CT only; add --modality ct.")
        return Intensity()
    low, high = window or CT_WINDOW
    if not -math.inf < low < high < math.inf:
        raise ValueError(
            f"Expected argument `window` to be two finite values LOW < HIGH, but got {low}, {high}."
        )
    return Intensity(kind="window", low=low, high=high)
