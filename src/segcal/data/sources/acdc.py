"""ACDC (cardiac cine MR): the ED and ES frames of each patient.

Layout: patientNNN/{Info.cfg, patientNNN_frameFF.nii.gz, patientNNN_frameFF_gt.nii.gz}.
"""

import re
from pathlib import Path

from segcal.core.errors import PathError, list_folder
from segcal.data.grid import GridRecipe
from segcal.data.intensity import Intensity
from segcal.data.sources.base import SourceCase, SourceOptions, SourceSet, gather, need_nifti

CLASSES = {0: "background", 1: "RV", 2: "MYO", 3: "LV"}
PAPER_GRID = GridRecipe(resize=(None, 224, 224), crop=(None, 192, 192))


def find_cases(source: Path, options: SourceOptions) -> SourceSet:
    """Find both frames of every patient below `source` (or its `training` folder)."""
    entries = list_folder(source)
    root = source / "training" if source / "training" in entries else source
    folders = [p for p in list_folder(root) if re.fullmatch(r"patient\d+", p.name) and p.is_dir()]
    layout = "patientNNN folders as in ACDC's training set"
    cases, problems = gather(source, folders, _frames, layout)
    return SourceSet(
        name="acdc",
        root=source,
        cases=cases,
        problems=problems,
        channels=("MR",),
        classes=CLASSES,
        intensity=Intensity(kind="zscore"),
        paper_grid=PAPER_GRID,
        split_counts=(70, 10, 20),
    )


def _frames(folder: Path) -> list[SourceCase]:
    info = _read_info(folder / "Info.cfg")
    cases = []
    for phase in ("ED", "ES"):
        name = f"{folder.name}_frame{info[phase]:02d}"
        cases.append(
            SourceCase(
                name=name,
                patient=folder.name,
                images=(need_nifti(folder, name, f"the {phase} frame"),),
                label=need_nifti(folder, f"{name}_gt", f"the mask of the {phase} frame"),
                notes={"phase": phase},
            )
        )
    return cases


def _read_info(path: Path) -> dict[str, int]:
    """The frame numbers of ED and ES."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise PathError(
            path, f"cannot be read ({error.strerror})", "complete the download"
        ) from error
    frames = {}
    for phase in ("ED", "ES"):
        found = re.search(rf"^\s*{phase}\s*:\s*(\d+)\s*$", text, flags=re.MULTILINE)
        if found is None:
            raise PathError(path, f"has no line '{phase}: frame'", "download the file again")
        frames[phase] = int(found[1])
    if frames["ED"] == frames["ES"]:
        raise PathError(path, "gives ED and ES the same frame", "download the file again")
    return frames
