"""Comparisons of the reference with every other method, with seeds and cases both random."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from segcal.report.aggregates import Aggregates
from segcal.report.rankings import ALPHA, FEW_CASES, Rankings
from segcal.stats import compare_with_random_effects, distinct_hypotheses


@dataclass(frozen=True)
class SeedComparisons:
    """The rows of `segcal.stats.compare_with_random_effects` in one region.

    False if no pair of methods has two seeds in common and enough cases. `by_patient` has the
    datasets in which a patient has several cases; these are averaged first.
    """

    rows: pd.DataFrame
    reference: str
    region: str
    by_patient: frozenset[str]

    @property
    def judged(self) -> pd.DataFrame:
        """The comparisons with several seeds and enough cases."""
        return self.rows[self.rows["p_holm"].notna() & (self.rows["cases"] >= FEW_CASES)]

    @property
    def family(self) -> int:
        """The number of comparisons that Holm's correction is over."""
        return len(distinct_hypotheses(self.rows[self.rows["p_holm"].notna()]))

    @property
    def repeated(self) -> set[Any]:
        """Index of rows that repeat another: a calibrator left the masks unchanged."""
        known = self.rows[self.rows["mean_difference"].notna()]
        return set(known.index) - set(distinct_hypotheses(known).index)

    @property
    def datasets(self) -> list[str]:
        """The datasets with judged comparisons."""
        return [str(name) for name in dict.fromkeys(self.judged["dataset"])]

    def __bool__(self) -> bool:
        return not self.judged.empty


def seed_count(rows: pd.DataFrame) -> str:
    """The number of seeds, such as "3 seeds", or "2 to 3 seeds" if comparisons differ."""
    low, high = int(rows["seeds"].min()), int(rows["seeds"].max())
    return f"{low} seeds" if low == high else f"{low} to {high} seeds"


def significant(row: Any) -> bool:
    """Whether a difference is significant over seeds and cases, after correction."""
    return bool(row["p_holm"] < ALPHA and row["cases"] >= FEW_CASES)


def significant_over_cases_only(row: Any) -> bool:
    """Whether a difference is significant over cases, but not over seeds and cases."""
    enough = row["cases"] >= FEW_CASES and row["seeds"] > 1
    return bool(enough and row["p_cases_holm"] < ALPHA and not significant(row))


def compare_over_seeds(aggregates: Aggregates, rankings: Rankings, region: str) -> SeedComparisons:
    """Every ranked method against the reference, on the datasets and metrics of the ranking.

    Calibrated methods are included: they show whether training for calibration is worth it.
    Calibration is measured in `region`; Holm's correction is over the comparisons of one region.
    """
    rows, scores, study = aggregates.rows, rankings.scores, aggregates.study
    datasets = rankings.datasets
    calibrated = [
        m for m in study.in_group("posthoc") if all((d, m) in study.present for d in datasets)
    ]
    rows = rows[
        rows["method"].isin([*scores.methods, *calibrated])
        & rows["dataset"].isin(datasets)
        & rows["metric"].isin(scores.metrics)
    ]
    patients = {name: dataset.patients for name, dataset in study.datasets.items()}
    found = compare_with_random_effects(
        rows, reference=rankings.reference, metrics=scores.metrics, region=region,
        patients=patients,
    )  # fmt: skip
    shared = frozenset(name for name, of in patients.items() if len(set(of.values())) < len(of))
    return SeedComparisons(found, rankings.reference, region, shared)
