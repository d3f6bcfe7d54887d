"""ACDC (cardiac cine MR): the ED and ES frames of each patient."""

import re
from collections.abc import Iterator
from pathlib import Path

from segcal.core.errors import PathError, list_folder
from segcal.data.grid import GridRecipe
from segcal.data.info import Description
from segcal.data.sources.base import FileCase, Source, SourceCase
from segcal.data.sources.files import collect, require_nifti


class AcdcSource(Source):
    """ACDC: cardiac cine MR, ED and ES frames.

    patientNNN/{Info.cfg, patientNNN_frameFF.nii.gz, patientNNN_frameFF_gt.nii.gz}, in the source
    folder or in its folder `training`.
    """

    name = "acdc"
    layout = "patientNNN folders as in ACDC's training set"
    paper_grid = GridRecipe(resize=(None, 224, 224), crop=(None, 192, 192))
    description = Description(
        name="acdc",
        channels=("MR",),
        classes={0: "background", 1: "RV", 2: "MYO", 3: "LV"},
        split_counts=(70, 10, 20),
    )
    folder: Path

    def cases(self) -> Iterator[SourceCase | PathError]:
        training = self.folder / "training"
        root = training if training in list_folder(self.folder) else self.folder
        patients = [p for p in list_folder(root) if re.fullmatch(r"patient\d+", p.name)]
        return collect([p for p in patients if p.is_dir()], _frames)


def _frames(folder: Path) -> list[SourceCase]:
    cases: list[SourceCase] = []
    for phase, number in _read_info(folder / "Info.cfg").items():
        name = f"{folder.name}_frame{number:02d}"
        image = require_nifti(folder, name, f"the {phase} frame")
        label = require_nifti(folder, f"{name}_gt", f"the mask of the {phase} frame")
        cases.append(FileCase(name, folder.name, (image,), label, notes={"phase": phase}))
    return cases


def _read_info(path: Path) -> dict[str, int]:
    """The frame numbers of ED and ES."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise PathError(path, problem, "complete the download") from error
    frames = {}
    for phase in ("ED", "ES"):
        found = re.search(rf"^\s*{phase}\s*:\s*(\d+)\s*$", text, flags=re.MULTILINE)
        if found is None:
            raise PathError(path, f"has no line '{phase}: frame'", "download the file again")
        frames[phase] = int(found[1])
    if frames["ED"] == frames["ES"]:
        raise PathError(path, "gives ED and ES the same frame", "download the file again")
    return frames
