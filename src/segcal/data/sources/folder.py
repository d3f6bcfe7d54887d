"""Any folder: images and labels paired by name, or nnU-Net's raw layout."""

import re
from collections.abc import Iterator
from pathlib import Path

from segcal.core.errors import PathError, list_folder
from segcal.data.sources.base import NiftiCase, SourceCase
from segcal.data.sources.dataset_json import DatasetJson, DescribedSource
from segcal.data.sources.files import (
    collect,
    labels_without_image,
    nifti_name,
    require_nifti,
    require_nifti_name,
)

_FOLDERS = (("imagesTr", "labelsTr"), ("images", "labels"))


class FolderSource(DescribedSource):
    """Plain: images/NAME.nii.gz and labels/NAME.nii.gz.

    nnU-Net: imagesTr/NAME_0000.nii.gz, NAME_0001.nii.gz, … (one file per channel) and
    labelsTr/NAME.nii.gz, with dataset.json.
    """

    name = "folder"
    summary = "Images and labels paired by name, or nnU-Net's raw layout."
    layout = "images/NAME.nii.gz and labels/NAME.nii.gz, or the same in imagesTr/ and labelsTr/"

    def find_cases(self, content: DatasetJson) -> Iterator[SourceCase | PathError]:
        names = {p.name for p in list_folder(self.folder)}
        pair = next((p for p in _FOLDERS if set(p) <= names), None)
        if pair is None:
            raise PathError(
                self.folder,
                "has no image and label folders",
                "expected images/ and labels/, or imagesTr/ and labelsTr/",
            )
        images, labels = self.folder / pair[0], self.folder / pair[1]
        files, problems = _files_by_case(images, labels)
        yield from problems
        # One file may hold all channels (4-D); several files must be complete.
        highest = max([max(paths) for paths in files.values()], default=0)
        if highest > 0:
            highest = max(highest, len(content.channels) - 1)

        def find(item: tuple[str, dict[int, Path]]) -> list[SourceCase]:
            name, paths = item
            for channel in range(highest + 1):
                if channel not in paths:
                    raise PathError(
                        images / f"{name}_{channel:04d}.nii.gz",
                        f"is missing (channel {channel} of {highest + 1})",
                        "complete the case (NAME_0000, NAME_0001, …) or remove it",
                    )
            ordered = tuple(paths[channel] for channel in sorted(paths))
            label = require_nifti(labels, name, f"the mask of {name}")
            return [NiftiCase(name, name, ordered, label)]

        yield from collect(files.items(), find)
        yield from labels_without_image(labels, files)


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
