"""Which methods, datasets and metrics of a study are ranked.

`ranks.csv`, the terminal and the report use this module, so that a study has one ranking.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segcal.metrics import POOLED, find_metric

if TYPE_CHECKING:
    import pandas as pd

# Groups of variants of a method, which are not ranked beside other methods.
_VARIANTS = ("ablation", "prior", "posthoc")


@dataclass(frozen=True)
class Eligible:
    """What can be ranked."""

    methods: list[str]  # with rows of every dataset, in the order of the study
    incomplete: list[str]  # methods that lack rows of a dataset
    datasets: list[str]  # with a case that all methods were evaluated on
    unpaired: list[str]  # datasets without such a case
    metrics: list[str]  # with a direction, and with values on every dataset

    def __bool__(self) -> bool:
        """Whether there is a ranking: at least two methods and one metric."""
        return len(self.methods) > 1 and bool(self.metrics)


def ranked_methods(groups: Mapping[str, str]) -> list[str]:
    """The methods to rank, from the group of each method: the main ones, or all.

    All methods are ranked if fewer than two are main ones: a study of ablations, priors or
    calibrators compares them with each other. An unknown group counts as main.

    Example:
        >>> ranked_methods({"ce": "main", "nacl": "main", "nacl_max": "ablation"})
        ['ce', 'nacl']
    """
    chosen = [name for name, group in groups.items() if group not in _VARIANTS]
    return chosen if len(chosen) > 1 else list(groups)


def find_eligible(
    table: "pd.DataFrame", candidates: Sequence[str], metrics: Sequence[str], region: str
) -> Eligible:
    """What can be ranked in a long table, for calibration in `region`; see `ranked_methods`."""
    rows = table[(table["case"] != POOLED) & table["method"].isin(candidates)]
    cases: dict[tuple[str, str], set[str]] = {}
    keys = rows[["dataset", "method", "case"]].drop_duplicates()
    for dataset, method, case in keys.itertuples(index=False):
        cases.setdefault((str(dataset), str(method)), set()).add(str(case))
    existing = [str(name) for name in dict.fromkeys(rows["dataset"])]
    methods = [m for m in candidates if existing and all((d, m) in cases for d in existing)]
    datasets = [
        d for d in existing if methods and set.intersection(*(cases[d, m] for m in methods))
    ]
    rows = rows[rows["method"].isin(methods) & rows["dataset"].isin(datasets)]
    known = rows[rows["value"].notna()].groupby(["metric", "region"], observed=True)["dataset"]
    count = known.nunique()
    rankable = []
    for name in metrics:
        metric = find_metric(name)
        where = "all" if metric.whole_image else region
        if metric.better and int(count.get((name, where), 0)) == len(datasets) > 0:
            rankable.append(name)
    incomplete = [m for m in candidates if m not in methods]
    unpaired = [d for d in existing if d not in datasets]
    return Eligible(methods, incomplete, datasets, unpaired, rankable)
