"""Any folder: images and labels paired by name, or nnU-Net's raw layout."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from segcal.core.checks import check_choice
from segcal.core.errors import PathError, list_folder
from segcal.data.grid import IGNORED
from segcal.data.info import DatasetInfo, Description
from segcal.data.intensity import CT_WINDOW, Intensity
from segcal.data.sources.base import ARRAYS, FileCase, Source, SourceCase
from segcal.data.sources.dataset_json import DatasetJson, read_dataset_json
from segcal.data.sources.folder_layouts import class_names, list_folder_cases

Modality = Literal["mr", "ct"]


class FolderSource(Source):
    """Images and labels paired by name, or nnU-Net's raw layout; files of any supported format.

    Plain: images/NAME.nii.gz and labels/NAME.nii.gz, or NAME.nii.gz and NAME_seg.nii.gz.

    nnU-Net: imagesTr/NAME_0000.nii.gz, NAME_0001.nii.gz, … (one file per channel) and
    labelsTr/NAME.nii.gz, with dataset.json.

    One mask per class: labels/NAME/CLASS.nii.gz, labels/NAME_CLASS.nii.gz, or, as TotalSegmentator
    writes them, NAME/ct.nii.gz and NAME/segmentations/CLASS.nii.gz.
    """

    name = "folder"
    layout = "images/NAME.nii.gz and labels/NAME.nii.gz, or the same in imagesTr/ and labelsTr/"
    knows_patients = False
    folder: Path

    def __init__(
        self,
        folder: Path | str,
        *,
        modality: Annotated[
            Modality | None, "mr or ct, if dataset.json does not name the channels."
        ] = None,
        window: Annotated[tuple[float, float] | None, "CT window: lower and upper value."] = None,
        classes: Annotated[str | None, "Names of labels 1, 2, …, separated by commas."] = None,
        arrays: Annotated[str, "Names of image and labels in .npz and .h5."] = "image,label",
    ) -> None:
        self.folder = Path(folder)
        self.arrays = _named_arrays(arrays)
        list_folder(self.folder)
        content = read_dataset_json(self.folder / "dataset.json")
        self._found = list(self.list_cases(content))
        self.description = Description(
            name=self.folder.resolve().name,
            channels=content.channels or _numbered_channels(self._found),
            classes=(content.classes or class_names(self._found))
            if classes is None
            else _named_classes(classes),
            regions=content.regions,
            label_map=None
            if content.ignore is None
            else {value: value for value in content.classes} | {content.ignore: IGNORED},
            intensity=_intensity(content.channels, modality, window),
        )

    def cases(self) -> Iterator[SourceCase | PathError]:
        return iter(self._found)

    def settings(self, info: DatasetInfo) -> dict[str, str]:
        named = {} if self.arrays == ARRAYS else {"arrays": ", ".join(self.arrays)}
        return super().settings(info) | named

    def list_cases(self, content: DatasetJson) -> Iterator[SourceCase | PathError]:
        """As `cases`; `content` is that of dataset.json."""
        return list_folder_cases(self.folder, len(content.channels), self.arrays)


def _numbered_channels(found: Iterable[SourceCase | PathError]) -> tuple[str, ...]:
    """ "channel 0", …: as many as most cases have; the others are invalid."""
    counts: Counter[int] = Counter()
    for case in found:
        if isinstance(case, FileCase):
            try:
                counts[max(len(case.images), case.header().channels)] += 1
            except PathError:
                continue  # reported when the case is read
    count = min(counts, key=lambda n: (-counts[n], n), default=1)
    return tuple(f"channel {index}" for index in range(count))


def _named_arrays(arrays: str) -> tuple[str, str]:
    image, _, label = (name.strip() for name in arrays.partition(","))
    if not image or not label:
        raise ValueError(f"--arrays {arrays}: expected two names, such as image,label")
    return image, label


def _named_classes(classes: str) -> dict[int, str]:
    names = ["background", *(name.strip() for name in classes.split(","))]
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(
            "Expected argument `classes` to be different names of labels 1, 2, …, separated by "
            f"commas, but got {classes!r}."
        )
    return dict(enumerate(names))


def _intensity(
    channels: tuple[str, ...], modality: str | None, window: tuple[float, float] | None
) -> Intensity:
    """A window for CT, z-score for everything else; `modality` overrides the channel names."""
    if modality is None:
        modality = "ct" if channels and all(c.lower() == "ct" for c in channels) else "mr"
    check_choice("modality", modality, ("mr", "ct"))
    if modality == "mr":
        if window is not None:
            raise ValueError("Expected argument `window` for CT only; add --modality ct.")
        return Intensity()
    low, high = window or CT_WINDOW
    if not -math.inf < low < high < math.inf:
        raise ValueError(
            f"Expected argument `window` to be two finite values LOW < HIGH, but got {low}, {high}."
        )
    return Intensity(kind="window", low=low, high=high)
