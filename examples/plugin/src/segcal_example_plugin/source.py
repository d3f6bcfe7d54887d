"""A data source: a class that describes a data set and yields its cases."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from segcal.core.errors import PathError, list_folder
from segcal.data import Description, FileCase, Source, SourceCase


class PatientFolders(Source):
    """One folder per patient, with image.nii.gz and label.nii.gz."""

    name = "patient_folders"
    layout = "PATIENT/image.nii.gz and PATIENT/label.nii.gz"
    folder: Path

    def __init__(
        self, folder: Path, structure: Annotated[str, "Name of label 1."] = "organ"
    ) -> None:
        super().__init__(folder)
        self.description = Description(
            name="patient_folders",
            channels=("MR",),
            classes={0: "background", 1: structure},
        )

    def cases(self) -> Iterator[SourceCase | PathError]:
        for folder in list_folder(self.folder):
            image, label = folder / "image.nii.gz", folder / "label.nii.gz"
            if image.is_file() and label.is_file():
                yield FileCase(folder.name, folder.name, (image,), label)
            else:
                yield PathError(folder, "has no image.nii.gz or no label.nii.gz", "add it")
