"""A complete ranking of the methods of a long table: ranks, means and paired tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segcal.core.checks import check_choice
from segcal.core.patients import patients_of
from segcal.metrics import DEFAULT_REGION
from segcal.stats.patients import by_patient
from segcal.stats.ranking import (
    PAPER_METRICS,
    CaseScores,
    Missing,
    collect,
    mean_case_rank,
    sum_rank,
)
from segcal.stats.significance import bootstrap_means, bootstrap_ranks, compare

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Ranking:
    """The values that are ranked, and the tables of a ranking, best method first."""

    scores: CaseScores
    ranks: "pd.DataFrame"  # sum-rank and mean-case-rank with intervals: `bootstrap_ranks`
    sum_rank: "pd.DataFrame"
    mean_case_rank: "pd.DataFrame"
    means: "pd.DataFrame"  # with intervals: `bootstrap_means`
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
        resamples, seed: as `bootstrap_means`.
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
    means = bootstrap_means(scores, resamples, seed=seed)
    comparisons = compare(scores, reference=str(ranks["method"].iloc[0]))
    return Ranking(scores, ranks, sum_rank(scores), mean_case_rank(scores), means, comparisons)
