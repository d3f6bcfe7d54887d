"""Any folder: images and labels paired by name, or nnU-Net's raw layout."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, get_args

from segcal.core.checks import check_choice
from segcal.core.errors import PathError, list_folder
from segcal.core.patients import patients_of, scans_of_patients
from segcal.data.case_tables import read_annotated
from segcal.data.formats import find_label, scan_name
from segcal.data.grid import IGNORED, Spacing
from segcal.data.info import DatasetInfo, Description
from segcal.data.intensity import CT_WINDOW, Intensity
from segcal.data.sources.base import ARRAYS, FileCase, Source, SourceCase
from segcal.data.sources.dataset_json import DatasetJson, read_dataset_json
from segcal.data.sources.folder_layouts import class_names, list_folder_cases, paired_cases

Modality = Literal["mr", "ct"]
Normalize = Literal["all", "nonzero"]


class FolderSource(Source):
    """Images and labels paired by name, or nnU-Net's raw layout; files of any supported format.

    Plain: images/NAME.nii.gz and labels/NAME.nii.gz, or NAME.nii.gz and NAME_seg.nii.gz.

    nnU-Net: imagesTr/NAME_0000.nii.gz, NAME_0001.nii.gz, … (one file per channel) and
    labelsTr/NAME.nii.gz, with dataset.json. Cases in imagesTs/ and labelsTs/ are the test set.

    One mask per class: labels/NAME/CLASS.nii.gz, labels/NAME_CLASS.nii.gz, or, as TotalSegmentator
    writes them, NAME/ct.nii.gz and NAME/segmentations/CLASS.nii.gz.

    Several readers: raters/READER/NAME.nii.gz instead of labels/NAME.nii.gz, or
    labels/NAME_raterREADER.nii.gz. A reader may lack some cases.
    """

    name = "folder"
    layout = "images/NAME.nii.gz and labels/NAME.nii.gz, or the same in imagesTr/ and labelsTr/"
    check_labels = True
    folder: Path

    def __init__(
        self,
        folder: Path | str,
        *,
        modality: Annotated[
            Modality | None, "mr or ct, if dataset.json does not name the channels."
        ] = None,
        window: Annotated[tuple[float, float] | None, "CT window: lower and upper value."] = None,
        normalize: Annotated[
            Normalize | None, "z-score over all voxels, or over those that are not 0 (nonzero)."
        ] = None,
        spacing: Annotated[
            str, "Z,Y,X in mm, median (of all cases), or native (no resampling)."
        ] = "median",
        classes: Annotated[str | None, "Names of labels 1, 2, …, separated by commas."] = None,
        map: Annotated[str | None, "Labels to change: 255=1,2=0."] = None,
        ignore_label: Annotated[int | None, "Label of voxels that do not count."] = None,
        mask: Annotated[
            Path | None, "Folder of field-of-view masks, named like the labels; outside is ignored."
        ] = None,
        annotated: Annotated[
            Path | None, "CSV or JSON: the classes that each partially labeled case annotates."
        ] = None,
        patient: Annotated[
            str | None, "Regular expression: the patient in a case name (its first group)."
        ] = None,
        patient_per_case: Annotated[bool, "Count every case as a patient of its own."] = False,
        arrays: Annotated[str, "Names of image and labels in .npz and .h5."] = "image,label",
    ) -> None:
        self.folder = Path(folder)
        self.arrays = _named_arrays(arrays)
        list_folder(self.folder)
        content = read_dataset_json(self.folder / "dataset.json")
        found = [*self.list_cases(content), *self._test_cases(content)]
        named = content.classes or class_names(found)
        if classes is not None:
            named = _named_classes(classes)
        patients = _patients(self.folder, found, patient, patient_per_case)
        shown = {} if annotated is None else read_annotated(annotated, patients, named)
        self._found = [
            case
            if isinstance(case, PathError)
            else replace(
                case,
                patient=patients[case.name],
                mask=None if mask is None else _find_mask(mask, case.name),
                annotated=shown.get(case.name),
            )
            for case in found
        ]
        self.knows_patients = patient is not None or patient_per_case
        self.spacing = _spacing(spacing)
        ignored = content.ignore if ignore_label is None else ignore_label
        intensity = _intensity(content.channels, modality, window, normalize)
        self.ask_modality = modality is None and not content.channels and normalize is None
        self.description = Description(
            name=self.folder.resolve().name,
            channels=content.channels or _numbered_channels(found),
            classes=named,
            regions=content.regions,
            label_map=_label_map(named, map, ignored),
            intensity=intensity,
        )

    def cases(self) -> Iterator[SourceCase | PathError]:
        return iter(self._found)

    def _test_cases(self, content: DatasetJson) -> Iterator[SourceCase | PathError]:
        images, labels = self.folder / "imagesTs", self.folder / "labelsTs"
        if images.is_dir() and labels.is_dir():
            for case in paired_cases(images, labels, len(content.channels), self.arrays):
                yield case if isinstance(case, PathError) else replace(case, part="test")

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


def _find_mask(folder: Path, name: str) -> Path:
    masks = {scan_name(path) or "": path for path in list_folder(folder, "--mask")}
    found = find_label(masks, name)
    if found is None:
        raise PathError(folder / f"{name}.nii.gz", "is missing (a mask of --mask)", "add it")
    return found


def _patients(
    folder: Path, found: Iterable[SourceCase | PathError], patient: str | None, per_case: bool
) -> dict[str, str]:
    """Case → patient; an error if names look like several scans of one patient."""
    names = [case.name for case in found if isinstance(case, SourceCase)]
    if patient is not None:
        if per_case:
            raise ValueError("Expected --patient or --patient-per-case, but got both.")
        return patients_of(names, patient)
    alike = [] if per_case else scans_of_patients(names)
    for first, second, pattern in alike[:1]:
        problem = f"{first} and {second} look like scans of one patient"
        raise PathError(folder, problem, f"add --patient '{pattern}' or --patient-per-case")
    return {name: name for name in names}


def _label_map(
    classes: Mapping[int, str], changes: str | None, ignored: int | None
) -> dict[int, int] | None:
    """Label in the files → stored label, from `--map` and `--ignore-label`."""
    if changes is None and ignored is None:
        return None
    table = {value: value for value in classes or range(IGNORED)}
    for pair in (changes or "").split(",") if changes else ():
        match = re.fullmatch(r"\s*(-?\d+)\s*=\s*(\d+)\s*", pair)
        if match is None or int(match[2]) not in (classes or range(IGNORED)):
            raise ValueError(
                "Expected argument `map` to be pairs LABEL=CLASS of classes 0 to "
                f"{max(classes or (IGNORED - 1,))}, as in 255=1,2=0, but got {pair!r}."
            )
        table[int(match[1])] = int(match[2])
    return table if ignored is None else table | {ignored: IGNORED}


def _spacing(text: str) -> Spacing | Literal["median", "native"]:
    if text in ("median", "native"):
        return "median" if text == "median" else "native"
    try:
        z, y, x = (float(part) for part in text.split(","))
        if min(z, y, x) > 0 and max(z, y, x) < math.inf:
            return z, y, x
    except ValueError:
        pass
    raise ValueError(
        f"Expected argument `spacing` to be Z,Y,X in mm, median or native, but got {text!r}."
    )


def _intensity(
    channels: tuple[str, ...],
    modality: str | None,
    window: tuple[float, float] | None,
    normalize: str | None,
) -> Intensity:
    """A window for CT, z-score for everything else; `modality` overrides the channel names."""
    if modality is None:
        modality = "ct" if channels and all(c.lower() == "ct" for c in channels) else "mr"
    check_choice("modality", modality, ("mr", "ct"))
    if modality == "mr":
        if window is not None:
            raise ValueError("Expected argument `window` for CT only; add --modality ct.")
        check_choice("normalize", normalize or "all", get_args(Normalize))
        return Intensity(nonzero=normalize == "nonzero")
    if normalize is not None:
        raise ValueError("Expected argument `normalize` for MR only; CT is windowed.")
    low, high = window or CT_WINDOW
    if not -math.inf < low < high < math.inf:
        raise ValueError(
            f"Expected argument `window` to be two finite values LOW < HIGH, but got {low}, {high}."
        )
    return Intensity(kind="window", low=low, high=high)
