"""Decisions from calibrated probabilities: volumes, Dice, masks and referral, with intervals.

Functions over arrays, or over a `ProbHistogram`, of one structure; and `fit_assurance`,
`apply_assurance` and `check_assurance`, which are the commands of `segcal assure`.
"""

from segcal.core.checks import require_app

require_app(__name__)

from segcal.assurance.apply import MASKS, CaseResult, MaskKind, Plane, apply_assurance
from segcal.assurance.check import CheckResult, Measure, Promise, check_assurance
from segcal.assurance.conformal import (
    CHOICE_NEEDS,
    Referral,
    RiskCoverage,
    cases_needed,
    conformal_quantile,
    first_controlled,
    margin_losses,
    referral_cases_needed,
    referral_limit,
    risk_coverage,
)
from segcal.assurance.factor import (
    crps,
    dice_optimal_threshold,
    expected_dice,
    expected_volume,
    fit_rho,
    volume_pit,
    volume_quantiles,
)
from segcal.assurance.fit import fit_assurance, fit_calibrator, operating_point
from segcal.assurance.histogram import ProbHistogram
from segcal.assurance.intervals import INTERVAL_TITLES, Interval
from segcal.assurance.model import Assurance, load_assurance
from segcal.assurance.summary import CaseSummary, summarize

__all__ = [
    "CHOICE_NEEDS", "INTERVAL_TITLES", "MASKS", "Assurance", "CaseResult", "CaseSummary",
    "CheckResult", "Interval", "MaskKind", "Measure", "Plane", "ProbHistogram", "Promise",
    "Referral", "RiskCoverage",
    "apply_assurance", "cases_needed", "check_assurance", "conformal_quantile",
    "crps", "dice_optimal_threshold", "expected_dice", "expected_volume", "first_controlled",
    "fit_assurance", "fit_calibrator", "fit_rho", "load_assurance",
    "margin_losses", "operating_point", "referral_cases_needed", "referral_limit",
    "risk_coverage", "summarize", "volume_pit", "volume_quantiles",
]  # fmt: skip
