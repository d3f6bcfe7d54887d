"""FLARE-21 (abdominal CT)."""

from collections.abc import Iterator
from pathlib import Path

from segcal.core.errors import PathError, list_folder
from segcal.data.grid import GridRecipe
from segcal.data.info import Description
from segcal.data.intensity import Intensity
from segcal.data.sources.base import NiftiCase, Source, SourceCase
from segcal.data.sources.files import collect, require_nifti, require_nifti_name


class FlareSource(Source):
    """FLARE-21: abdominal CT.

    TrainingImg/train_NNN_0000.nii.gz and TrainingMask/train_NNN.nii.gz.
    """

    name = "flare"
    layout = "TrainingImg/train_NNN_0000.nii.gz"
    paper_grid = GridRecipe(resize=(30, 192, 192))
    description = Description(
        name="flare",
        channels=("CT",),
        classes={0: "background", 1: "liver", 2: "kidneys", 3: "spleen", 4: "pancreas"},
        intensity=Intensity(kind="window"),
        split_counts=(240, 40, 80),
    )
    folder: Path

    def cases(self) -> Iterator[SourceCase | PathError]:
        list_folder(self.folder)
        images, masks = self.folder / "TrainingImg", self.folder / "TrainingMask"
        for folder in (images, masks):
            if not folder.is_dir():
                raise PathError(folder, "is missing", "give the folder that holds TrainingImg")

        def find(path: Path) -> list[SourceCase]:
            name = require_nifti_name(path).removesuffix("_0000")
            mask = require_nifti(masks, name, f"the mask of {path.name}")
            return [NiftiCase(name, name, (path,), mask)]

        return collect(list_folder(images), find)
