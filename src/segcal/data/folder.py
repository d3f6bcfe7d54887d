"""Any folder: images and labels paired by name, or nnU-Net's raw layout.

Plain: images/NAME.nii.gz and labels/NAME.nii.gz. nnU-Net: imagesTr/NAME_0000.nii.gz,
NAME_0001.nii.gz, … (one file per channel) and labelsTr/NAME.nii.gz, with dataset.json.
"""

import re
from pathlib import Path

from segcal.data.described import choose_classes, choose_intensity, read_description
from segcal.data.errors import DataError, list_folder
from segcal.data.source import (
    SourceCase,
    SourceOptions,
    SourceSet,
    count_channels,
    gather,
    lonely_labels,
    need_nifti,
    stem,
)

_PAIRS = (("imagesTr", "labelsTr"), ("images", "labels"))


def find_cases(source: Path, options: SourceOptions) -> SourceSet:
    names = {p.name for p in list_folder(source)}
    pair = next((p for p in _PAIRS if set(p) <= names), None)
    if pair is None:
        raise DataError(
            source,
            "has no image and label folders",
            "expected images/ and labels/, or imagesTr/ and labelsTr/",
        )
    described = read_description(source / "dataset.json")
    labels = source / pair[1]
    files = _channel_files(source / pair[0])
    # One file may hold all channels (4-D); several files must be complete.
    expected = max([len(paths) for paths in files.values()], default=1)
    if described.channels and expected > 1:
        expected = max(expected, len(described.channels))

    def make(item: tuple[str, tuple[Path, ...]]) -> list[SourceCase]:
        name, paths = item
        if len(paths) != expected:
            raise DataError(
                paths[0],
                f"is one of {len(paths)} channel files where the set has {expected}",
                "complete the case (NAME_0000, NAME_0001, …) or remove it",
            )
        return [SourceCase(name, name, paths, need_nifti(labels, name, f"mask of {name}"))]

    layout = f"{pair[0]}/NAME.nii.gz and {pair[1]}/NAME.nii.gz"
    cases, problems = gather(source, files.items(), make, layout)
    channels = described.channels or tuple(f"channel {i}" for i in range(count_channels(cases)))
    return SourceSet(
        name=source.resolve().name,
        root=source,
        cases=cases,
        problems=problems + lonely_labels(labels, files),
        channels=channels,
        classes=choose_classes(described, options),
        regions=described.regions,
        intensity=choose_intensity(described, options),
    )


def _channel_files(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Case name → its image files in channel order.

    `_0000` endings mean channels only when every file has one: NAME_0001 may well be a name.
    """
    named = [(name, path) for path in list_folder(folder) if (name := stem(path))]
    endings = [re.fullmatch(r"(.+)_(\d{4})", name) for name, _ in named]
    if not all(endings) or not any(e and e[2] == "0000" for e in endings):
        return {name: (path,) for name, path in named}
    channels: dict[str, dict[int, Path]] = {}
    for ending, (_, path) in zip(endings, named, strict=True):
        if ending is not None:
            channels.setdefault(ending[1], {})[int(ending[2])] = path
    return {name: tuple(p for _, p in sorted(found.items())) for name, found in channels.items()}
