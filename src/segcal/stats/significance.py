"""Uncertainty of a ranking: paired tests between methods, and intervals over cases."""

import warnings
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import divide
from segcal.core.checks import check_choice, check_int, check_number
from segcal.metrics import find_metric
from segcal.stats.intervals import mean_interval
from segcal.stats.ranking import CaseScores, Floats, case_ranks, mean_costs, rank

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


def holm_by_hypothesis(p_values: npt.ArrayLike, hypotheses: Ints) -> Floats:
    """Holm's correction in which rows with the same hypothesis count once; see `hypothesis_ids`.

    A row without a difference (hypothesis 0) is not a test and has p = 1. NaN stays NaN.
    """
    p = np.asarray(p_values, dtype=np.float64)
    corrected: Floats = np.where(np.isnan(p), np.nan, 1.0)
    tested = (hypotheses > 0) & ~np.isnan(p)
    _, first, which = np.unique(hypotheses[tested], return_index=True, return_inverse=True)
    corrected[tested] = holm(p[tested][first])[which]
    return corrected


def hypothesis_ids(comparisons: Sequence[tuple[str, str, Floats]]) -> Ints:
    """A number for the hypothesis of each comparison (dataset, metric, differences).

    Comparisons of the same numbers, in either order of the methods, share a number: a calibrator
    that changes no mask has the Dice of its network. The number is 0 if no case differs.
    """
    known = {b"": 0}
    return np.array([known.setdefault(_key(*each), len(known)) for each in comparisons], np.int64)


def _key(dataset: str, metric: str, differences: Floats) -> bytes:
    rounded = np.round(np.ravel(differences), 12)
    nonzero = rounded[np.nonzero(rounded)]
    if not nonzero.size:
        return b""
    oriented: bytes = (rounded * np.sign(nonzero[0]) + 0.0).tobytes()  # no negative zeros
    return f"{dataset}/{metric}/{differences.shape}/".encode() + oriented


def distinct_hypotheses(comparisons: "pd.DataFrame") -> "pd.DataFrame":
    """The rows of a comparison table that are tests, each hypothesis once."""
    return comparisons[comparisons["hypothesis"] > 0].drop_duplicates("hypothesis")


def method_pairs(methods: Sequence[str], reference: str | None) -> list[tuple[str, str]]:
    """Every pair, or each pair of the reference with another method."""
    if reference is None:
        return list(combinations(methods, 2))
    return [(reference, method) for method in methods if method != reference]


def compare(scores: CaseScores, reference: str | None = None) -> "pd.DataFrame":
    """Paired Wilcoxon signed-rank tests over cases, corrected by Holm over all rows returned.

    One row per dataset, metric and pair: `mean_difference` is the mean over cases of the value of
    `method` minus that of `other`; `better` names the method that the direction of the metric
    favors, or "neither" if mean and signed ranks favor different methods: a few large misses can
    decide the mean, but the test is about the ranks; `p_value`, `p_holm` and `cases`; `region`,
    `missing`, and `undefined`, the number of undefined values of both. A pair without any
    difference has p = 1 and is not a test. Pairs that compare the same numbers (masks that a
    calibrator did not change) have the same `hypothesis` and count once in Holm's correction. The
    p-values do not account for a reference that was chosen because it is the best on the same
    cases.

    Args:
        scores: the result of `collect`.
        reference: compare this method with every other; None compares every pair.
    """
    import pandas as pd

    if reference is not None:
        check_choice("reference", reference, scores.methods)
    rows = [
        _comparison(scores, dataset, i, method, other)
        for dataset in scores.values
        for i in range(len(scores.metrics))
        for method, other in method_pairs(scores.methods, reference)
    ]
    hypotheses = hypothesis_ids([(r["dataset"], r["metric"], r.pop("differences")) for r in rows])
    out = pd.DataFrame(rows, columns=list(_COMPARISON)).assign(hypothesis=hypotheses)
    out["p_holm"] = holm_by_hypothesis(out["p_value"], hypotheses)
    return out


_COMPARISON = (
    "dataset", "metric", "method", "other", "mean_difference", "better", "p_value", "p_holm",
    "hypothesis", "cases", "region", "missing", "undefined",
)  # fmt: skip


