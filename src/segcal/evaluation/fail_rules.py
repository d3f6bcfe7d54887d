"""Limits on the metrics of an audit, `--fail-if`, to guard a release."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segcal.core.checks import check_choice
from segcal.metrics import DEFAULT_REGION, POOLED, REGIONS, find_metric, get_metric
from segcal.study import Evaluation

if TYPE_CHECKING:
    import pandas as pd

_RULE = re.compile(r"(?:(\w+):)?([\w.]+)(>=|<=|>|<)([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """A limit that a metric in a region must not violate."""

    text: str
    region: str
    metric: str
    sign: str
    limit: float

    @property
    def subject(self) -> str:
        """The metric, and its region if it has one."""
        whole = find_metric(self.metric).whole_image
        return self.metric if whole else f"{self.metric} ({self.region})"


def parse_rule(text: str) -> Rule:
    """A rule from `[REGION:]METRIC(>|>=|<|<=)NUMBER`; the default region is `all`.

    METRIC is a registered metric, with or without its unit or tolerance ("hd95", "hd95_voxel",
    "nsd_1mm").

    Example:
        >>> parse_rule("foreground:ece > 0.05").limit
        0.05
    """
    match = _RULE.fullmatch("".join(text.split()))
    if match is None:
        example = "write for example 'ece>0.05' or 'foreground:cece>=0.1'"
        raise ValueError(f"--fail-if {text!r} is not a rule; {example}")
    region, metric = match[1] or DEFAULT_REGION, match[2]
    check_choice("--fail-if", region, REGIONS)
    get_metric(metric)
    if match[1] and find_metric(metric).whole_image:
        raise ValueError(f"--fail-if {text!r}: {metric} has no region; omit {match[1]}:")
    return Rule(text, region, metric, match[3], float(match[4]))


def check_rules(networks: Mapping[str, Evaluation], rules: Sequence[Rule]) -> list[str]:
    """One line for every rule that a network violates, or that cannot be checked."""
    lines = []
    for title, evaluation in networks.items() if rules else ():
        table = evaluation.table()
        lines += [f"{title}: {line}" for rule in rules if (line := _violation(table, rule))]
    return lines


def _violation(table: pd.DataFrame, rule: Rule) -> str:
    """Why a network fails a rule; "" if it passes."""
    measured = [str(name) for name in table["metric"].unique()]
    names = [name for name in measured if rule.metric in (name, find_metric(name).key)]
    unchecked = f"--fail-if {rule.text!r} cannot be checked"
    if len(names) != 1:
        similar = [
            name for name in measured if find_metric(name).key == find_metric(rule.metric).key
        ]
        return f"{unchecked}: measured was {', '.join(similar) or 'no such metric'}"
    whole = find_metric(rule.metric).whole_image
    region = "all" if whole else rule.region
    rows = table[(table["case"] != POOLED) & (table["metric"] == names[0])]
    values = rows.loc[rows["region"] == region, "value"]
    undefined, mean = int(values.isna().sum()), float(values.mean())
    # A missed structure has no distance: skipping it would let a worse network pass.
    if math.isnan(mean) or (undefined and whole):
        count = f"{undefined} of {len(values)} values"
        return f"{unchecked}: {rule.subject} is undefined in {count}"
    if not _COMPARISONS[rule.sign](mean, rule.limit):
        return ""
    skipped = f" ({undefined} cases without such voxels skipped)" if undefined else ""
    return f"mean {rule.subject} = {mean:.4g}{skipped} violates --fail-if {rule.text!r}"
