"""What remains of a difference once both seeds and cases are counted.

A test over cases asks whether *these networks* differ on new cases. A claim about methods is one
about networks trained anew as well: seeds and cases are crossed random effects.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from segcal.core.checks import check_choice, check_number
from segcal.metrics.regions import REGIONS
from segcal.metrics.table import POOLED, check_filled, check_table, direction, whole_image
from segcal.stats.missing import refuse_duplicates
from segcal.stats.ranking import PAPER_METRICS, Floats, resolve_metrics, select_rows
from segcal.stats.significance import ask, holm_once, preferred

if TYPE_CHECKING:
    import pandas as pd

# Differences that vary by less are equal: means of equal values may differ by rounding.
_EQUAL = 1e-12
_NAN = float("nan")


@dataclass(frozen=True)
class Crossed:
    """A mean difference between two methods, and how sure it is over new seeds and new cases.

    Attributes:
        mean: of the differences, over seeds and cases.
        low, high: the t interval of the mean; NaN for one case.
        p: of the t test against no difference.
        seeds, cases: how many there are. **With one seed** `low`, `high` and `p` are of cases
            alone, and `counts_seeds` is False: what a new seed would do, nobody knows.
        left_out: cases that lack a value in some seed.
        seed_share: of the squared standard error, the part that seeds cause, 0 to 1. At 0.9 more
            cases hardly narrow the interval: more seeds do. NaN for one seed or case, or without
            any spread.
        seed_variance, case_variance, rest_variance: components of a single difference's variance.
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
        """Whether the interval knows of the spread over seeds."""
        return self.seeds > 1


