"""Fit an `Assurance` on held-out, labeled scans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from segcal.assurance.conformal import (
    CHOICE_NEEDS,
    Referral,
    Units,
    cases_needed,
    conformal_quantile,
    first_controlled,
    referral_cases_needed,
    referral_limit,
    unit_weights,
)
from segcal.assurance.dice_line import DiceLine, fit_dice_line
from segcal.assurance.factor import best_rho, crps_curve, expected_dice
from segcal.assurance.histogram import EDGES, Floats, Ints, bin_index
from segcal.assurance.intervals import (
    METHODS,
    WITHOUT_CHOICE,
    Method,
    Slopes,
    plain_interval,
    volume_slopes,
)
from segcal.assurance.model import (
    Assurance,
    FittedCase,
    IntervalFit,
    OperatingPoint,
    StructureFit,
    dice_scale,
    missed_share,
    nanmean,
    scan_dice,
)
from segcal.assurance.scope import fit_scope
from segcal.assurance.summary import CaseSummary, identify, read_labeled, units_of
from segcal.core.errors import PathError
from segcal.core.heads import inside_labels
from segcal.core.jobs import run_all
from segcal.core.progress import ProgressCallback, no_progress
from segcal.core.provenance import versions
from segcal.posthoc import (
    BaseCalibrator,
    HeadCalibrator,
    HeldOut,
    as_two_classes,
    calibrator_content,
    make_calibrator,
)
from segcal.predictions import Pair, Pairs, name_file_in_errors
from segcal.stats import make_folds, mean_interval

_FOLDS = 10
_THRESHOLDS = bin_index(np.array([0.01, 0.02, *np.arange(0.05, 0.96, 0.05), 0.98, 0.99]))


def fit_assurance(
    pairs: Pairs,
    names: Sequence[str],
    *,
    calibrator: BaseCalibrator | None = None,
    calibrated: str = "",
    coverage: float = 0.9,
    risk: float = 0.1,
    min_dice: float = 0.7,
    max_failures: float = 0.1,
    patient: str | Mapping[str, str] | None = None,
    jobs: int = 1,
    progress: ProgressCallback = no_progress,
) -> Assurance:
    """Fit on scans that the network was not trained on.

    Scores of a scan are computed with the ρ of folds that do not contain it. Promises that the
    number of patients cannot support are left out and listed in `refused`.

    Args:
        pairs: predictions with labels.
        names: of the classes, or of the regions of sigmoid heads; background first.
        calibrator: applied to all probabilities; see `fit_calibrator`.
        calibrated: how the predictions were calibrated before; others must have the same.
        coverage: of volume and Dice intervals.
        risk: largest expected share that an outer mask misses, or of an inner mask that is wrong.
        min_dice: a mean Dice below it is a failure.
        max_failures: largest failure rate among accepted scans, with 90 % confidence.
        patient: case → patient, or a regular expression that finds the patient in a case name;
            scans of one patient count once. None: each scan is one patient.
        jobs: processes.
        progress: called as (what, scans done, scans in total).
    """
    units = units_of(pairs, patient)
    _check_input(pairs, units, calibrator)
    work = {pair.name: partial(_read, pair, calibrator) for pair in pairs}
    read = run_all(work, jobs, "reading", progress)
    scans = _Scans([one[0] for one in read], units)
    refused: list[str] = []
    fits, expected, missed = [], [], []
    for s, name in enumerate(names[1:]):
        data = _Structure(scans, s, np.stack([curves[s] for _, curves, _ in read]), coverage)
        dice_line, dices = data.fit_dice()
        fits.append(_fit_structure(data, name, risk, dice_line, refused))
        expected.append(dices)
        missed.append(data.missed())
    dice = scans.mean_dice(np.stack(expected, 1), np.stack(missed, 1))
    _state_bias(dice, [len(set(units[dices > 0])) for dices in expected], refused)
    dice_factor = _fit_dice_factor(dice, coverage, refused)
    referral = _fit_referral(dice, min_dice, max_failures, refused)
    return Assurance(
        coverage=coverage, risk=risk, min_dice=min_dice, max_failures=max_failures,
        structures=tuple(fits), heads=dict(pairs.heads), dice_factor=dice_factor,
        referral=referral, refused=tuple(refused),
        calibrator=None if calibrator is None else calibrator_content(calibrator),
        calibrated=calibrated, scope=fit_scope(scans.cases),
        cases=tuple(
            FittedCase(case=case.name, patient=unit, identity=identity)
            for (case, _, identity), unit in zip(read, units.tolist(), strict=True)
        ),
        versions=versions(),
    )  # fmt: skip


def _check_input(pairs: Pairs, units: NDArray[np.str_], calibrator: BaseCalibrator | None) -> None:
    """Raise if there is one patient, or if the calibrator is of other predictions."""
    if len(set(units)) < 2:
        problem, remedy = "holds predictions of one patient", "give at least 9 patients"
        raise PathError(pairs.folder, problem, remedy)
    if calibrator is not None:
        if isinstance(calibrator, HeadCalibrator) != bool(pairs.heads):
            raise ValueError("--calibrator and predictions must both be of sigmoid outputs, or not")
        if calibrator.check_fitted() != pairs.num_classes:
            has = f"{calibrator.num_classes} classes, but the predictions have {pairs.num_classes}"
            raise ValueError(f"--calibrator was fitted on {has}")


def fit_calibrator(
    pairs: Pairs, method: str = "temperature", progress: ProgressCallback = no_progress
) -> BaseCalibrator:
    """A calibrator fitted on the same scans, by negative log-likelihood of all voxels."""

    def cases(head: int | None = None) -> Iterator[HeldOut]:
        for number, one in enumerate(pairs, start=1):
            case = one.load()
            if head is None:
                yield HeldOut(case.values, case.target, spacing_mm=case.spacing_mm)
            else:
                inside = inside_labels(case.target, [*pairs.heads.values()][head])
                pair = as_two_classes(case.values[head], from_probs=True)
                yield HeldOut(pair, inside, spacing_mm=case.spacing_mm)
            progress("calibrating", number, len(pairs))

    calibrator = make_calibrator(method)
    with name_file_in_errors(pairs.folder):
        if not pairs.heads:
            return calibrator.fit(cases(), from_probs=True)
        parts = [
            make_calibrator(method).fit(cases(r), from_probs=True) for r in range(len(pairs.heads))
        ]
        return HeadCalibrator(pairs.heads, parts)


def _read(
    pair: Pair, calibrator: BaseCalibrator | None
) -> tuple[CaseSummary, Floats, tuple[str, str]]:
    """A scan, the CRPS of each structure and candidate of ρ, and its identity."""
    case = read_labeled(pair, calibrator)
    curves = [crps_curve(case.histogram(s), case.true_volume(s)) for s in range(len(case.count))]
    return case, np.stack(curves), identify(pair)


class _Dice(NamedTuple):
    """Expected Dice from folds without the scan, true Dice, and patient, where both are defined."""

    expected: Floats
    true: Floats
    units: NDArray[np.str_]


class _Scans:
    """The scans of the fit, their patients, and `folds` of (scans, other scans)."""

    def __init__(self, cases: Sequence[CaseSummary], units: NDArray[np.str_]) -> None:
        self.cases, self.units = cases, units
        self.weights, _ = unit_weights(units, len(units))
        patients = np.unique(units)
        parts = [np.isin(units, patients[part]) for part in make_folds(patients.tolist(), _FOLDS)]
        self.folds = [(np.flatnonzero(part), np.flatnonzero(~part)) for part in parts]

    def held_out(self, fit: Callable[[Ints], float]) -> Floats:
        """For each scan the result of `fit` on the folds without it."""
        out = np.empty(len(self.cases))
        for part, others in self.folds:
            out[part] = fit(others)
        return out

    def mean_dice(self, expected: Floats, missed: Floats) -> _Dice:
        """Over the structures; `expected` and `missed` (scans, structures) as in `scan_dice`."""
        rows = zip(self.cases, expected.tolist(), missed.tolist(), strict=True)
        predicted = np.array([scan_dice(*row) for row in rows])
        structures = range(expected.shape[1])
        true = np.array([nanmean([case.dice(s) for s in structures]) for case in self.cases])
        known = ~np.isnan(predicted + true)
        return _Dice(predicted[known], true[known], self.units[known])


def _state_bias(dice: _Dice, patients: Sequence[int], refused: list[str]) -> None:
    """A line if expected Dice is wrong on average and too few patients have a mask to correct it.

    `patients` are those with a mask of each structure.
    """
    bias, low, high = mean_interval(dice.expected - dice.true, dice.units)
    if any(0 < few < CHOICE_NEEDS for few in patients) and (low > 0 or high < 0):
        side = "high" if bias > 0 else "low"
        wrong = f"in the fit it is too {side} by {abs(bias):.3f} on average"
        need = f"a correction needs {CHOICE_NEEDS} patients with a mask of the structure"
        refused.append(f"expected Dice: {wrong}; {need}")


def _fit_dice_factor(dice: _Dice, coverage: float, refused: list[str]) -> float | None:
    """The conformal factor of Dice intervals; None if there are too few patients."""
    errors = np.abs(dice.expected - dice.true) / dice_scale(dice.expected)
    factor = conformal_quantile(errors, coverage, dice.units)
    if np.isfinite(factor):
        return factor
    has = f"needs {cases_needed(coverage)} patients, but there are {len(set(dice.units))}"
    refused.append(f"Dice: an interval of {coverage:g} coverage {has}")
    return None


def _fit_referral(
    dice: _Dice, min_dice: float, max_failures: float, refused: list[str]
) -> Referral | None:
    """The referral rule; None if the scans do not support one."""
    failed = dice.true < min_dice
    if len(failed):
        found = referral_limit(dice.expected, failed, max_failures, units=dice.units)
        if found is not None:
            return found
    need = referral_cases_needed(max_failures)
    refused.append(
        f"referral: a failure rate of at most {max_failures:g} needs {need} accepted patients "
        f"without a failure; {int(failed.sum())} of {len(failed)} scans of "
        f"{len(set(dice.units))} patients have Dice < {min_dice:g}"
    )
    return None


@dataclass(frozen=True)
class _Structure:
    """One structure in all scans of the fit; `curves` are the `crps_curve` of each scan."""

    scans: _Scans
    s: int
    curves: Floats
    coverage: float

    def rho(self, some: Ints | slice = slice(None)) -> float:
        """ρ by some scans."""
        return best_rho(self.curves[some], self.scans.weights[some])

    @cached_property
    def with_rho(self) -> list[tuple[CaseSummary, float]]:
        """Each scan, and ρ by the folds without it."""
        rhos = self.scans.held_out(self.rho).tolist()
        return list(zip(self.scans.cases, rhos, strict=True))

    def missed(self) -> Floats:
        """The `missed_share` of each scan by the folds without it."""
        cases, weights = self.scans.cases, self.scans.weights
        return self.scans.held_out(
            lambda others: missed_share([cases[i] for i in others], self.s, weights[others])
        )

    def fit_dice(self) -> tuple[DiceLine, Floats]:
        """The correction of expected Dice, and the corrected expected Dice of each scan."""
        s, scans = self.s, self.scans
        expected = [expected_dice(c.histogram(s), c.inside(s), rho) for c, rho in self.with_rho]
        true = np.array([case.dice(s) for case in scans.cases])
        return fit_dice_line(np.array(expected), true, scans.units, scans.folds)

    def fit_interval(self, method: Method) -> IntervalFit | None:
        """Slopes and conformal factor, and the cross-validated coverage, width and score."""
        s, coverage, units, folds = self.s, self.coverage, self.scans.units, self.scans.folds
        raw = [plain_interval(case, s, method, rho, coverage) for case, rho in self.with_rho]
        # Slopes are those of the mean: the median of a skewed distribution is far below it.
        base: Method = "hard" if method == "hard" else "share"
        centers = np.array(
            [plain_interval(case, s, base, rho, coverage).center for case, rho in self.with_rho]
        )
        volumes = np.array([case.voxel_ml * case.true_volume(s) for case in self.scans.cases])

        def slopes(some: Ints) -> Slopes:
            return volume_slopes(method, centers[some], volumes[some], coverage, units[some])

        plain = list(raw)
        for part, others in folds:
            found = slopes(others)
            for i in part:
                plain[i] = raw[i].scaled(found)
        factors = np.array([p.factor(v) for p, v in zip(plain, volumes, strict=True)])
        factor = conformal_quantile(factors, coverage, units)
        if not np.isfinite(factor):
            return None
        covered, widths, scores = np.zeros((3, len(plain)))
        for part, others in folds:
            own = conformal_quantile(factors[others], coverage, units[others])
            enough = np.isfinite(own)  # without the fold
            for i in part:
                interval = plain[i].widened(own if enough else factor)
                covered[i] = interval.contains(volumes[i]) if enough else np.nan
                widths[i] = interval.width
                scores[i] = interval.score(volumes[i], coverage)
        reached, width, score = (
            mean_interval(values, units).mean for values in (covered, widths, scores)
        )
        return IntervalFit(
            slopes=slopes(np.arange(len(plain))), factor=factor, coverage=reached, width_ml=width,
            score_ml=score,
        )  # fmt: skip


def _fit_structure(
    data: _Structure, name: str, risk: float, dice_line: DiceLine, refused: list[str]
) -> StructureFit:
    s, cases, units = data.s, data.scans.cases, data.scans.units
    found = {method: data.fit_interval(method) for method in METHODS}
    intervals = {method: fit for method, fit in found.items() if fit is not None}
    patients, need = len(set(units)), cases_needed(data.coverage)
    if not intervals:
        has = f"needs {need} patients, but there are {patients}"
        refused.append(f"{name}: a volume interval of {data.coverage:g} coverage {has}")
    size, hits = (np.stack(part) for part in zip(*(c.above(s) for c in cases), strict=True))
    true = hits[:, 0]
    present = true > 0
    owners = units[present]
    points = [operating_point(EDGES[b], size[:, b], hits[:, b], true, units) for b in _THRESHOLDS]
    best = max(points, key=lambda point: np.nan_to_num(point.dice.mean))
    # Outer masks contain the best mask, and inner masks are part of it, however good it is.
    lower, upper = best.threshold >= EDGES, best.threshold <= EDGES
    outer, inner, need = None, None, cases_needed(1 - risk)
    if len(set(owners)) < need:
        has = f"needs {need} patients with the structure, but there are {len(set(owners))}"
        refused.append(f"{name}: masks with a risk of at most {risk:g}: {has}")
    else:
        missed = 1 - hits[present] / true[present, None]
        outer = first_controlled(EDGES[lower][::-1], missed[:, lower][:, ::-1], risk, owners)
        wrong = np.where(size > 0, 1 - hits / np.maximum(size, 1), 0)
        inner = first_controlled(EDGES[upper], wrong[:, upper], risk, units)
        if np.isnan(inner):
            inner = None
            refused.append(f"{name}: an inner mask: at every threshold more than {risk:g} is wrong")
    method = WITHOUT_CHOICE
    if patients >= CHOICE_NEEDS:
        method = min(intervals, key=lambda m: intervals[m].score_ml, default=method)
    return StructureFit(
        name=name, rho=data.rho(), method=method,
        intervals=intervals, dice_line=dice_line, outer=outer, inner=inner,
        threshold=best.threshold, operating_points=tuple(points),
        missed=missed_share(cases, s, data.scans.weights),
    )  # fmt: skip


def operating_point(
    threshold: float, size: Floats, hits: Floats, true: Floats, units: Units = None
) -> OperatingPoint:
    """Means over scans of the masks at a threshold, with 95 % intervals.

    Args:
        threshold: of the masks {p ≥ threshold}.
        size, hits, true: for each scan the voxels of the mask, of mask and structure, and of the
            structure.
        units: the patient of each scan.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        values: dict[str, Any] = {
            "sensitivity": hits / true,
            "precision": hits / size,
            "dice": 2 * hits / (size + true),
            "volume_error": np.where(true > 0, size / true - 1, np.nan),
        }
    found = {
        key: mean_interval(each, units).within((-1, np.inf) if key == "volume_error" else (0, 1))
        for key, each in values.items()
    }
    return OperatingPoint(threshold=threshold, **found)
