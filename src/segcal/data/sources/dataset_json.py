"""What a `dataset.json` says about a set: MSD's and nnU-Net's spellings of the same things."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segcal.core.checks import check_choice
from segcal.core.errors import PathError
from segcal.data.intensity import CT_WINDOW, Intensity
from segcal.data.sources.base import SourceOptions

MODALITIES = ("mr", "ct")


@dataclass(frozen=True)
class Description:
    """All optional: a set without `dataset.json` is described by its files alone."""

    channels: tuple[str, ...] | None = None
    classes: dict[int, str] | None = None
    regions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    training: tuple[tuple[str, str], ...] | None = None


def read_description(path: Path) -> Description:
    """Read `path` if it is there."""
    if not path.exists():
        return Description()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        channels = content.get("channel_names", content.get("modality"))
        names = None
        if channels is not None:
            names = tuple(str(v) for _, v in sorted(channels.items(), key=lambda kv: int(kv[0])))
        classes, regions = _labels(path, content["labels"])
        training = content.get("training")
        pairs = None
        if training and isinstance(training[0], dict):
            pairs = tuple((str(t["image"]), str(t["label"])) for t in training)
        return Description(names, classes, regions, pairs)
    except PathError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PathError(
            path,
            f"is not a valid dataset.json ({type(error).__name__}: {error})",
            "correct it or remove it",
        ) from error


def _labels(path: Path, labels: dict[str, Any]) -> tuple[dict[int, str], dict[str, Any]]:
    """MSD writes {"1": "liver"}, nnU-Net {"liver": 1} and regions as {"all": [1, 2]}."""
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
        raise PathError(path, "has an 'ignore' label", "unlabelled voxels are not supported")
    top = max([*classes, *(v for region in regions.values() for v in region)])
    if not 0 < top < 256 or min(classes, default=0) < 0:
        raise PathError(path, f"has labels up to {top}", "labels must lie in 0 to 255")
    classes.setdefault(0, "background")
    return {v: classes.get(v, f"class {v}") for v in range(top + 1)}, regions


def choose_classes(described: Description, options: SourceOptions) -> dict[int, str] | None:
    """The user's names for labels 1, 2, …, else the description's, else read off the labels."""
    if options.classes:
        return dict(enumerate(("background", *options.classes)))
    return described.classes


def choose_intensity(described: Description, options: SourceOptions) -> Intensity:
    """CT is windowed, everything else z-scored; the user's word comes first."""
    if options.modality is not None:
        check_choice("modality", options.modality, MODALITIES)
        is_ct = options.modality == "ct"
    else:
        is_ct = bool(described.channels) and all(
            c.lower() == "ct" for c in described.channels or ()
        )
    if not is_ct:
        if options.window is not None:
            raise ValueError(
                "Expected argument `window` only for CT, but this set is not: add --modality ct."
            )
        return Intensity(kind="zscore")
    low, high = options.window or CT_WINDOW
    if not -math.inf < low < high < math.inf:
        raise ValueError(
            f"Expected argument `window` to be two finite values LOW < HIGH, but got {low}, {high}."
        )
    return Intensity(kind="window", low=low, high=high)
