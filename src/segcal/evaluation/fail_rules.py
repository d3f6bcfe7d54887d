"""Rules on the metrics of an audit, `--fail-if`, to guard a release."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from segcal.core.checks import check_choice
from segcal.metrics import POOLED, REGIONS
from segcal.study import Evaluation

# What a rule may speak of. Those of the whole segmentation have no region.
_SEGMENTATION = ("dsc", "hd95_mm", "hd95_max_mm", "hd_mm", "assd_mm", "nsd_2mm")
_CALIBRATION = (
    "ece", "cece", "ace", "mce", "adaptive_ece", "signed_gap", "brier", "nll", "mean_confidence",
)  # fmt: skip
_RULE = re.compile(r"^(?:(\w+):)?(\w+)(>=|<=|>|<)([-+.\deE]+)$")
_HOLDS: dict[str, Callable[[float, float], bool]] = {
    ">": lambda value, limit: value > limit,
    ">=": lambda value, limit: value >= limit,
    "<": lambda value, limit: value < limit,
    "<=": lambda value, limit: value <= limit,
}


@dataclass(frozen=True)
class Rule:
    """`--fail-if`: a metric in a region, a comparison and a limit."""

    text: str
    region: str
    metric: str
    sign: str
    limit: float


def parse_rule(text: str) -> Rule:
    """`[REGION:]METRIC(>|>=|<|<=)NUMBER`; without a region, all voxels.

    Example:
        >>> parse_rule("foreground:ece > 0.05").limit
        0.05
    """
    match = _RULE.match("".join(text.split()))
    try:
        limit = float(match[4]) if match else math.nan
    except ValueError:
        limit = math.nan
    if match is None or not math.isfinite(limit):
        raise ValueError(
            "Expected argument `--fail-if` to be a rule such as 'ece>0.05' or "
            f"'foreground:cece>=0.1', but got {text!r}."
        )
    region, metric = match[1] or "all", "hd95_mm" if match[2] == "hd95" else match[2]
    check_choice("--fail-if", region, REGIONS)
    check_choice("--fail-if", metric, (*_CALIBRATION, *_SEGMENTATION))
    if match[1] and metric in _SEGMENTATION:
        raise ValueError(
            f"Expected argument `--fail-if` to name no region for {metric}, which has none, but "
            f"got {text!r}."
        )
    return Rule(text, region, metric, match[3], limit)


def check_rules(networks: Mapping[str, Evaluation], rules: Sequence[Rule]) -> list[str]:
    """One line for every rule that holds, or cannot be judged, for a network."""
    return [
        line
        for title, found in networks.items()
        for rule in rules
        if (line := _broken(title, found, rule)) is not None
    ]


def _broken(title: str, found: Evaluation, rule: Rule) -> str | None:
    table = found.table()
    chosen = table[(table["case"] != POOLED) & (table["metric"] == rule.metric)]
    whole = rule.metric in _SEGMENTATION
    chosen = chosen if whole else chosen[(chosen["region"] == rule.region)]
    chosen = chosen[chosen["label"].isin(["all", *found.structures])]
    undefined = int(chosen["value"].isna().sum())
    mean = float(chosen["value"].mean())
    what = rule.metric if whole else f"{rule.metric} in region {rule.region}"
    # A missed organ has no distance: leaving it out would make a worse network pass.
    if math.isnan(mean) or (undefined and whole):
        return (
            f"{title}: {what} is undefined in {undefined} of {len(chosen)} values, so "
            f"--fail-if {rule.text!r} cannot be judged"
        )
    if not _HOLDS[rule.sign](mean, rule.limit):
        return None
    left_out = f" ({undefined} without such voxels left out)" if undefined else ""
    return (
        f"{title}: {what} is {mean:.4g} on average over cases{left_out}: --fail-if "
        f"{rule.text!r} holds"
    )
