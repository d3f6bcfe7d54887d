"""BraTS-19 (brain MR, four modalities)."""

from collections.abc import Iterator
from pathlib import Path

from segcal.core.errors import PathError, list_folder
from segcal.data.grid import GridRecipe
from segcal.data.info import Description
from segcal.data.intensity import Intensity
from segcal.data.sources.base import NiftiCase, Source, SourceCase
from segcal.data.sources.files import collect, require_nifti

MODALITIES = ("flair", "t1", "t1ce", "t2")


class BratsSource(Source):
    """BraTS-19: brain MR, four modalities.

    HGG/CASE/CASE_{flair,t1,t1ce,t2,seg}.nii.gz, and likewise in LGG.
    """

    name = "brats"
    layout = "HGG/<case>/<case>_flair.nii.gz, and likewise in LGG"
    paper_grid = GridRecipe(resize=(128, 192, 192))
    description = Description(
        name="brats",
        channels=("FLAIR", "T1", "T1ce", "T2"),
        classes={0: "background", 1: "necrotic core", 2: "edema", 3: "enhancing tumor"},
        regions={"TC": (1, 3), "ET": (3,), "WT": (1, 2, 3)},
        label_map={0: 0, 1: 1, 2: 2, 4: 3},
        intensity=Intensity(kind="zscore", nonzero=True),
        split_counts=(235, 35, 65),
    )
    folder: Path

    def cases(self) -> Iterator[SourceCase | PathError]:
        grades = [p for p in list_folder(self.folder) if p.name in ("HGG", "LGG")]
        return collect([p for grade in grades for p in list_folder(grade) if p.is_dir()], _find)


def _find(folder: Path) -> list[SourceCase]:
    name = folder.name
    images = tuple(require_nifti(folder, f"{name}_{m}", f"the {m} image") for m in MODALITIES)
    label = require_nifti(folder, f"{name}_seg", "the mask")
    return [NiftiCase(name, name, images, label, notes={"grade": folder.parent.name})]
