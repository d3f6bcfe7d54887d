"""Medical Segmentation Decathlon: imagesTr/ and labelsTr/, with or without dataset.json."""

import os
from collections.abc import Iterator
from pathlib import Path

from segcal.core.errors import PathError
from segcal.data.formats import scan_name
from segcal.data.sources.base import UNSUPPORTED, FileCase, SourceCase, collect
from segcal.data.sources.dataset_json import DatasetJson
from segcal.data.sources.folder import FolderSource


class MsdSource(FolderSource):
    """A task of the Medical Segmentation Decathlon.

    The files that dataset.json lists, else imagesTr/NAME.nii.gz and labelsTr/NAME.nii.gz.
    """

    name = "msd"

    def list_cases(self, content: DatasetJson) -> Iterator[SourceCase | PathError]:
        if content.training is None:
            return super().list_cases(content)
        return collect(content.training, self._listed)

    def _listed(self, pair: tuple[str, str]) -> list[SourceCase]:
        image, label = (_inside(self.folder, name) for name in pair)
        name = scan_name(image)
        if name is None:
            raise PathError(image, *UNSUPPORTED)
        return [FileCase(name, name, (image,), label)]


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