def crossed(
    differences: npt.ArrayLike, *, confidence: float = 0.95, strict: bool = False
) -> Crossed:
    """Two-way random effects of seeds and cases on a difference between two methods.

    d[s, c] = μ + seed_s + case_c + rest_sc. Analysis of variance gives the mean squares; those of
    seeds and cases each hold the rest once, so that the squared standard error of the mean is
    (MS_seed + MS_case − MS_rest) / (S·C), with Satterthwaite's degrees of freedom. A component that
    comes out negative is 0, which makes the error larger; the degrees of freedom keep all three
    mean squares, so that seeds which agree by chance do not make the interval sure of itself.

    Args:
        differences: (seeds, cases), method minus other; cases with a NaN are left out and counted.
            Cases have to be independent: average those of one patient first.
        confidence: of the interval.
        strict: the difference must also outlast a t test over the means of seeds: `p` is the larger
            of the two, the interval holds both. Satterthwaite's freedom is a guess from few seeds,
            which errs most where p-values are small, as they have to be after a correction.

    Example:
        >>> found = crossed([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]])  # two seeds that disagree
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
        return Crossed(mean, _NAN, _NAN, _NAN, seeds, cases, left_out)
    if seeds == 1:
        return _over_cases(d, confidence, left_out)
    return _two_way(d, confidence, left_out, strict)


def _over_cases(d: Floats, confidence: float, left_out: int) -> Crossed:
    """One seed: cases alone can be counted."""
    mean, cases, variance = float(d.mean()), d.size, float(d.var(ddof=1))
    low, high, p = _t(mean, _error(d, variance / cases), cases - 1, confidence)
    return Crossed(
        mean, low, high, p, 1, cases, left_out, case_variance=variance, freedom=cases - 1
    )


def _two_way(d: Floats, confidence: float, left_out: int, strict: bool) -> Crossed:
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
    return Crossed(mean, low, high, p, seeds, cases, left_out, share, seed, case, of_rest, freedom)


def _error(d: Floats, squared: float) -> float:
    """The standard error; 0 where all differences are equal but for rounding."""
    return math.sqrt(squared) if float(np.ptp(d)) > _EQUAL else 0.0


def _t(mean: float, error: float, freedom: float, confidence: float) -> tuple[float, float, float]:
    """Interval and two-sided p; without any spread the interval is the mean itself."""
    from scipy.stats import t

    if error == 0:
        return mean, mean, 1.0 if abs(mean) < _EQUAL else 0.0
    half = float(t.ppf((1 + confidence) / 2, freedom)) * error
    return mean - half, mean + half, float(2 * t.sf(abs(mean) / error, freedom))


def compare_crossed(
    table: "pd.DataFrame",
    *,
    reference: str | None = None,
    metrics: Sequence[str] | str = PAPER_METRICS,
    region: str = "foreground",
    patients: Mapping[str, Mapping[str, str]] | None = None,
    confidence: float = 0.95,
    strict: bool = False,
) -> "pd.DataFrame":
    """`crossed` of each dataset, metric and pair of methods, corrected by Holm over all of them.

    As `compare`, one row per dataset, metric and pair: `mean_difference` is the value of `method`
    minus that of `other` (of absolute values, where nearer to zero is better) with `low` and
    `high`; `better`, `p_value`, `p_holm`; `seeds`, those that both have; `cases`, the independent
    subjects; `left_out` and `seed_share`. Beside them what a paired t test over the same cases
    says when seeds are averaged: `low_cases`, `high_cases`, `p_cases`, `p_cases_holm`.

    The value of a case is the mean over its labels, that of a patient over its cases. A label that
    neither method has in any seed (a structure that is not there) does not count; a case that lacks
    any other value in a seed is left out, which flatters the method that missed it: read `left_out`
    beside the difference. A pair with one common seed (without a column `seed` there is one) has
    the interval of cases alone and no `p_holm`: it is not in the family. Nor are differences that
    are all 0, and pairs that compare the same numbers (the same `question`) count once.

    Args:
        reference: compare this method with every other; None compares every pair.
        patients: dataset → case → patient; what is not named is a patient of its own. None takes
            the column `patient` of the table, if it has one.
        confidence, strict: as `crossed`.
        table, metrics, region: as `collect`.
    """
    import pandas as pd

    check_choice("region", region, REGIONS)
    rows = _rows(table, metrics, region, patients)
    methods = [str(name) for name in dict.fromkeys(rows["method"])]
    if reference is None:
        pairs = list(combinations(methods, 2))
    else:
        # Its rows may all be of other metrics or regions: then nothing can be said of any pair.
        check_choice("reference", reference, [*map(str, dict.fromkeys(table["method"]))])
        pairs = [(reference, m) for m in methods if m != reference]
    out, comparisons = [], []
    for (dataset, metric), part in rows.groupby(["dataset", "metric"], sort=False):
        cells = part.groupby(["patient", "case", "label", "method", "seed"], sort=False)["value"]
        wide = cells.mean().unstack(["method", "seed"])
        for pair in pairs:
            d, left_out = _differences(wide, *pair)
            found = _comparison(d, pair, str(metric), confidence, strict)
            found["left_out"] = left_out
            comparisons.append((str(dataset), str(metric), d))
            where = "all" if whole_image(str(metric)) else region
            out.append({"dataset": dataset, "metric": metric, **found, "region": where})
    questions = ask(comparisons)
    made = pd.DataFrame(out, columns=list(_COLUMNS)).assign(question=questions)
    made["p_holm"] = holm_once(made["p_value"].where(made["seeds"] > 1), questions)
    made["p_cases_holm"] = holm_once(made["p_cases"].where(made["seeds"] > 0), questions)
    return made


_COLUMNS = (
    "dataset", "metric", "method", "other", "mean_difference", "low", "high", "better", "p_value",
    "p_holm", "question", "seeds", "cases", "left_out", "seed_share", "low_cases", "high_cases",
    "p_cases", "p_cases_holm", "region",
)  # fmt: skip


def _rows(
    table: "pd.DataFrame",
    metrics: Sequence[str] | str,
    region: str,
    patients: Mapping[str, Mapping[str, str]] | None,
) -> "pd.DataFrame":
    """The chosen rows of single cases with label, seed and patient; nearer to zero is smaller."""
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
        refuse_duplicates(part, runs, str(dataset))
    better = rows["metric"].map({name: direction(name) for name in names})
    return rows.assign(value=rows["value"].where(better != "zero", rows["value"].abs()))


def _comparison(
    d: Floats, pair: tuple[str, str], metric: str, confidence: float, strict: bool
) -> dict[str, Any]:
    both = crossed(d, confidence=confidence, strict=strict)
    alone = crossed(d.mean(axis=0)[None], confidence=confidence)
    turn = -1 if direction(metric) == "higher" else 1
    return {
        "method": pair[0],
        "other": pair[1],
        "mean_difference": both.mean,
        "low": both.low,
        "high": both.high,
        "better": preferred(*pair, turn * both.mean),
        "p_value": both.p,
        "seeds": both.seeds if d.size else 0,
        "cases": both.cases,
        "seed_share": both.seed_share,
        "low_cases": alone.low,
        "high_cases": alone.high,
        "p_cases": alone.p,
    }


def _differences(wide: "pd.DataFrame", method: str, other: str) -> tuple[Floats, int]:
    """(seeds, patients) of the complete cases, and how many cases are not."""
    import pandas as pd

    # A seed that has rows counts, even if all of them are undefined: no network may be hidden.
    seeds = [seed for seed in _of(wide, method).columns if seed in _of(wide, other).columns]
    cases = np.asarray(wide.index.get_level_values("case"))
    total = len(set(cases))
    if not seeds:
        return np.empty((1, 0)), total
    first, second = (_of(wide, m)[seeds].to_numpy(dtype=np.float64) for m in (method, other))
    d = first - second
    some = ~(np.isnan(first) & np.isnan(second)).all(axis=1)
    spoilt = set(cases[some & np.isnan(d).any(axis=1)])
    kept = some & np.array([case not in spoilt for case in cases], dtype=bool)
    by_label = pd.DataFrame(d, index=wide.index)[kept]
    by_case = by_label.groupby(level=["patient", "case"], sort=False).mean()
    by_patient = by_case.groupby(level="patient", sort=False).mean()
    return np.asarray(by_patient, dtype=np.float64).T, total - len(by_case)


def _of(wide: "pd.DataFrame", method: str) -> "pd.DataFrame":
    """The columns of a method, one per seed; a seed may be called ""."""
    return wide.loc[:, wide.columns.get_level_values("method") == method].droplevel("method", 1)
