"""Medical Segmentation Decathlon: imagesTr/ and labelsTr/, with or without dataset.json."""

import os
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


class MsdSource(DescribedSource):
    """imagesTr/NAME.nii.gz and labelsTr/NAME.nii.gz; 3-D or 4-D images."""

    name = "msd"
    summary = "A task of the Medical Segmentation Decathlon."
    layout = "imagesTr/NAME.nii.gz and labelsTr/NAME.nii.gz"

    def find_cases(self, content: DatasetJson) -> Iterator[SourceCase | PathError]:
        if content.training is not None:
            yield from collect(content.training, self._listed)
            return
        images = list_folder(self.folder / "imagesTr")
        yield from collect(images, self._paired)
        names = [name for name in map(nifti_name, images) if name]
        yield from labels_without_image(self.folder / "labelsTr", names)

    def _listed(self, pair: tuple[str, str]) -> list[SourceCase]:
        image, label = (_inside(self.folder, name) for name in pair)
        name = require_nifti_name(image)
        return [NiftiCase(name, name, (image,), label)]

    def _paired(self, image: Path) -> list[SourceCase]:
        name = require_nifti_name(image)
        label = require_nifti(self.folder / "labelsTr", name, f"the mask of {image.name}")
        return [NiftiCase(name, name, (image,), label)]


def _inside(folder: Path, name: str) -> Path:
    """A path listed in dataset.json; it must exist and lie in `folder`.

    The path is checked as written: a link inside the folder may point to another disk.
    """
    root = Path(os.path.normpath(folder))
    path = Path(os.path.normpath(folder / name))
    if not path.is_relative_to(root):
        raise PathError(folder / "dataset.json", f"lists {name}, outside the folder", "correct it")
    if not path.is_file():
        raise PathError(path, "is missing (listed in dataset.json)", "complete the download")
    return folder / path.relative_to(root)
