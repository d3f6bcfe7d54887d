"""What of a study is ranked: which methods, on which datasets, by which metrics.

Whoever ranks a study (its own ranks.csv, the terminal, the report) asks here, so that there is one
ranking of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segcal.metrics.table import DIRECTIONS, POOLED, base_metric, whole_image

if TYPE_CHECKING:
    import pandas as pd

# Variants of one method: they would crowd the ranking of the others. A calibrated network has even
# the masks of its own.
_VARIANTS = ("ablation", "prior", "posthoc")


@dataclass(frozen=True)
class Ranked:
    """What can be ranked.

    Attributes:
        methods: those that have rows of every dataset, in the order of the study.
        left_out: those that should be ranked but lack some dataset.
        datasets: those that count.
        unpaired: datasets of which no case was tested by all methods: they cannot be compared.
        metrics: those that every dataset has some value of.
    """

    methods: list[str]
    left_out: list[str]
    datasets: list[str]
    unpaired: list[str]
    metrics: list[str]

    def __bool__(self) -> bool:
        """One method alone has no rank."""
        return len(self.methods) > 1 and bool(self.metrics)


def ranked_methods(groups: Mapping[str, str]) -> list[str]:
    """The methods to be ranked, from the group of each: the main ones, or all.

    All where those are fewer than two: a study of ablations, of priors or of calibrators compares
    them with each other. A group that is not known counts as main.

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
    cases: dict[tuple[str, str], set[str]] = {}
    keys = rows[["dataset", "method", "case"]].drop_duplicates()
    for dataset, method, case in keys.itertuples(index=False):
        cases.setdefault((str(dataset), str(method)), set()).add(str(case))
    there = [str(name) for name in dict.fromkeys(rows["dataset"])]
    methods = [m for m in candidates if there and all((d, m) in cases for d in there)]
    datasets = [d for d in there if methods and set.intersection(*(cases[d, m] for m in methods))]
    rows = rows[rows["method"].isin(methods) & rows["dataset"].isin(datasets)]
    known = rows[rows["value"].notna()].groupby(["metric", "region"], observed=True)["dataset"]
    count = known.nunique()
    can = [
        m
        for m in metrics
        if DIRECTIONS.get(base_metric(m))
        and int(count.get((m, "all" if whole_image(m) else region), 0)) == len(datasets) > 0
    ]
    left_out = [m for m in candidates if m not in methods]
    return Ranked(methods, left_out, datasets, [d for d in there if d not in datasets], can)
