"""FLARE-21 and FLARE-22 (abdominal CT)."""

from collections.abc import Iterator
from pathlib import Path

from segcal.core.errors import PathError, list_folder
from segcal.data.grid import GridRecipe
from segcal.data.info import Description
from segcal.data.intensity import Intensity
from segcal.data.sources.base import Source, SourceCase
from segcal.data.sources.folder_layouts import paired_cases

_FOLDERS = (("TrainingImg", "TrainingMask"), ("imagesTr", "labelsTr"), ("images", "labels"))
_CLASSES_22 = (
    "background", "liver", "right kidney", "spleen", "pancreas", "aorta", "inferior vena cava",
    "right adrenal gland", "left adrenal gland", "gallbladder", "esophagus", "stomach", "duodenum",
    "left kidney",
)  # fmt: skip


class FlareSource(Source):
    """FLARE-21 and FLARE-22: abdominal CT, 4 and 13 organs.

    FLARE-21: TrainingImg/train_NNN_0000.nii.gz and TrainingMask/train_NNN.nii.gz.

    FLARE-22: images/NAME_0000.nii.gz and labels/NAME.nii.gz (or imagesTr and labelsTr).
    """

    name = "flare"
    layout = "TrainingImg/train_NNN_0000.nii.gz, or images/NAME_0000.nii.gz"
    paper_grid = GridRecipe(resize=(30, 192, 192))
    description = Description(
        name="flare",
        channels=("CT",),
        classes={0: "background", 1: "liver", 2: "kidneys", 3: "spleen", 4: "pancreas"},
        intensity=Intensity(kind="window"),
        split_counts=(240, 40, 80),
    )
    folder: Path

    def __init__(self, folder: Path | str) -> None:
        super().__init__(folder)
        entries = list_folder(self.folder)
        pairs = [(self.folder / images, self.folder / masks) for images, masks in _FOLDERS]
        pair = next((pair for pair in pairs if pair[0] in entries), pairs[0])
        if missing := [path for path in pair if not path.is_dir()]:
            raise PathError(missing[0], "is missing", "give the folder that holds TrainingImg")
        self._images, self._masks = pair
        if pair != pairs[0]:
            self.description = self.description.model_copy(
                update={"classes": dict(enumerate(_CLASSES_22))}
            )

    def cases(self) -> Iterator[SourceCase | PathError]:
        return paired_cases(self._images, self._masks, channels=1)
