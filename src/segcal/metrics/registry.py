"""Metrics by name: what each measures, which direction is better, how it is read off a case.

Rankings, `--fail-if`, tables, reports and the wrappers for torchmetrics and MONAI take these facts
from the registry `METRICS`. A metric of another package is registered through the entry point group
`segcal.metrics`, or is requested by its import path `package.module:Object`.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from segcal.core.checks import check_choice
from segcal.metrics.options import CaseOptions
from segcal.registry import Registry

Better = Literal["higher", "lower", "zero"]
Scope = Literal["structure", "region", "image"]
Suffix = Literal["none", "unit", "tolerance"]
Requirement = Literal["logits", "true_probs", "readers", "members"]


@dataclass(frozen=True)
class Metric:
    """A metric of a case: a function, and the facts about it.

    `METRICS.register("fnr", Metric("fnr", "missed share", missed_share, "lower", "structure"))`

    Attributes:
        key: its name in rows, in options and on the command line, such as "ece".
        title: its name in tables and figures.
        read: computes the value. Its argument depends on `scope`: a `StructureData`, a
            `RegionData` or a `CaseData`. It returns a number, NaN where the metric is undefined,
            or, for the scopes "region" and "image", an array with one number per class. For the
            scope "structure", an array with one number per reader gives rows such as "liver/2".
        better: "higher" or "lower" values, or values closer to "zero". None for a metric that
            describes the data or the model and cannot be ranked.
        scope: "structure" for a value per structure of the whole image, "region" for a value in
            each region of `REGIONS`, "image" for a value of the whole image.
        unit: its unit in tables. The unit of a distance is given by `CaseOptions.units`.
        suffix: what rows append to the key: "unit" for a distance ("hd95_mm", "hd95_voxel"),
            "tolerance" for the tolerance of a surface Dice ("nsd_2mm").
        additive: whether `read` uses only `bins` and `scores` of its region. Such a metric can be
            pooled over cases, and is available in torchmetrics and MONAI.
        requires: an input without which the metric is skipped. Metrics of regions that require
            "readers" get the statistics against the frequency of the readers' labels.
        default: whether it is computed without being requested in `CaseOptions.metrics`.
        limits: the lowest and the highest possible value; intervals of means end there.
        registered: False for the result of `find_metric` for an unknown name.
    """

    key: str
    title: str
    read: Callable[[Any], Any]
    better: Better | None
    scope: Scope
    unit: str = ""
    suffix: Suffix = "none"
    additive: bool = False
    requires: Requirement | None = None
    default: bool = False
    registered: bool = True
    limits: tuple[float, float] = (-math.inf, math.inf)

    def __post_init__(self) -> None:
        if self.registered and not re.fullmatch(r"\w+", self.key):
            raise ValueError(
                "Expected argument `key` to consist of letters, digits and underscores, "
                f"but got {self.key!r}."
            )
        check_choice("scope", self.scope, get_args(Scope))
        check_choice("suffix", self.suffix, get_args(Suffix))
        if self.better is not None:
            check_choice("better", self.better, get_args(Better))
        if self.additive and self.scope != "region":
            raise ValueError("Expected argument `scope` to be 'region' for an additive metric.")

    @property
    def whole_image(self) -> bool:
        """Whether it is of the whole image, so that its rows have the region "all"."""
        return self.scope != "region"

    @property
    def per_structure(self) -> bool:
        """Whether it has a value for each structure, as DSC and distances have."""
        return self.scope == "structure"

    def row_name(self, options: CaseOptions) -> str:
        """Its name in rows.

        Example:
            >>> find_metric("hd95").row_name(CaseOptions())
            'hd95_mm'
        """
        if self.suffix == "tolerance":
            return f"{self.key}_{options.nsd_tolerance_mm:g}mm"
        return f"{self.key}_{options.units}" if self.suffix == "unit" else self.key

    @property
    def about(self) -> str:
        """Title, unit, direction, and the name in tables and rules if that is not the key.

        Example:
            >>> find_metric("hd95").about
            'HD95, mm; lower is better; in tables and --fail-if: hd95_mm'
        """
        name = self.row_name(CaseOptions())
        unit = find_metric(name).unit if self.suffix == "unit" else self.unit
        parts = [self.title + (f", {unit}" if unit else ""), _DIRECTIONS[self.better]]
        if name != self.key:
            parts.append(f"in tables and --fail-if: {name}")
        return "; ".join(parts)

    def is_measured(self, options: CaseOptions) -> bool:
        """Whether these options allow the metric: a tolerance in mm needs distances in mm."""
        return self.suffix != "tolerance" or options.units == "mm"


METRICS: Registry[Metric] = Registry(
    "metric", "segcal.metrics", lambda thing: isinstance(thing, Metric), "a segcal.metrics.Metric"
)

_WITH_SUFFIX = re.compile(r"(\w+)_(\d+(?:\.\d+)?)?(mm|voxel)")  # key, tolerance, unit
_DIRECTIONS = {
    "higher": "higher is better",
    "lower": "lower is better",
    "zero": "zero is best",
    None: "descriptive",
}
_UNIT_TITLES = {"mm": "mm", "voxel": "voxels"}


def find_metric(name: str) -> Metric:
    """The metric of a row's name, with the title and the unit that belong to this name.

    A name that is not registered (in a table of another tool) gives a metric that only describes:
    `registered` is False, its key and title are the name.

    Example:
        >>> nsd, hd95, other = map(find_metric, ("nsd_1.5mm", "hd95_voxel", "unknown"))
        >>> (nsd.key, nsd.title, nsd.unit), (hd95.key, hd95.title, hd95.unit), other.title
        (('nsd', 'NSD 1.5mm', ''), ('hd95', 'HD95', 'voxels'), 'unknown')
    """
    if name in METRICS:
        return METRICS.get(name)
    match = _WITH_SUFFIX.fullmatch(name)
    if match and match[1] in METRICS:
        metric, tolerance, unit = METRICS.get(match[1]), match[2], match[3]
        if metric.suffix == "unit" and not tolerance:
            return replace(metric, unit=_UNIT_TITLES[unit])
        if metric.suffix == "tolerance" and tolerance:
            return replace(metric, title=f"{metric.title} {tolerance}{unit}")
    return Metric(name, name, float, None, "region", registered=False)


def get_metric(name: str) -> Metric:
    """The metric with this name, or at this import path, which is then registered by its key.

    Raises:
        ValueError: there is no such metric; the message gives the nearest name.
    """
    found = find_metric(name)
    if not found.registered:
        found = METRICS.get(name)
        METRICS.register(found.key, found)
    return found


def default_metrics() -> list[Metric]:
    """The metrics that are computed without being requested, in the order of registration."""
    return [metric for metric in METRICS.available().values() if metric.default]


def ranking_direction(name: str) -> Better:
    """Which values are better.

    Raises:
        ValueError: the metric is not registered, or is descriptive.
    """
    better = get_metric(name).better
    if better is None:
        raise ValueError(f"{name} is descriptive and cannot be ranked")
    return better
