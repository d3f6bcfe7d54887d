"""Any folder: images and labels paired by name, or nnU-Net's raw layout.

Plain: images/NAME.nii.gz and labels/NAME.nii.gz. nnU-Net: imagesTr/NAME_0000.nii.gz,
NAME_0001.nii.gz, … (one file per channel) and labelsTr/NAME.nii.gz, with dataset.json.
"""

import re
from pathlib import Path

from segcal.core.errors import PathError, list_folder
from segcal.data.sources.base import (
    SourceCase,
    SourceOptions,
    SourceSet,
    count_channels,
    gather,
    lonely_labels,
    need_nifti,
    need_stem,
    stem,
)
from segcal.data.sources.dataset_json import choose_classes, choose_intensity, read_description

_PAIRS = (("imagesTr", "labelsTr"), ("images", "labels"))


def find_cases(source: Path, options: SourceOptions) -> SourceSet:
    names = {p.name for p in list_folder(source)}
    pair = next((p for p in _PAIRS if set(p) <= names), None)
    if pair is None:
        raise PathError(
            source,
            "has no image and label folders",
            "expected images/ and labels/, or imagesTr/ and labelsTr/",
        )
    described = read_description(source / "dataset.json")
    images, labels = source / pair[0], source / pair[1]
    files, strays = _channel_files(images, labels)
    # One file may hold all channels (4-D); several files must be complete.
    highest = max([max(paths) for _, paths in files], default=0)
    if described.channels and highest > 0:
        highest = max(highest, len(described.channels) - 1)

    def make(item: tuple[str, dict[int, Path]]) -> list[SourceCase]:
        name, paths = item
        for channel in range(highest + 1):
            if channel not in paths:
                raise PathError(
                    images / f"{name}_{channel:04d}.nii.gz",
                    f"is missing (channel {channel} of {highest + 1})",
                    "complete the case (NAME_0000, NAME_0001, …) or remove it",
                )
        ordered = tuple(paths[channel] for channel in sorted(paths))
        return [SourceCase(name, name, ordered, need_nifti(labels, name, f"mask of {name}"))]

    layout = f"{pair[0]}/NAME.nii.gz and {pair[1]}/NAME.nii.gz"
    cases, problems = gather(source, files, make, layout)
    channels = described.channels or tuple(f"channel {i}" for i in range(count_channels(cases)))
    return SourceSet(
        name=source.resolve().name,
        root=source,
        cases=cases,
        problems=strays + problems + lonely_labels(labels, [name for name, _ in files]),
        channels=channels,
        classes=choose_classes(described, options),
        regions=described.regions,
        intensity=choose_intensity(described, options),
    )


def _channel_files(
    folder: Path, labels: Path
) -> tuple[list[tuple[str, dict[int, Path]]], tuple[PathError, ...]]:
    """(case name, its image file of each channel), and what is no image or there twice.

    `_0000` endings mean channels only when every file has one and no label map has it too:
    NAME_0001 may well be a name.
    """
    named, problems = [], []
    for path in list_folder(folder):
        try:
            named.append((need_stem(path), path))
        except PathError as problem:
            problems.append(problem)
    endings = [re.fullmatch(r"(.+)_(\d{4})", name) for name, _ in named]
    own_labels = {name for name, _ in named} & {stem(path) for path in list_folder(labels)}
    if own_labels or not all(endings) or not any(e and e[2] == "0000" for e in endings):
        return [(name, {0: path}) for name, path in named], tuple(problems)
    cases: dict[str, dict[int, Path]] = {}
    for ending, (name, path) in zip(endings, named, strict=True):
        if ending is None:
            continue
        if int(ending[2]) in cases.setdefault(ending[1], {}):
            twice = f"gives the name {name} a second time"
            problems.append(PathError(path, twice, "keep one file per channel"))
        cases[ending[1]].setdefault(int(ending[2]), path)
    return list(cases.items()), tuple(problems)
