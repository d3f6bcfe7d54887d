"""`dataset.json`, as the Decathlon and nnU-Net write it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segcal.core.documents import read_json
from segcal.core.errors import PathError
from segcal.data.grid import IGNORED


@dataclass(frozen=True)
class DatasetJson:
    """The content of a dataset.json. All of it is optional."""

    channels: tuple[str, ...] = ()
    classes: dict[int, str] = field(default_factory=dict)
    regions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    training: tuple[tuple[str, str], ...] | None = None
    ignore: int | None = None
    class_order: tuple[int, ...] = ()  # the label that nnU-Net writes for each region


def read_dataset_json(path: Path) -> DatasetJson:
    """Read `path` if it exists."""
    if not path.exists():
        return DatasetJson()
    try:
        content = read_json(path)
        channels = content.get("channel_names", content.get("modality")) or {}
        ordered = sorted(channels.items(), key=lambda item: int(item[0]))
        order = tuple(int(label) for label in content.get("regions_class_order") or ())
        classes, regions = _read_labels(path, content["labels"], bool(order))
        training = content.get("training")
        pairs = None
        if training and isinstance(training[0], dict):
            pairs = tuple((str(t["image"]), str(t["label"])) for t in training)
        ignore = content["labels"].get("ignore")
        names = tuple(str(name) for _, name in ordered)
        return DatasetJson(names, classes, regions, pairs, ignore, order)
    except PathError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = f"is not a valid dataset.json ({type(error).__name__}: {error})"
        raise PathError(path, problem, "correct it or remove it") from error


def _read_labels(
    path: Path, labels: dict[str, Any], has_regions: bool
) -> tuple[dict[int, str], dict[str, Any]]:
    """The Decathlon has {"1": "liver"}, nnU-Net {"liver": 1} and regions as {"all": [1, 2]}.

    With one region of several labels, nnU-Net trains a sigmoid for every entry but the background.
    """
    classes: dict[int, str] = {}
    regions: dict[str, tuple[int, ...]] = {}
    has_regions |= any(isinstance(value, list) and len(value) > 1 for value in labels.values())
    for key, value in labels.items():
        if not isinstance(value, list) and str(key).isdigit():
            classes[int(key)] = str(value)
        elif key != "ignore":
            members = tuple(int(v) for v in (value if isinstance(value, list) else [value]))
            if len(members) == 1:
                classes[members[0]] = str(key)
            if has_regions and any(members):
                regions[key] = members
    top = max([*classes, *(v for region in regions.values() for v in region)])
    if not 0 < top < IGNORED or min(classes, default=0) < 0:
        raise PathError(path, f"has labels up to {top}", "labels must lie in 0 to 254")
    classes.setdefault(0, "background")
    return {v: classes.get(v, f"class {v}") for v in range(top + 1)}, regions
