"""Which methods of a study are ranked, and their ranking: ranks, means and paired tests.

`ranks.csv`, the terminal and the report use `find_eligible`, so that a study has one ranking.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segcal.core.checks import check_choice
from segcal.core.patients import patients_of
from segcal.metrics import DEFAULT_REGION, POOLED, find_metric
from segcal.stats.patients import by_patient
from segcal.stats.ranking import (
    PAPER_METRICS,
    CaseScores,
    Missing,
    collect,
    mean_case_rank,
    sum_rank,
)
from segcal.stats.significance import bootstrap_ranks, compare, means_with_intervals

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


@dataclass(frozen=True)
class Ranking:
    """The values that are ranked, and the tables of a ranking, best method first."""

    scores: CaseScores
    ranks: "pd.DataFrame"  # sum-rank and mean-case-rank with intervals: `bootstrap_ranks`
    sum_rank: "pd.DataFrame"
    mean_case_rank: "pd.DataFrame"
    means: "pd.DataFrame"  # `means_with_intervals`
    comparisons: "pd.DataFrame"  # of the best method with the others: `compare`

    @property
    def best(self) -> str:
        """The method with the lowest sum-rank."""
        return str(self.ranks["method"].iloc[0])

    @property
    def tables(self) -> dict[str, "pd.DataFrame"]:
        """All tables by name."""
        names = ("ranks", "sum_rank", "mean_case_rank", "means", "comparisons")
        return {name: getattr(self, name) for name in names}

    def ranks_by_dataset(self) -> "pd.DataFrame":
        """`sum_rank` with one row per method and dataset, which fits the width of a terminal."""
        import pandas as pd

        rows = []
        for _, row in self.sum_rank.iterrows():
            for dataset in self.scores.cases:
                ranks = {metric: row[f"{dataset}/{metric}"] for metric in self.scores.metrics}
                rows.append({"method": row["method"], "dataset": dataset, **ranks})
            rows[-1]["sum_rank"] = row["sum_rank"]
        return pd.DataFrame(rows)


def rank_methods(
    table: "pd.DataFrame",
    *,
    methods: Sequence[str] | None = None,
    metrics: Sequence[str] | None = None,
    region: str = DEFAULT_REGION,
    missing: Missing = "raise",
    patient: str | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Ranking:
    """Rank the methods of a long table.

    Args:
        table: the long table; see `check_table` for optional columns.
        methods: the methods to rank; None for all.
        metrics: the metrics to rank by; None for DSC, HD95, ECE and CECE.
        region, missing: as `collect`.
        patient: regular expression that finds the patient in the name of a case. Patients then
            replace cases, with the mean over their cases.
        resamples, seed: as `bootstrap_ranks`.
    """
    if methods is not None:
        existing = list(dict.fromkeys(table["method"]))
        for name in methods:
            check_choice("--method", name, existing)
        table = table[table["method"].isin(methods)]
    scores = collect(table, metrics=metrics or PAPER_METRICS, region=region, missing=missing)
    if patient is not None:
        patients = {name: patients_of(cases, patient) for name, cases in scores.cases.items()}
        scores = by_patient(scores, patients)
    ranks = bootstrap_ranks(scores, resamples, seed=seed)
    means = means_with_intervals(scores)
    comparisons = compare(scores, reference=str(ranks["method"].iloc[0]))
    return Ranking(scores, ranks, sum_rank(scores), mean_case_rank(scores), means, comparisons)
