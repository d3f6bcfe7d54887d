"""Guarantees from held-out cases: conformal quantiles, controlled risks, binomial bounds.

Scans of one patient count once: `units` names the patient of each scan. None: each scan is one.
The guarantees are for a scan of a new patient that is drawn like those of the fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import distance_transform_edt

from segcal.assurance.histogram import Floats
from segcal.stats import clopper_pearson

Units = Sequence[str] | NDArray[np.str_] | None
# With fewer patients nothing is chosen by the scores that also set a conformal factor: the choice
# would prefer what fits them by chance, and cost coverage (90 % asked, 84 to 88 % for 9 or 10).
CHOICE_NEEDS = 20
# Shares of cases that a referral rule may accept; few, since each is one more test.
ACCEPTED_SHARES = (1.0, 0.9, 0.75, 0.5, 0.25)


def unit_weights(units: Units, n: int) -> tuple[Floats, int]:
    """Weights (n,) that sum to 1 within each patient, and the number of patients."""
    if units is None:
        return np.ones(n), n
    _, index, size = np.unique(np.asarray(units), return_inverse=True, return_counts=True)
    return 1 / size[index], len(size)


def cases_needed(coverage: float) -> int:
    """Patients that a conformal promise needs, such as 9 for 90 %."""
    return math.ceil(round(coverage / (1 - coverage), 6))


def conformal_quantile(scores: ArrayLike, coverage: float, units: Units = None) -> float:
    """The score that a new case does not exceed with probability `coverage`.

    It is the ⌈(n + 1)·coverage⌉-th smallest score, infinite if n is too small. Each patient has
    weight 1/(n + 1), shared by the scans of the patient (Lee, Barber and Willett 2023).

    Example:
        >>> conformal_quantile(range(1, 20), 0.9), conformal_quantile([1, 2, 3], 0.9)
        (18.0, inf)
    """
    values = np.asarray(scores, dtype=np.float64)
    weights, n = unit_weights(units, len(values))
    order = np.argsort(values, kind="stable")
    reached = np.flatnonzero(weights[order].cumsum() >= coverage * (n + 1) - 1e-9)
    return float(values[order[reached[0]]]) if len(reached) else math.inf


def first_controlled(
    candidates: Floats, losses: Floats, alpha: float, units: Units = None
) -> float:
    """The first candidate with (n·R̂ + 1)/(n + 1) ≤ `alpha`; NaN if there is none.

    R̂ is the mean over patients of losses (n cases, candidates) in [0, 1]. The expected loss in a
    new case is at most `alpha` if losses fall from each candidate to the next (conformal risk
    control, Angelopoulos et al. 2024); else the guarantee holds for many cases, not exactly for
    few. For outer masks {p ≥ t} candidates are decreasing thresholds, and losses the fraction of
    the structure that is missed; for inner masks increasing thresholds, and the fraction of the
    mask that is wrong; for margins see `margin_losses`.
    """
    weights, n = unit_weights(units, len(losses))
    good = np.flatnonzero((weights @ losses + 1) / (n + 1) <= alpha + 1e-12)
    return float(candidates[good[0]]) if len(good) else math.nan


def margin_losses(
    mask: NDArray[np.bool_],
    truth: NDArray[np.bool_],
    spacing_mm: Sequence[float],
    margins_mm: Sequence[float],
    side: Literal["outer", "inner"] = "outer",
) -> Floats:
    """Losses of a mask that is widened (outer) or shrunk (inner) by each margin.

    They are fractions of the truth that the wider mask misses (NaN if there is no truth), or of the
    narrower mask outside the truth (0 if nothing is left). `first_controlled(margins, losses, α)`
    is then the smallest margin that is enough, on either side.
    """
    if side == "outer":
        distance = distance_transform_edt(~mask, sampling=spacing_mm)[truth]
        if not len(distance):
            return np.full(len(margins_mm), math.nan)
        distance[:] = distance if mask.any() else math.inf
        return np.array([(distance > margin).mean() for margin in margins_mm])
    distance = distance_transform_edt(mask, sampling=spacing_mm)[mask]
    distance[:] = math.inf if mask.all() else distance  # the border of the image is no surface
    wrong = ~truth[mask]
    kept = [distance > margin for margin in margins_mm]
    return np.array([wrong[one].mean() if one.any() else 0.0 for one in kept])


class Referral(NamedTuple):
    """Accept a case whose expected Dice is at least `limit`.

    Among `accepted` patients of the fit `failures` had a worse Dice than required; the failure
    rate is at most `bound` with the required confidence.
    """

    limit: float
    accepted: int
    failures: int
    bound: float


def referral_limit(
    expected: ArrayLike,
    failed: ArrayLike,
    max_failures: float,
    confidence: float = 0.9,
    units: Units = None,
) -> Referral | None:
    """The rule that accepts most cases with a failure rate of at most `max_failures`; or None.

    Rules that accept 100, 90, 75, 50 and 25 % of the cases are tested by the Clopper–Pearson bound
    at a fifth of the error each (Bonferroni), so that choosing among them is allowed. A patient
    fails if an accepted scan fails.
    """
    scores, bad = np.asarray(expected, np.float64), np.asarray(failed, np.bool_)
    names = np.arange(len(scores)) if units is None else np.asarray(units)
    error = (1 - confidence) / len(ACCEPTED_SHARES)
    for share in ACCEPTED_SHARES:
        limit = float(np.quantile(scores, 1 - share, method="lower"))
        accepted = scores >= limit
        n, k = len(np.unique(names[accepted])), len(np.unique(names[accepted & bad]))
        bound = clopper_pearson(k, n, 1 - 2 * error)[1]
        if bound <= max_failures:
            return Referral(limit, n, k, bound)
    return None


def referral_cases_needed(max_failures: float, confidence: float = 0.9) -> int:
    """Patients, all without failure, that the least demanding rule needs."""
    error = (1 - confidence) / len(ACCEPTED_SHARES)
    return math.ceil(math.log(error) / math.log(1 - max_failures))


class RiskCoverage(NamedTuple):
    """Mean risk of the most confident share of cases, for each share; and the mean over shares."""

    coverage: Floats
    risk: Floats
    aurc: float


def risk_coverage(
    confidence: ArrayLike, risk: ArrayLike, weights: ArrayLike | None = None
) -> RiskCoverage:
    """The risk–coverage curve, and the area under it (AURC; smaller is better).

    `weights` let the scans of a patient count once together; see `unit_weights`. Cases of equal
    confidence share their mean risk, so the order in which they are given does not matter.

    Example:
        >>> risk_coverage([0.9, 0.5], [0.0, 1.0]).aurc
        0.25
    """
    score, risks = np.asarray(confidence, np.float64), np.asarray(risk, np.float64)
    share = np.ones(len(risks)) if weights is None else np.asarray(weights, np.float64)
    _, equal = np.unique(score, return_inverse=True)
    risks = (np.bincount(equal, share * risks) / np.bincount(equal, share))[equal]
    order = np.argsort(-score, kind="stable")
    risks, share = risks[order], share[order]
    total = share.cumsum()
    means = (share * risks).cumsum() / total
    return RiskCoverage(total / total[-1], means, float(np.average(means, weights=share)))
