"""Data sets that a `dataset.json` may describe: the spellings of the Decathlon and of nnU-Net."""

import json
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from segcal.core.checks import check_choice
from segcal.core.errors import PathError, list_folder
from segcal.data.formats.nifti import read_header
from segcal.data.info import Description
from segcal.data.intensity import CT_WINDOW, Intensity
from segcal.data.sources.base import NiftiCase, Source, SourceCase

Modality = Literal["mr", "ct"]


@dataclass(frozen=True)
class DatasetJson:
    """The content of a dataset.json. All of it is optional."""

    channels: tuple[str, ...] = ()
    classes: dict[int, str] = field(default_factory=dict)
    regions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    training: tuple[tuple[str, str], ...] | None = None


class DescribedSource(Source):
    """Base of the sources that read dataset.json, and take options for what it leaves open."""

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
    ) -> None:
        self.folder = Path(folder)
        list_folder(self.folder)
        content = read_dataset_json(self.folder / "dataset.json")
        self._found = list(self.find_cases(content))
        self.description = Description(
            name=self.folder.resolve().name,
            channels=content.channels or _numbered_channels(self._found),
            classes=content.classes if classes is None else _named_classes(classes),
            regions=content.regions,
            intensity=_intensity(content.channels, modality, window),
        )

    @abstractmethod
    def find_cases(self, content: DatasetJson) -> Iterator[SourceCase | PathError]:
        """As `Source.cases`, given what dataset.json says."""

    def cases(self) -> Iterator[SourceCase | PathError]:
        return iter(self._found)


def read_dataset_json(path: Path) -> DatasetJson:
    """Read `path` if it exists."""
    if not path.exists():
        return DatasetJson()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        channels = content.get("channel_names", content.get("modality")) or {}
        ordered = sorted(channels.items(), key=lambda item: int(item[0]))
        classes, regions = _read_labels(path, content["labels"])
        training = content.get("training")
        pairs = None
        if training and isinstance(training[0], dict):
            pairs = tuple((str(t["image"]), str(t["label"])) for t in training)
        return DatasetJson(tuple(str(name) for _, name in ordered), classes, regions, pairs)
    except PathError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PathError(
            path,
            f"is not a valid dataset.json ({type(error).__name__}: {error})",
            "correct it or remove it",
        ) from error


def _read_labels(path: Path, labels: dict[str, Any]) -> tuple[dict[int, str], dict[str, Any]]:
    """The Decathlon has {"1": "liver"}, nnU-Net {"liver": 1} and regions as {"all": [1, 2]}."""
    classes: dict[int, str] = {}
    regions: dict[str, tuple[int, ...]] = {}
    for key, value in labels.items():
        if isinstance(value, list):
            regions[key] = tuple(int(v) for v in value)
        elif str(key).isdigit():
            classes[int(key)] = str(value)
        else:
            classes[int(value)] = str(key)
    if "ignore" in classes.values():
        raise PathError(path, "has an 'ignore' label", "unlabeled voxels are not supported")
    top = max([*classes, *(v for region in regions.values() for v in region)])
    if not 0 < top < 256 or min(classes, default=0) < 0:
        raise PathError(path, f"has labels up to {top}", "labels must lie in 0 to 255")
    classes.setdefault(0, "background")
    return {v: classes.get(v, f"class {v}") for v in range(top + 1)}, regions


def _numbered_channels(found: Iterable[SourceCase | PathError]) -> tuple[str, ...]:
    """ "channel 0", …: as many as the first readable case has; the others must agree with it."""
    for case in found:
        if isinstance(case, NiftiCase):
            try:
                count = max(len(case.images), read_header(case.images[0]).channels)
            except PathError:
                continue  # reported when the case is read
            return tuple(f"channel {index}" for index in range(count))
    return ("channel 0",)


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
            raise ValueError(
                "Expected argument `window` for CT only, but this data set is MR; "
                "add --modality ct."
            )
        return Intensity()
    low, high = window or CT_WINDOW
    if not -math.inf < low < high < math.inf:
        raise ValueError(
            f"Expected argument `window` to be two finite values LOW < HIGH, but got {low}, {high}."
        )
    return Intensity(kind="window", low=low, high=high)
