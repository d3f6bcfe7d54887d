"""Decisions from calibrated probabilities: volumes, Dice, masks and referral, with intervals.

Functions over arrays or histograms of one structure:

    ProbHistogram                      probabilities of one structure in one scan
    expected_volume, volume_quantiles  volume under one hidden factor (ρ) per structure and scan
    fit_rho, crps, volume_pit          ρ from held-out volumes; scores of a predicted distribution
    expected_dice                      of a mask
    dice_optimal_threshold             the mask {p ≥ t} with the largest expected Dice
    conformal_quantile                 intervals with a guarantee from held-out cases
    first_controlled                   thresholds of masks that miss, or wrongly include, little
    margin_losses                      the same as a margin in millimeters
    referral_limit, clopper_pearson    which cases to accept
    operating_point                    sensitivity, precision, Dice, volume error of a threshold
    risk_coverage                      risk–coverage curve and AURC

Commands over files:

    fit_assurance, fit_calibrator      `segcal assure fit`
    apply_assurance                    `segcal assure apply`
    check_assurance                    `segcal assure check`
    Assurance, load_assurance          the file they share
    CaseSummary, summarize             one scan as histograms of its structures
"""

from segcal.core.checks import require_app

require_app(__name__)

from segcal.assurance.apply import MASKS, CaseResult, MaskKind, Plane, apply_assurance
from segcal.assurance.check import CheckResult, Measure, Promise, check_assurance
from segcal.assurance.conformal import (
    Estimate,
    Referral,
    RiskCoverage,
    cases_needed,
    clopper_pearson,
    conformal_quantile,
    first_controlled,
    margin_losses,
    mean_interval,
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
from segcal.assurance.intervals import Interval
from segcal.assurance.model import Assurance, load_assurance
from segcal.assurance.summary import CaseSummary, summarize

__all__ = [
    "MASKS", "Assurance", "CaseResult", "CaseSummary", "CheckResult", "Estimate", "Interval",
    "MaskKind", "Measure", "Plane", "ProbHistogram", "Promise", "Referral", "RiskCoverage",
    "apply_assurance", "cases_needed", "check_assurance", "clopper_pearson", "conformal_quantile",
    "crps", "dice_optimal_threshold", "expected_dice", "expected_volume", "first_controlled",
    "fit_assurance", "fit_calibrator", "fit_rho", "load_assurance",
    "margin_losses", "mean_interval", "operating_point", "referral_cases_needed", "referral_limit",
    "risk_coverage", "summarize", "volume_pit", "volume_quantiles",
]  # fmt: skip
