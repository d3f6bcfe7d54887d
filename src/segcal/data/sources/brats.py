"""BraTS-19 (brain MR, four modalities).

Layout: HGG|LGG/<case>/<case>_{flair,t1,t1ce,t2,seg}.nii.gz.
"""

from pathlib import Path

from segcal.core.errors import list_folder
from segcal.data.grid import GridRecipe
from segcal.data.intensity import Intensity
from segcal.data.sources.base import SourceCase, SourceOptions, SourceSet, gather, need_nifti

MODALITIES = ("flair", "t1", "t1ce", "t2")
CLASSES = {0: "background", 1: "necrotic core", 2: "oedema", 3: "enhancing tumour"}
LABEL_MAP = {0: 0, 1: 1, 2: 2, 4: 3}
REGIONS = {"TC": (1, 3), "ET": (3,), "WT": (1, 2, 3)}
PAPER_GRID = GridRecipe(resize=(128, 192, 192))


def find_cases(source: Path, options: SourceOptions) -> SourceSet:
    entries = {p.name: p for p in list_folder(source)}
    grades = [entries[g] for g in ("HGG", "LGG") if g in entries]
    folders = [f for grade in grades for f in list_folder(grade) if f.is_dir()]
    layout = "HGG/<case>/<case>_flair.nii.gz, LGG/… likewise"
    cases, problems = gather(source, folders, _case, layout)
    return SourceSet(
        name="brats",
        root=source,
        cases=cases,
        problems=problems,
        channels=("FLAIR", "T1", "T1ce", "T2"),
        classes=CLASSES,
        regions=REGIONS,
        label_map=LABEL_MAP,
        intensity=Intensity(kind="zscore", nonzero=True),
        paper_grid=PAPER_GRID,
        split_counts=(235, 35, 65),
    )


def _case(folder: Path) -> list[SourceCase]:
    name = folder.name
    images = tuple(need_nifti(folder, f"{name}_{m}", f"the {m} image") for m in MODALITIES)
    label = need_nifti(folder, f"{name}_seg", "the mask")
    return [SourceCase(name, name, images, label, notes={"grade": folder.parent.name})]
