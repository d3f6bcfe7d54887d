"""FLARE-21 (abdominal CT).

Layout: TrainingImg/train_NNN_0000.nii.gz, TrainingMask/train_NNN.nii.gz.
"""

from pathlib import Path

from segcal.core.errors import PathError, list_folder
from segcal.data.grid import GridRecipe
from segcal.data.intensity import Intensity
from segcal.data.sources.base import (
    SourceCase,
    SourceOptions,
    SourceSet,
    gather,
    need_nifti,
    need_stem,
)

CLASSES = {0: "background", 1: "liver", 2: "kidneys", 3: "spleen", 4: "pancreas"}
PAPER_GRID = GridRecipe(resize=(30, 192, 192))


def find_cases(source: Path, options: SourceOptions) -> SourceSet:
    list_folder(source)
    images, masks = source / "TrainingImg", source / "TrainingMask"
    for folder in (images, masks):
        if not folder.is_dir():
            raise PathError(folder, "is missing", "give the folder that holds TrainingImg")

    def pair(path: Path) -> list[SourceCase]:
        name = need_stem(path).removesuffix("_0000")
        mask = need_nifti(masks, name, f"the mask of {path.name}")
        return [SourceCase(name=name, patient=name, images=(path,), label=mask)]

    layout = "TrainingImg/train_NNN_0000.nii.gz"
    cases, problems = gather(source, list_folder(images), pair, layout)
    return SourceSet(
        name="flare",
        root=source,
        cases=cases,
        problems=problems,
        channels=("CT",),
        classes=CLASSES,
        intensity=Intensity(kind="window"),
        paper_grid=PAPER_GRID,
        split_counts=(240, 40, 80),
    )
