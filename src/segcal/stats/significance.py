"""How sure a ranking is: paired tests between methods, and bootstrap intervals over cases."""

import warnings
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from segcal.core.checks import check_choice, check_int, check_number
from segcal.stats.ranking import (
    PAPER_METRICS,
    CaseScores,
    Floats,
    case_ranks,
    collect,
    mean_costs,
    provenance,
    rank,
)

if TYPE_CHECKING:
    import pandas as pd

Ints = npt.NDArray[np.int64]


def holm(p_values: npt.ArrayLike) -> Floats:
    """Holm's correction: the i-th smallest of m p-values times m − i + 1, kept increasing.

    Controls the chance of any false positive in the family, without assuming independence.

    Example:
        >>> [round(float(p), 3) for p in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    out = np.empty_like(p)
    out[order] = np.minimum(stepped, 1.0)
    return out


def holm_once(p_values: npt.ArrayLike, questions: Ints) -> Floats:
    """Holm's correction where a question that is asked twice counts once; see `ask`.

    What asks nothing (question 0) is no test and keeps p = 1, what has no p-value has none after.
    """
    p = np.asarray(p_values, dtype=np.float64)
    corrected: Floats = np.where(np.isnan(p), np.nan, 1.0)
    tested = (questions > 0) & ~np.isnan(p)
    _, first, which = np.unique(questions[tested], return_index=True, return_inverse=True)
    corrected[tested] = holm(p[tested][first])[which]
    return corrected


def ask(comparisons: Sequence[tuple[str, str, Floats]]) -> Ints:
    """A number for what each comparison (dataset, metric, differences) asks, whoever comes first.

    Comparisons of the same numbers have the same: a calibrator that leaves every mask as it was has
    the Dice of its network. 0 where no case differs.
    """
    known = {b"": 0}
    return np.array([known.setdefault(_key(*each), len(known)) for each in comparisons], np.int64)


def _key(dataset: str, metric: str, differences: Floats) -> bytes:
    rounded = np.round(np.ravel(differences), 12)
    found = rounded[np.nonzero(rounded)]
    if not found.size:
        return b""
    turned: bytes = (rounded * np.sign(found[0]) + 0.0).tobytes()  # no negative zeros
    return f"{dataset}/{metric}/{differences.shape}/".encode() + turned


def once(comparisons: "pd.DataFrame") -> "pd.DataFrame":
    """The rows of `compare` or `compare_crossed` that ask something, each question once."""
    return comparisons[comparisons["question"] > 0].drop_duplicates("question")


def compare(
    table: "pd.DataFrame",
    *,
    reference: str | None = None,
    metrics: Sequence[str] | str = PAPER_METRICS,
    region: str = "foreground",
    missing: str = "raise",
) -> "pd.DataFrame":
    """Paired Wilcoxon signed-rank tests over cases, corrected by Holm over all that are returned.

    One row per dataset, metric and pair: `mean_difference` is the mean over cases of the value of
    `method` minus that of `other`; `better` names the one the metric's direction prefers;
    `p_value`, `p_holm`, and `cases`; `region`, `missing`, and `undefined`, the values that both
    lacked together. Pairs without any difference have p = 1 and are no test; pairs that compare the
    same numbers (masks that a calibrator left as they were) have the same `question` and count once
    for Holm's correction. A reference chosen because it is the best on the same cases flatters
    itself: the p-values then do not account for the choice.

    Args:
        reference: compare this method with every other; None compares every pair.
        table, metrics, region, missing: as `collect`.
    """
    scores = collect(table, metrics=metrics, region=region, missing=missing)
    return compare_of(scores, reference)


def compare_of(scores: CaseScores, reference: str | None = None) -> "pd.DataFrame":
    """`compare` of collected scores."""
    import pandas as pd

    if reference is None:
        pairs = list(combinations(scores.methods, 2))
    else:
        check_choice("reference", reference, scores.methods)
        pairs = [(reference, m) for m in scores.methods if m != reference]
    rows = [
        _comparison(scores, dataset, i, method, other)
        for dataset in scores.values
        for i in range(len(scores.metrics))
        for method, other in pairs
    ]
    questions = ask([(row["dataset"], row["metric"], row.pop("differences")) for row in rows])
    out = pd.DataFrame(rows, columns=list(_COMPARISON)).assign(question=questions)
    out["p_holm"] = holm_once(out["p_value"], questions)
    return out


_COMPARISON = (
    "dataset", "metric", "method", "other", "mean_difference", "better", "p_value", "p_holm",
    "question", "cases", "region", "missing", "undefined",
)  # fmt: skip


def _comparison(
    scores: CaseScores, dataset: str, i: int, method: str, other: str
) -> dict[str, Any]:
    pair = [scores.methods.index(method), scores.methods.index(other)]
    values, costs = scores.values[dataset][:, pair, i], scores.costs[dataset][:, pair, i]
    kept = ~np.isnan(costs).any(axis=1)
    edge = costs[kept, 0] - costs[kept, 1]
    return {
        "dataset": dataset,
        "metric": scores.metrics[i],
        "method": method,
        "other": other,
        "mean_difference": _mean(values[kept, 0] - values[kept, 1]),
        "better": preferred(method, other, _mean(edge)),
        "p_value": _wilcoxon(edge),
        "differences": edge,
        "cases": int(kept.sum()),
        "region": scores.region_of(scores.metrics[i]),
        "missing": scores.missing,
        "undefined": int(scores.undefined[dataset][pair, i].sum()),
    }


def _mean(values: Floats) -> float:
    return float(values.mean()) if values.size else float("nan")


def preferred(method: str, other: str, edge: float) -> str:
    """Which of the two a difference in costs (method minus other) is in favour of."""
    if not abs(edge) >= 1e-12:  # NaN prefers nobody
        return "neither"
    return method if edge < 0 else other


def _wilcoxon(difference: Floats) -> float:
    from scipy.stats import wilcoxon

    difference = np.round(difference, 12)  # what ties in the ranks is no difference here
    if not difference.any():
        return 1.0
    with warnings.catch_warnings():
        # Older scipy says so where pairs without a difference leave it no exact distribution.
        warnings.filterwarnings("ignore", "Sample size too small", UserWarning)
        return float(wilcoxon(difference).pvalue)


def bootstrap_means(
    table: "pd.DataFrame",
    *,
    metrics: Sequence[str] | str = PAPER_METRICS,
    region: str = "foreground",
    missing: str = "raise",
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> "pd.DataFrame":
    """Percentile intervals of the mean of each dataset, metric and method, resampling cases.

    Returns `dataset, metric, method, mean, low, high, cases, region, missing, undefined`. The same
    resamples serve every method. One case tells nothing of the spread: the interval is NaN.

    Args:
        resamples: how many times the cases of each dataset are drawn with replacement.
        confidence: of the interval.
        seed: of the draws; the same seed gives the same table.
        table, metrics, region, missing: as `collect`.
    """
    scores = collect(table, metrics=metrics, region=region, missing=missing)
    return bootstrap_means_of(scores, resamples, confidence, seed)


def bootstrap_means_of(
    scores: CaseScores, resamples: int = 2000, confidence: float = 0.95, seed: int = 0
) -> "pd.DataFrame":
    """`bootstrap_means` of collected scores."""
    import pandas as pd

    draws = _Draws(scores, resamples, confidence, seed)
    rows = []
    for dataset, values in scores.values.items():
        mean, count = np.nanmean(values, axis=0), (~np.isnan(values)).sum(axis=0)
        low, high = draws.interval(draws.means(dataset, values))
        for i, metric in enumerate(scores.metrics):
            for j, method in enumerate(scores.methods):
                known = count[j, i] > 1
                rows.append({
                    "dataset": dataset,
                    "metric": metric,
                    "method": method,
                    "mean": mean[j, i],
                    "low": low[j, i] if known else np.nan,
                    "high": high[j, i] if known else np.nan,
                    "cases": int(count[j, i]),
                    "region": scores.region_of(metric),
                    "missing": scores.missing,
                    "undefined": int(scores.undefined[dataset][j, i]),
                })  # fmt: skip
    return pd.DataFrame(rows)


def bootstrap_ranks(
    table: "pd.DataFrame",
    *,
    metrics: Sequence[str] | str = PAPER_METRICS,
    region: str = "foreground",
    missing: str = "raise",
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> "pd.DataFrame":
    """Percentile intervals of sum-rank and mean-case-rank, resampling cases in each dataset.

    Returns per method, best sum-rank first: `sum_rank, sum_rank_low, sum_rank_high` and the same of
    `mean_case_rank`; `region`, `missing` and `undefined` as `sum_rank`; and `dropped_draws`, how
    many resamples drew no case that has some metric, and were left out of the interval of sum-rank.
    Where a dataset has one case only, the intervals are NaN. Arguments as `bootstrap_means`.
    """
    scores = collect(table, metrics=metrics, region=region, missing=missing)
    return bootstrap_ranks_of(scores, resamples, confidence, seed)


def bootstrap_ranks_of(
    scores: CaseScores, resamples: int = 2000, confidence: float = 0.95, seed: int = 0
) -> "pd.DataFrame":
    """`bootstrap_ranks` of collected scores."""
    import pandas as pd

    draws = _Draws(scores, resamples, confidence, seed)
    sums, sum_draws = np.zeros(len(scores.methods)), np.zeros((resamples, len(scores.methods)))
    case_sum, case_draws, cases = np.zeros_like(sums), np.zeros_like(sum_draws), 0
    for dataset, costs in scores.costs.items():
        ranks = case_ranks(scores, dataset)
        sums += rank(mean_costs(scores, dataset), axis=0).sum(axis=1)
        sum_draws += rank(draws.means(dataset, costs), axis=1).sum(axis=2)
        case_sum += ranks.sum(axis=0)
        case_draws += draws.means(dataset, ranks) * len(ranks)
        cases += len(ranks)
    known = min(map(len, scores.cases.values())) > 1
    out = pd.DataFrame({"method": scores.methods})
    for name, value, drawn in (
        ("sum_rank", sums, sum_draws),
        ("mean_case_rank", case_sum / cases, case_draws / cases),
    ):
        out[name] = value
        low, high = draws.interval(drawn)
        out[f"{name}_low"], out[f"{name}_high"] = (low, high) if known else (np.nan, np.nan)
    out["dropped_draws"] = int(np.isnan(sum_draws).any(axis=1).sum())
    out = out.assign(**provenance(scores))
    return out.sort_values("sum_rank", kind="stable", ignore_index=True)


class _Draws:
    """How often each resample draws each case: a matrix, so that all means are one product."""

    def __init__(self, scores: CaseScores, resamples: int, confidence: float, seed: int) -> None:
        check_int("resamples", resamples, low=1)
        check_number("confidence", confidence, low=0, high=1, open_low=True)
        check_int("seed", seed, low=0)
        self.tail = (1 - confidence) / 2
        rng = np.random.default_rng(seed)
        self.times = {
            dataset: rng.multinomial(len(cases), np.full(len(cases), 1 / len(cases)), resamples)
            for dataset, cases in scores.cases.items()
        }

    def means(self, dataset: str, values: npt.NDArray[Any]) -> Floats:
        """(resamples, …): means over drawn cases of values (cases, …); NaN does not count."""
        times = self.times[dataset].astype(np.float64)
        there = ~np.isnan(values)
        total = np.tensordot(times, np.where(there, values, 0.0), axes=1)
        count = np.tensordot(times, there.astype(np.float64), axes=1)
        return np.asarray(np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0))

    def interval(self, drawn: Floats) -> tuple[Floats, Floats]:
        """Low and high quantile over the draws that have a value; every column has some."""
        low, high = np.nanquantile(drawn, [self.tail, 1 - self.tail], axis=0)
        return low, high
