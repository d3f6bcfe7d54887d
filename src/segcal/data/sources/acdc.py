"""ACDC (cardiac cine MR): the ED and ES frames of each patient."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from segcal.core.errors import PathError, list_folder, read_errors
from segcal.data.grid import GridRecipe
from segcal.data.info import Description
from segcal.data.sources.base import FileCase, Source, SourceCase, collect, require_nifti


class AcdcSource(Source):
    """ACDC: cardiac cine MR, ED and ES frames.

    patientNNN/{Info.cfg, patientNNN_frameFF.nii.gz, patientNNN_frameFF_gt.nii.gz}, in the source
    folder or in its folder `training`. Patients in a folder `testing` are the test set. `Group` in
    Info.cfg, the pathology, is stored as the group.
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
        names = {p.name for p in list_folder(self.folder)}
        root = self.folder / "training" if "training" in names else self.folder
        yield from collect(_patients(root), _frames)
        # Older downloads have a test set without masks.
        testing = _patients(self.folder / "testing") if {"training", "testing"} <= names else []
        if any(any(path.glob("*_gt.nii*")) for path in testing):
            for case in collect(testing, _frames):
                yield case if isinstance(case, PathError) else replace(case, part="test")


def _patients(folder: Path) -> list[Path]:
    found = (p for p in list_folder(folder) if re.fullmatch(r"patient\d+", p.name))
    return [path for path in found if path.is_dir()]


def _frames(folder: Path) -> list[SourceCase]:
    cases: list[SourceCase] = []
    frames, group = _read_info(folder / "Info.cfg")
    for phase, number in frames.items():
        name = f"{folder.name}_frame{number:02d}"
        image = require_nifti(folder, name, f"the {phase} frame")
        label = require_nifti(folder, f"{name}_gt", f"the mask of the {phase} frame")
        notes = {"phase": phase}
        cases.append(FileCase(name, folder.name, (image,), label, notes, group=group))
    return cases


def _read_info(path: Path) -> tuple[dict[str, int], str | None]:
    """The frame numbers of ED and ES, and the pathology."""
    with read_errors(path, "complete the download"):
        text = path.read_text(encoding="utf-8", errors="replace")
    frames = {}
    for phase in ("ED", "ES"):
        found = re.search(rf"^\s*{phase}\s*:\s*(\d+)\s*$", text, flags=re.MULTILINE)
        if found is None:
            raise PathError(path, f"has no line '{phase}: frame'", "download the file again")
        frames[phase] = int(found[1])
    if frames["ED"] == frames["ES"]:
        raise PathError(path, "gives ED and ES the same frame", "download the file again")
    group = re.search(r"^\s*Group\s*:\s*(\w+)", text, flags=re.MULTILINE)
    return frames, group[1] if group else None
