"""Rankings and paired tests of the study, over the methods and metrics that every dataset has."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from segcal.report.numbers import Numbers
from segcal.stats import (
    CaseScores,
    Missing,
    bootstrap_ranks,
    collect,
    compare,
    distinct_hypotheses,
    find_eligible,
    mean_case_rank,
    sum_rank,
)

if TYPE_CHECKING:
    import pandas as pd

# An undefined value becomes the worst that any method has: missing an organ must not pay.
MISSING: Missing = "worst"
ALPHA = 0.05
RESAMPLES = 1000
# With fewer cases a bootstrap repeats so few values that its interval reads as certainty; no exact
# paired test can be significant there either (2/2^5 > 0.05).
FEW_CASES = 6


@dataclass(frozen=True)
class Ranks:
    """Sum-rank, mean-case-rank, their intervals and all paired tests of one region.

    Attributes:
        sums: one row per method, best first: the rank on each `dataset/metric`, and `sum_rank`.
        cases: the same with `dataset/mean_case_rank` and `mean_case_rank`.
        intervals: 95 % intervals of both over resampled cases; NaN below `FEW_CASES` cases.
        tests: Wilcoxon's test of each pair, corrected by Holm over all of them.
        left_out: methods without rows of some dataset: they cannot be ranked.
        unpaired: datasets of which no case was tested by all methods: they cannot be compared.
        named: the method that the study is about, or "".
    """

    scores: CaseScores
    sums: "pd.DataFrame"
    cases: "pd.DataFrame"
    intervals: "pd.DataFrame"
    tests: "pd.DataFrame"
    region: str
    left_out: tuple[str, ...]
    unpaired: tuple[str, ...] = ()
    named: str = ""

    @property
    def best(self) -> str:
        """The method of the least sum-rank."""
        return str(self.sums["method"].iloc[0])

    @property
    def reference(self) -> str:
        """The method that is compared with the others: the named one if it is ranked, or the best.

        The best was chosen on the cases that it is tested on, which a name given before is not.
        """
        return self.named if self.named in self.scores.methods else self.best

    @property
    def family(self) -> int:
        """How many tests Holm's correction is over."""
        return len(distinct_hypotheses(self.tests))

    @property
    def datasets(self) -> list[str]:
        """The datasets that count."""
        return list(self.scores.values)


def rank_methods(numbers: Numbers, region: str) -> Ranks | None:
    """The ranking of the compared methods, or None where there is nothing to rank."""
    study, rows = numbers.study, numbers.rows
    chosen = find_eligible(rows, study.compared, study.metrics, region)
    if not chosen:
        return None
    rows = rows[rows["method"].isin(chosen.methods) & rows["dataset"].isin(chosen.datasets)]
    rows = rows[rows["metric"].isin({*chosen.metrics, "dsc"})]
    scores = collect(rows, metrics=chosen.metrics, region=region, missing=MISSING)
    scores = _in_order(scores, chosen.methods)
    return Ranks(
        scores, sum_rank(scores), mean_case_rank(scores),
        _intervals(scores), compare(scores), region,
        tuple(chosen.incomplete), tuple(chosen.unpaired),
        study.named.method if study.named is not None else "",
    )  # fmt: skip


def _intervals(scores: CaseScores) -> "pd.DataFrame":
    out = bootstrap_ranks(scores, RESAMPLES)
    if min(map(len, scores.cases.values())) < FEW_CASES:
        ends = [name for name in out.columns if name.endswith(("_low", "_high"))]
        out[ends] = float("nan")
    return out


def _in_order(scores: CaseScores, methods: list[str]) -> CaseScores:
    """The scores with methods in the order of the study, so that ties are shown in it."""
    at = [scores.methods.index(m) for m in methods]
    return replace(
        scores,
        methods=methods,
        values={d: v[:, at] for d, v in scores.values.items()},
        costs={d: v[:, at] for d, v in scores.costs.items()},
        undefined={d: v[at] for d, v in scores.undefined.items()},
    )


def least_p(ranks: Ranks) -> dict[str, float]:
    """The smallest p-value that Wilcoxon's exact test can give on each dataset: 2/2^n."""
    return {d: min(1.0, 2.0 ** (1 - len(cases))) for d, cases in ranks.scores.cases.items()}


def verdicts(tests: "pd.DataFrame", method: str, other: str) -> tuple[int, int]:
    """How many tests are won and lost by `method` against `other`, after correction."""
    pair = tests[
        ((tests["method"] == method) & (tests["other"] == other))
        | ((tests["method"] == other) & (tests["other"] == method))
    ]
    sure = pair[pair["p_holm"] < ALPHA]
    return int((sure["better"] == method).sum()), int((sure["better"] == other).sum())
