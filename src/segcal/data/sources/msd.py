"""Medical Segmentation Decathlon: imagesTr/ and labelsTr/, with or without dataset.json."""

import os
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


def find_cases(source: Path, options: SourceOptions) -> SourceSet:
    source = Path(os.path.normpath(source))
    list_folder(source)
    described = read_description(source / "dataset.json")
    layout = "imagesTr/NAME.nii.gz and labelsTr/NAME.nii.gz"

    def listed(pair: tuple[str, str]) -> list[SourceCase]:
        image, label = (_inside(source, name) for name in pair)
        name = need_stem(image)
        return [SourceCase(name, name, (image,), label)]

    def found(image: Path) -> list[SourceCase]:
        name = need_stem(image)
        label = need_nifti(source / "labelsTr", name, f"the mask of {image.name}")
        return [SourceCase(name, name, (image,), label)]

    if described.training is not None:
        cases, problems = gather(source, described.training, listed, layout)
    else:
        images = list_folder(source / "imagesTr")
        cases, problems = gather(source, images, found, layout)
        problems += lonely_labels(source / "labelsTr", [n for n in map(stem, images) if n])
    channels = described.channels or tuple(f"channel {i}" for i in range(count_channels(cases)))
    return SourceSet(
        name=source.resolve().name,
        root=source,
        cases=cases,
        problems=problems,
        channels=channels,
        classes=choose_classes(described, options),
        regions=described.regions,
        intensity=choose_intensity(described, options),
    )


def _inside(source: Path, name: str) -> Path:
    """A path listed in dataset.json; it must exist and lie below `source`.

    Judged as it is written: a link inside the set may well point to another disk.
    """
    path = Path(os.path.normpath(source / name))
    if not path.is_relative_to(os.path.normpath(source)):
        raise PathError(source / "dataset.json", f"lists {name}, outside the set", "correct it")
    if not path.is_file():
        raise PathError(path, "is missing (listed in dataset.json)", "complete the download")
    return path
