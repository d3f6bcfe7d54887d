"""BraTS (brain MR, four modalities) of 2019 to 2023."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from segcal.core.checks import check_choice
from segcal.core.errors import PathError, list_folder
from segcal.data.grid import GridRecipe
from segcal.data.info import Description
from segcal.data.intensity import Intensity
from segcal.data.sources.base import FileCase, Source, SourceCase, collect, require_nifti

# Channel → its name in the files until 2021, and since 2023.
_CHANNELS = {
    "FLAIR": ("flair", "t2f"), "T1": ("t1", "t1n"), "T1ce": ("t1ce", "t1c"), "T2": ("t2", "t2w"),
}  # fmt: skip


class BratsSource(Source):
    """BraTS-19, -20, -21 and -23: brain MR, four modalities.

    CASE/CASE_{flair,t1,t1ce,t2,seg}.nii.gz (in HGG and LGG, or directly), or as of 2023
    CASE/CASE-{t2f,t1n,t1c,t2w,seg}.nii.gz.
    """

    name = "brats"
    layout = "<case>/<case>_flair.nii.gz or <case>/<case>-t2f.nii.gz, directly or in HGG and LGG"
    paper_grid = GridRecipe(resize=(128, 192, 192))
    description = Description(
        name="brats",
        channels=tuple(_CHANNELS),
        classes={0: "background", 1: "necrotic core", 2: "edema", 3: "enhancing tumor"},
        regions={"TC": (1, 3), "ET": (3,), "WT": (1, 2, 3)},
        label_map={0: 0, 1: 1, 2: 2, 4: 3},
        intensity=Intensity(kind="zscore", nonzero=True),
        split_counts=(235, 35, 65),
    )
    folder: Path

    def __init__(
        self,
        folder: Path | str,
        *,
        channels: Annotated[
            str | None, "Channels to use, separated by commas: flair, t1, t1ce, t2. Default: all."
        ] = None,
    ) -> None:
        super().__init__(folder)
        names = {name.lower(): name for name in _CHANNELS}
        chosen = [name.strip().lower() for name in channels.split(",")] if channels else list(names)
        for name in chosen:
            check_choice("--channels", name, names)
        entries = list_folder(self.folder)
        grades = [path for path in entries if path.name in ("HGG", "LGG")]
        found = [path for grade in grades for path in list_folder(grade)] if grades else entries
        self._folders = [path for path in found if path.is_dir()]
        # As of 2023 names have hyphens, and the enhancing tumor is label 3 instead of 4.
        self._new = any((path / f"{path.name}-seg.nii.gz").is_file() for path in self._folders)
        update: dict[str, object] = {"channels": tuple(names[n] for n in dict.fromkeys(chosen))}
        if self._new:
            update["label_map"] = None
        self.description = self.description.model_copy(update=update)

    def cases(self) -> Iterator[SourceCase | PathError]:
        return collect(self._folders, self._find)

    def _find(self, folder: Path) -> list[SourceCase]:
        name, separator = folder.name, "-" if self._new else "_"
        parts = [_CHANNELS[channel][self._new] for channel in self.description.channels]
        images = tuple(
            require_nifti(folder, f"{name}{separator}{part}", f"the {part} image") for part in parts
        )
        label = require_nifti(folder, f"{name}{separator}seg", "the mask")
        # BraTS-GLI-00000-001 is the second scan of patient BraTS-GLI-00000.
        patient = name.rpartition("-")[0] if self._new else name
        notes = {"grade": folder.parent.name} if folder.parent.name in ("HGG", "LGG") else {}
        return [FileCase(name, patient or name, images, label, notes=notes)]
