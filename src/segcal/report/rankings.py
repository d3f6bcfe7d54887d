"""Rankings, paired tests over cases, and comparisons with seeds and cases both random.

They are over the methods and metrics that every dataset has.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from segcal.report.aggregates import Aggregates
from segcal.stats import (
    CaseScores,
    Missing,
    bootstrap_ranks,
    collect,
    compare,
    compare_with_random_effects,
    distinct_hypotheses,
    find_eligible,
    mean_case_rank,
    sum_rank,
)

# An undefined value becomes the worst of any method: a missed organ must not improve a rank.
MISSING: Missing = "worst"
ALPHA = 0.05
RESAMPLES = 1000
# Fewer cases have no interval: a bootstrap repeats so few values that the interval is too narrow.
# No exact paired test can be significant there either (2/2^5 > 0.05).
FEW_CASES = 6


@dataclass(frozen=True)
class Rankings:
    """Sum-rank, mean-case-rank, their intervals and all paired tests in one region.

    Attributes:
        sums: one row per method, best first: the rank on each `dataset/metric`, and `sum_rank`.
        cases: the same with `dataset/mean_case_rank` and `mean_case_rank`.
        intervals: 95 % intervals of both over resampled cases; NaN below `FEW_CASES` cases.
        tests: Wilcoxon's test of each pair, corrected by Holm over all of them.
        left_out: methods that are not ranked because a dataset has no rows of them.
        unpaired: datasets that are not ranked because no case was evaluated with all methods.
        reference: the method that is compared with the others: the named one if it is ranked, or
            the best, which was selected on the cases that it is tested on.
    """

    scores: CaseScores
    sums: pd.DataFrame
    cases: pd.DataFrame
    intervals: pd.DataFrame
    tests: pd.DataFrame
    region: str
    left_out: tuple[str, ...]
    unpaired: tuple[str, ...]
    reference: str

    @property
    def best(self) -> str:
        """The method with the least sum-rank."""
        return str(self.sums["method"].iloc[0])

    @property
    def family(self) -> int:
        """The number of tests that Holm's correction is over."""
        return len(distinct_hypotheses(self.tests))

    @property
    def datasets(self) -> list[str]:
        """The datasets that count."""
        return list(self.scores.values)

    def ranked_value(self, dataset: str, method: str, metric: str) -> float:
        """The mean that is ranked where values are undefined or missing, and replaced; else NaN."""
        scores = self.scores
        if dataset in scores.values and method in scores.methods and metric in scores.metrics:
            i, j = scores.methods.index(method), scores.metrics.index(metric)
            if scores.undefined[dataset][i, j]:
                return float(np.nanmean(scores.values[dataset][:, i, j]))
        return float("nan")

    def wins_and_losses(self, method: str, other: str) -> tuple[int, int]:
        """How many tests `method` wins and loses against `other`, after correction."""
        pair = self.tests[["method", "other"]].isin([method, other]).all(axis=1)
        better = self.tests.loc[pair & (self.tests["p_holm"] < ALPHA), "better"]
        return int((better == method).sum()), int((better == other).sum())


def compute_rankings(aggregates: Aggregates, region: str) -> Rankings | None:
    """The ranking of the compared methods; None if fewer than two can be ranked."""
    study, rows = aggregates.study, aggregates.rows
    chosen = find_eligible(rows, study.compared, study.metrics, region)
    if not chosen:
        return None
    rows = rows[rows["method"].isin(chosen.methods) & rows["dataset"].isin(chosen.datasets)]
    rows = rows[rows["metric"].isin({*chosen.metrics, "dsc"})]
    scores = collect(rows, metrics=chosen.metrics, region=region, missing=MISSING)
    scores = _in_order(scores, chosen.methods)
    intervals = bootstrap_ranks(scores, RESAMPLES)
    if min(map(len, scores.cases.values())) < FEW_CASES:
        intervals.loc[:, intervals.columns.str.endswith(("_low", "_high"))] = np.nan
    sums, named = sum_rank(scores), study.named.method if study.named else ""
    reference = named if named in scores.methods else str(sums["method"].iloc[0])
    return Rankings(
        scores, sums, mean_case_rank(scores), intervals, compare(scores), region,
        tuple(chosen.incomplete), tuple(chosen.unpaired), reference,
    )  # fmt: skip


def _in_order(scores: CaseScores, methods: list[str]) -> CaseScores:
    """The scores with methods in the order of the study, in which ties are shown."""
    at = [scores.methods.index(m) for m in methods]
    return replace(
        scores,
        methods=methods,
        values={d: v[:, at] for d, v in scores.values.items()},
        costs={d: v[:, at] for d, v in scores.costs.items()},
        undefined={d: v[at] for d, v in scores.undefined.items()},
    )


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
        rows, reference=rankings.reference, metrics=scores.metrics, region=region, patients=patients
    )
    order = {name: place for place, name in enumerate([*study.datasets, *scores.metrics])}
    found = found.sort_values(
        ["dataset", "metric"], key=lambda names: names.map(order), kind="stable", ignore_index=True
    )
    shared = frozenset(name for name, of in patients.items() if len(set(of.values())) < len(of))
    return SeedComparisons(found, rankings.reference, region, shared)
