"""Two-way random-effects test of a difference between methods, over seeds and cases.

A test over cases shows whether *these networks* differ on new cases. A claim about methods also
concerns networks that are trained again: seeds and cases are crossed random effects.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from segcal.core.checks import check_choice, check_number
from segcal.metrics import DEFAULT_REGION, POOLED, REGIONS, find_metric, ranking_direction
from segcal.stats.long_table import check_filled, check_table, map_names
from segcal.stats.missing import check_duplicates
from segcal.stats.ranking import PAPER_METRICS, Floats, resolve_metrics, select_rows
from segcal.stats.significance import holm_by_hypothesis, hypothesis_ids, method_pairs, preferred

if TYPE_CHECKING:
    import pandas as pd

# Differences with a smaller range are equal: means of equal values may differ by rounding.
_EQUAL = 1e-12
_NAN = float("nan")


@dataclass(frozen=True)
class RandomEffectsTest:
    """A mean difference between two methods, and its uncertainty over new seeds and new cases.

    Attributes:
        mean: mean of the differences over seeds and cases.
        low, high: the t interval of the mean; NaN for one case.
        p: p-value of the t test against no difference.
        seeds, cases: their numbers. **With one seed** `low`, `high` and `p` are over cases alone,
            and `counts_seeds` is False: the variance over seeds is unknown.
        left_out: number of cases without a value in some seed.
        seed_share: the share of the squared standard error that seeds cause, 0 to 1. At 0.9 more
            cases hardly narrow the interval, but more seeds do. NaN for one seed or case, or
            without any variance.
        seed_variance, case_variance, rest_variance: components of the variance of a difference.
        freedom: Satterthwaite's degrees of freedom.
    """

    mean: float
    low: float
    high: float
    p: float
    seeds: int
    cases: int
    left_out: int
    seed_share: float = _NAN
    seed_variance: float = _NAN
    case_variance: float = _NAN
    rest_variance: float = _NAN
    freedom: float = _NAN

    @property
    def counts_seeds(self) -> bool:
        """Whether the interval includes the variance over seeds."""
        return self.seeds > 1


def two_way_random_effects(
    differences: npt.ArrayLike, *, confidence: float = 0.95, strict: bool = False
) -> RandomEffectsTest:
    """Two-way random effects of seeds and cases on a difference between two methods.

    d[s, c] = μ + seed_s + case_c + rest_sc. Analysis of variance gives the mean squares; those of
    seeds and cases each contain the rest once, so the squared standard error of the mean is
    (MS_seed + MS_case − MS_rest) / (S·C), with Satterthwaite's degrees of freedom. A negative
    component is set to 0, which makes the error larger. The degrees of freedom use all three mean
    squares, so that seeds which agree by chance do not make the interval too narrow.

    Args:
        differences: (seeds, cases), method minus other; cases with a NaN are skipped and counted.
            Cases must be independent: average those of one patient first.
        confidence: level of the interval.
        strict: also do a t test over the means of seeds; `p` is the larger of the two, and the
            interval contains both. With few seeds Satterthwaite's degrees of freedom are
            inaccurate, most of all for small p-values, which a correction requires.

    Example:
        >>> found = two_way_random_effects([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]])  # 2 seeds, 3 cases
        >>> found.mean, round(found.seed_share, 2), round(found.p, 2)
        (3.0, 0.75, 0.14)
    """
    check_number("confidence", confidence, low=0, high=1, open_low=True)
    d = np.asarray(differences, dtype=np.float64)
    if d.ndim != 2 or not len(d):
        raise ValueError(
            f"Expected argument `differences` to have the shape (seeds, cases), but got {d.shape}."
        )
    known = ~np.isnan(d).any(axis=0)
    d, left_out = d[:, known], int((~known).sum())
    seeds, cases = d.shape
    if cases < 2:
        mean = float(d.mean()) if cases else _NAN
        return RandomEffectsTest(mean, _NAN, _NAN, _NAN, seeds, cases, left_out)
    if seeds == 1:
        return _over_cases(d, confidence, left_out)
    return _two_way(d, confidence, left_out, strict)


def _over_cases(d: Floats, confidence: float, left_out: int) -> RandomEffectsTest:
    """One seed: a t test over cases."""
    mean, cases, variance = float(d.mean()), d.size, float(d.var(ddof=1))
    low, high, p = _t(mean, _error(d, variance / cases), cases - 1, confidence)
    return RandomEffectsTest(
        mean, low, high, p, 1, cases, left_out, case_variance=variance, freedom=cases - 1
    )


def _two_way(d: Floats, confidence: float, left_out: int, strict: bool) -> RandomEffectsTest:
    (seeds, cases), mean = d.shape, float(d.mean())
    by_seed, by_case = d.mean(axis=1) - mean, d.mean(axis=0) - mean
    rest = d - mean - by_seed[:, None] - by_case
    free = np.array([seeds - 1, cases - 1, (seeds - 1) * (cases - 1)])
    squares = np.array([cases * (by_seed**2).sum(), seeds * (by_case**2).sum(), (rest**2).sum()])
    of_seed, of_case, of_rest = map(float, squares / free)
    seed = max(of_seed - of_rest, 0.0) / cases
    case = max(of_case - of_rest, 0.0) / seeds
    squared = seed / seeds + case / cases + of_rest / (seeds * cases)
    error, freedom, share = _error(d, squared), _NAN, _NAN
    if error > 0:
        parts = squares / free / (seeds * cases)
        freedom = max(squared**2 / float((parts**2 / free).sum()), float(min(free)))
        share = seed / seeds / squared
    low, high, p = _t(mean, error, freedom, confidence)
    if strict:
        of_means = _t(mean, _error(d, of_seed / (seeds * cases)), seeds - 1, confidence)
        low, high, p = min(low, of_means[0]), max(high, of_means[1]), max(p, of_means[2])
    return RandomEffectsTest(
        mean, low, high, p, seeds, cases, left_out, share, seed, case, of_rest, freedom
    )


def _error(d: Floats, squared: float) -> float:
    """The standard error; 0 if all differences are equal up to rounding."""
    return math.sqrt(squared) if float(np.ptp(d)) > _EQUAL else 0.0


def _t(mean: float, error: float, freedom: float, confidence: float) -> tuple[float, float, float]:
    """Interval and two-sided p; without any variance the interval is the mean."""
    from scipy.stats import t

    if error == 0:
        return mean, mean, 1.0 if abs(mean) < _EQUAL else 0.0
    half = float(t.ppf((1 + confidence) / 2, freedom)) * error
    return mean - half, mean + half, float(2 * t.sf(abs(mean) / error, freedom))


def compare_with_random_effects(
    table: "pd.DataFrame",
    *,
    reference: str | None = None,
    metrics: Sequence[str] | str = PAPER_METRICS,
    region: str = DEFAULT_REGION,
    patients: Mapping[str, Mapping[str, str]] | None = None,
    confidence: float = 0.95,
    strict: bool = False,
) -> "pd.DataFrame":
    """`two_way_random_effects` of each dataset, metric and pair of methods, corrected by Holm.

    One row per dataset, metric and pair, as `compare`: `mean_difference` is the value of `method`
    minus that of `other` (of absolute values, if values closer to zero are better) with `low` and
    `high`; `better`, `p_value`, `p_holm`; `seeds`, the number of common seeds; `cases`, the number
    of independent subjects; `left_out` and `seed_share`. The columns `low_cases`, `high_cases`,
    `p_cases` and `p_cases_holm` are those of a paired t test over the same cases, with seeds
    averaged.

    The value of a case is the mean over its labels, that of a patient the mean over its cases. A
    label that neither method has in any seed (an absent structure) is skipped. A case that lacks
    any other value in a seed is skipped too, which favors the method that missed it: read
    `left_out` together with the difference. A pair with one common seed (a table without a column
    `seed` has one) has the interval over cases alone and no `p_holm`. Holm's correction does not
    count differences that are all 0, and counts each `hypothesis` once.

    Args:
        table, metrics, region: as `collect`.
        reference: compare this method with every other; None compares every pair.
        patients: dataset → case → patient; a case without an entry is a patient of its own. None
            uses the column `patient` of the table, if there is one.
        confidence, strict: as `two_way_random_effects`.
    """
    import pandas as pd

    check_choice("region", region, REGIONS)
    rows = _rows(table, metrics, region, patients)
    methods = [str(name) for name in dict.fromkeys(rows["method"])]
    if reference is not None:
        # All its rows may be of other metrics or regions; its pairs then have no common seed.
        check_choice("reference", reference, [*map(str, dict.fromkeys(table["method"]))])
    pairs = method_pairs(methods, reference)
    out, comparisons = [], []
    for (dataset, metric), part in rows.groupby(["dataset", "metric"], sort=False):
        cells = part.groupby(["patient", "case", "label", "method", "seed"], sort=False)["value"]
        wide = cells.mean().unstack(["method", "seed"])
        for pair in pairs:
            d, left_out = _differences(wide, *pair)
            comparisons.append((str(dataset), str(metric), d))
            found = _comparison(d, str(metric), pair, confidence, strict)
            where = "all" if find_metric(str(metric)).whole_image else region
            out.append({**found, "dataset": dataset, "left_out": left_out, "region": where})
    ids = hypothesis_ids(comparisons)
    result = pd.DataFrame(out, columns=list(_COLUMNS)).assign(hypothesis=ids)
    result["p_holm"] = holm_by_hypothesis(result["p_value"].where(result["seeds"] > 1), ids)
    result["p_cases_holm"] = holm_by_hypothesis(result["p_cases"].where(result["seeds"] > 0), ids)
    return result


_COLUMNS = (
    "dataset", "metric", "method", "other", "mean_difference", "low", "high", "better", "p_value",
    "p_holm", "hypothesis", "seeds", "cases", "left_out", "seed_share", "low_cases", "high_cases",
    "p_cases", "p_cases_holm", "region",
)  # fmt: skip


def _comparison(
    d: Floats, metric: str, pair: tuple[str, str], confidence: float, strict: bool
) -> dict[str, Any]:
    """The test of the differences of a pair over seeds and cases, and that over cases alone."""
    both = two_way_random_effects(d, confidence=confidence, strict=strict)
    alone = two_way_random_effects(d.mean(axis=0)[None], confidence=confidence)
    sign = -1 if ranking_direction(metric) == "higher" else 1
    return {
        "metric": metric, "method": pair[0], "other": pair[1],
        "mean_difference": both.mean, "low": both.low, "high": both.high,
        "better": preferred(*pair, sign * both.mean), "p_value": both.p,
        "seeds": both.seeds if d.size else 0, "cases": both.cases, "seed_share": both.seed_share,
        "low_cases": alone.low, "high_cases": alone.high, "p_cases": alone.p,
    }  # fmt: skip


def _rows(
    table: "pd.DataFrame",
    metrics: Sequence[str] | str,
    region: str,
    patients: Mapping[str, Mapping[str, str]] | None,
) -> "pd.DataFrame":
    """The rows to compare with label, seed and patient; absolute values if zero is best."""
    rows = check_table(table)
    if patients is not None:
        named = zip(rows["dataset"], rows["case"], strict=True)
        rows["patient"] = [patients.get(d, {}).get(case, case) for d, case in named]
    elif "patient" in table:
        check_filled(table["patient"], "table")
        rows["patient"] = table["patient"].astype(str)
    else:
        rows["patient"] = rows["case"]
    rows = rows[rows["case"] != POOLED]
    names = resolve_metrics(metrics, list(dict.fromkeys(rows["metric"])))
    rows = select_rows(rows, names, region)
    rows = rows.assign(label=rows.get("label", "all"), seed=rows.get("seed", ""))
    runs = [name for name in ("run", "seed") if name in rows.columns]
    for dataset, part in rows.groupby("dataset", sort=False):
        check_duplicates(part, runs, str(dataset))
    better = map_names(rows["metric"], ranking_direction)
    return rows.assign(value=rows["value"].where(better != "zero", rows["value"].abs()))


def _differences(wide: "pd.DataFrame", method: str, other: str) -> tuple[Floats, int]:
    """(seeds, patients) differences of the complete cases, and the number of incomplete cases."""
    import pandas as pd

    # A seed with rows counts even if all of them are undefined, so that no network is hidden.
    seeds = [seed for seed in _of(wide, method).columns if seed in _of(wide, other).columns]
    cases = np.asarray(wide.index.get_level_values("case"))
    total = len(set(cases))
    if not seeds:
        return np.empty((1, 0)), total
    first, second = (_of(wide, m)[seeds].to_numpy(dtype=np.float64) for m in (method, other))
    d = first - second
    defined = ~(np.isnan(first) & np.isnan(second)).all(axis=1)
    incomplete = set(cases[defined & np.isnan(d).any(axis=1)])
    kept = defined & np.array([case not in incomplete for case in cases], dtype=bool)
    by_label = pd.DataFrame(d, index=wide.index)[kept]
    by_case = by_label.groupby(level=["patient", "case"], sort=False).mean()
    by_patient = by_case.groupby(level="patient", sort=False).mean()
    return np.asarray(by_patient, dtype=np.float64).T, total - len(by_case)


def _of(wide: "pd.DataFrame", method: str) -> "pd.DataFrame":
    """The columns of a method, one per seed; the name of a seed may be empty."""
    return wide.loc[:, wide.columns.get_level_values("method") == method].droplevel("method", 1)
