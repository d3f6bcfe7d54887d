"""What a study shows and ranks: which methods, by which metrics, and their means.

Whoever ranks a study (its own ranks.csv, the terminal, the report) asks here, so that there is one
ranking of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segcal.metrics.table import DIRECTIONS, POOLED, SEGMENTATION, base_metric

if TYPE_CHECKING:
    import pandas as pd

# Variants of one method: they would crowd the ranking of the others.
_VARIANTS = ("ablation", "prior")


@dataclass(frozen=True)
class Ranked:
    """What can be ranked.

    Attributes:
        methods: those that have rows of every dataset, in the order of the study.
        left_out: those that should be ranked but lack some dataset.
        datasets: those that count.
        metrics: those that every dataset has some value of.
    """

    methods: list[str]
    left_out: list[str]
    datasets: list[str]
    metrics: list[str]

    def __bool__(self) -> bool:
        """One method alone has no rank."""
        return len(self.methods) > 1 and bool(self.metrics)


def ranked_methods(groups: Mapping[str, str]) -> list[str]:
    """The methods to be ranked, from the group of each: main and post-hoc ones, or all.

    All where those are fewer than two: a study of ablations or priors compares them with each
    other. A group that is not known counts as main.

    Example:
        >>> ranked_methods({"ce": "main", "nacl": "main", "nacl_max": "ablation"})
        ['ce', 'nacl']
    """
    chosen = [name for name, group in groups.items() if group not in _VARIANTS]
    return chosen if len(chosen) > 1 else list(groups)


def choose_ranked(
    table: "pd.DataFrame", candidates: Sequence[str], metrics: Sequence[str], region: str
) -> Ranked:
    """What of a long table can be ranked.

    Args:
        table: the long table.
        candidates: the methods, as `ranked_methods` gives them.
        metrics: as the rows name them.
        region: where calibration was measured.
    """
    rows = table[(table["case"] != POOLED) & table["method"].isin(candidates)]
    pairs = set(zip(rows["dataset"].astype(str), rows["method"].astype(str), strict=True))
    datasets = [str(name) for name in dict.fromkeys(rows["dataset"])]
    methods = [m for m in candidates if datasets and all((d, m) in pairs for d in datasets)]
    rows = rows[rows["method"].isin(methods) & rows["value"].notna()]
    there = rows.groupby(["metric", "region"], observed=True)["dataset"].nunique()
    can = [
        m
        for m in metrics
        if DIRECTIONS.get(base_metric(m))
        and int(there.get((m, region_of(m, region)), 0)) == len(datasets) > 0
    ]
    return Ranked(methods, [m for m in candidates if m not in methods], datasets, can)


def region_of(metric: str, region: str) -> str:
    """Where the rows of a metric were measured: segmentation and logits are of the whole image."""
    whole = base_metric(metric) in SEGMENTATION or metric == "mean_abs_logit"
    return "all" if whole else region


def dataset_means(
    table: "pd.DataFrame", metrics: Sequence[str], region: str
) -> dict[tuple[str, str, str], float]:
    """(dataset, method, metric) → the mean over labels, then cases, then seeds.

    Undefined values are left out. Datasets are never mixed: a millimetre of a heart is not one of
    an abdomen.
    """
    out = {}
    cases = table[table["case"] != POOLED]
    for metric in metrics:
        rows = cases[(cases["metric"] == metric) & (cases["region"] == region_of(metric, region))]
        values = rows.set_index(["dataset", "method", "seed", "case"])["value"]
        for level in range(4, 1, -1):
            keys = ["dataset", "method", "seed", "case"][:level]
            values = values.groupby(level=keys, observed=True, sort=False).mean()
        for dataset, method, value in values.reset_index().itertuples(index=False):
            out[str(dataset), str(method), metric] = float(value)
    return out