def _comparison(
    scores: CaseScores, dataset: str, i: int, method: str, other: str
) -> dict[str, Any]:
    pair = [scores.methods.index(method), scores.methods.index(other)]
    values, costs = scores.values[dataset][:, pair, i], scores.costs[dataset][:, pair, i]
    kept = ~np.isnan(costs).any(axis=1)
    difference = costs[kept, 0] - costs[kept, 1]
    return {
        "dataset": dataset, "metric": scores.metrics[i], "method": method, "other": other,
        "mean_difference": _mean(values[kept, 0] - values[kept, 1]),
        "better": _favored(method, other, difference),
        "p_value": _wilcoxon(difference), "differences": difference, "cases": int(kept.sum()),
        "region": scores.region_of(scores.metrics[i]), "missing": scores.missing,
        "undefined": int(scores.undefined[dataset][pair, i].sum()),
    }  # fmt: skip


def _mean(values: Floats) -> float:
    return float(values.mean()) if values.size else float("nan")


def preferred(method: str, other: str, cost_difference: float) -> str:
    """The method that a difference in costs (method minus other) favors."""
    if not abs(cost_difference) >= 1e-12:  # also true for NaN
        return "neither"
    return method if cost_difference < 0 else other


def _favored(method: str, other: str, difference: Floats) -> str:
    """The method that both the mean and the signed ranks of the differences in costs favor."""
    from scipy.stats import rankdata

    nonzero = np.round(difference, 12)
    nonzero = nonzero[nonzero != 0]
    ranks = float((np.sign(nonzero) * rankdata(np.abs(nonzero))).sum())
    mean = _mean(difference)
    return preferred(method, other, 0.0 if mean * ranks < 0 else mean)


def _wilcoxon(difference: Floats) -> float:
    from scipy.stats import wilcoxon

    difference = np.round(difference, 12)  # as in the ranks
    if not difference.any():
        return 1.0
    with warnings.catch_warnings():
        # Older scipy warns if pairs without a difference leave few values.
        warnings.filterwarnings("ignore", "Sample size too small", UserWarning)
        return float(wilcoxon(difference).pvalue)


def means_with_intervals(scores: CaseScores, confidence: float = 0.95) -> "pd.DataFrame":
    """Mean over cases of each dataset, metric and method, with its Student interval.

    Returns `dataset, metric, method, mean, low, high, cases, region, missing, undefined`.

    Args:
        scores: the result of `collect`.
        confidence: level of the interval.
    """
    import pandas as pd

    check_number("confidence", confidence, low=0, high=1, open_low=True)
    rows = []
    for dataset, values in scores.values.items():
        for i, metric in enumerate(scores.metrics):
            for j, method in enumerate(scores.methods):
                of_cases = values[:, j, i]
                found = mean_interval(of_cases, confidence=confidence)
                rows.append({
                    "dataset": dataset, "metric": metric, "method": method,
                    **found.within(find_metric(metric).limits)._asdict(),
                    "cases": int((~np.isnan(of_cases)).sum()),
                    "region": scores.region_of(metric), "missing": scores.missing,
                    "undefined": int(scores.undefined[dataset][j, i]),
                })  # fmt: skip
    return pd.DataFrame(rows)


def bootstrap_ranks(
    scores: CaseScores, resamples: int = 2000, confidence: float = 0.95, seed: int = 0
) -> "pd.DataFrame":
    """Percentile intervals of sum-rank and mean-case-rank, resampling cases in each dataset.

    Returns one row per method, best sum-rank first: `sum_rank, sum_rank_low, sum_rank_high` and the
    same of `mean_case_rank`; `dropped_draws`, the number of resamples without any case that has
    some metric, which are not used for the interval of sum-rank; and the last columns of
    `sum_rank`. If a dataset has only one case, the intervals are NaN.

    Args:
        scores: the result of `collect`.
        resamples: how many times the cases of each dataset are drawn with replacement.
        confidence: level of the intervals.
        seed: seed of the draws; the same seed gives the same table.
    """
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
    out = out.assign(**scores.source_columns())
    return out.sort_values("sum_rank", kind="stable", ignore_index=True)


class _Draws:
    """How often each resample draws each case, as a matrix: all means are one product."""

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
        """(resamples, …): means over drawn cases of values (cases, …), without NaN."""
        times = self.times[dataset].astype(np.float64)
        defined = ~np.isnan(values)
        total = np.tensordot(times, np.where(defined, values, 0.0), axes=1)
        count = np.tensordot(times, defined.astype(np.float64), axes=1)
        return divide(total, count)

    def interval(self, drawn: Floats) -> tuple[Floats, Floats]:
        """Low and high quantile over the draws without NaN."""
        low, high = np.nanquantile(drawn, [self.tail, 1 - self.tail], axis=0)
        return low, high
