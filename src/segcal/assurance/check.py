"""Measure on labeled scans whether the promises of an `Assurance` hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
from scipy.special import ndtri

from segcal.assurance.apply import check_classes, result_folder, write_csv
from segcal.assurance.conformal import (
    Estimate,
    clopper_pearson,
    mean_interval,
    pick,
    risk_coverage,
    unit_weights,
)
from segcal.assurance.factor import CRPS_LEVELS, crps, volume_pit, volume_quantiles
from segcal.assurance.histogram import BINS, EDGES, Floats, Ints
from segcal.assurance.intervals import METHODS, Interval, plain_interval
from segcal.assurance.model import Assurance, mean_dice
from segcal.assurance.reading import read_labeled, units_of
from segcal.assurance.summary import CaseSummary
from segcal.core.errors import PathError
from segcal.core.files import file_sha256, write_json
from segcal.core.jobs import run_all
from segcal.core.progress import ProgressCallback, no_progress
from segcal.posthoc import Calibrator
from segcal.predictions import Pairs

_BOOTSTRAPS = 1000
# Volume distributions that need no fit: name, ρ.
_UNFITTED = {"independent": 0.0, "nested": 1.0}


@dataclass(frozen=True)
class Promise:
    """A promise, what was measured, and an interval of it.

    The intervals of all promises of a check hold together with 95 % (Bonferroni).
    """

    structure: str
    what: str
    promised: float
    measured: float
    low: float
    high: float
    patients: int
    at_least: bool

    @property
    def broken(self) -> bool:
        """Whether the interval excludes what was promised."""
        return self.high < self.promised if self.at_least else self.low > self.promised


@dataclass(frozen=True)
class Measure:
    """Another number of a check with its 95 % interval."""

    structure: str
    method: str
    what: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class CheckResult:
    """Promises and further measures, of `cases` scans of `patients` patients."""

    cases: int
    patients: int
    promises: tuple[Promise, ...]
    measures: tuple[Measure, ...]

    @property
    def broken(self) -> list[Promise]:
        """The promises that do not hold."""
        return [promise for promise in self.promises if promise.broken]


def check_assurance(
    assurance: Assurance,
    calibrator: Calibrator | None,
    pairs: Pairs,
    out: Path,
    *,
    patient: str | None = None,
    jobs: int = 1,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
) -> CheckResult:
    """Compare volumes, Dice and masks with labels; write check.json, measures.csv,
    volumes.csv and cases.csv.

    Args:
        assurance, calibrator, out, jobs, overwrite, progress: see `apply_assurance`.
        pairs: predictions with labels, of scans that are not in the fit.
        patient: see `fit_assurance`.
    """
    fitted = {case.probs_sha256: case.case for case in assurance.cases}
    for pair in pairs:
        check_classes(pair.softmax.path, pair.softmax.num_classes, assurance)
        if (other := fitted.get(tuple(map(file_sha256, pair.softmax.paths)))) is not None:
            problem = f"was part of the fit ({other})"
            raise PathError(pair.softmax.path, problem, "check on other scans")
    units = units_of(pairs, patient)
    with result_folder(out, overwrite) as draft:
        work = {pair.name: partial(read_labeled, pair, calibrator) for pair in pairs}
        cases = run_all(work, jobs, "checking", progress)
        result, volume_rows, case_rows = measure(assurance, cases, units)
        write_csv(draft / "volumes.csv", volume_rows)
        write_csv(draft / "cases.csv", case_rows)
        write_csv(draft / "measures.csv", [asdict(one) for one in result.measures])
        promises = [{**asdict(one), "broken": one.broken} for one in result.promises]
        write_json(draft / "check.json", {
            "cases": result.cases, "patients": result.patients, "promises": _json(promises),
            "measures": _json([asdict(one) for one in result.measures]),
        })  # fmt: skip
    return result


Rows: TypeAlias = list[dict[str, object]]


def _json(rows: Rows) -> Rows:
    """With null for NaN, which JSON does not have."""
    return [{k: None if v != v else v for k, v in row.items()} for row in rows]


def measure(
    assurance: Assurance, cases: Sequence[CaseSummary], units: Sequence[str]
) -> tuple[CheckResult, Rows, Rows]:
    """All measures of labeled scans; and the rows of volumes.csv and cases.csv."""
    rows = [[_row(assurance, case, s) for case in cases] for s in range(len(assurance.structures))]
    dice = _CaseDice(assurance, cases)
    claims: list[tuple[str, str, float, Floats, bool]] = []
    measures: list[Measure] = []
    for fit, found in zip(assurance.structures, rows, strict=True):
        table = {key: np.array([row[key] for row in found], float) for key in found[0]}
        if fit.method in fit.intervals:
            claims.append(
                (fit.name, "volume in interval", assurance.coverage, table["covered"], True)
            )
        if fit.outer is not None:
            claims.append((fit.name, "outer mask misses", assurance.risk, table["outer"], False))
        if fit.inner is not None:
            claims.append((fit.name, "inner mask is wrong", assurance.risk, table["inner"], False))
        measures += _interval_measures(fit.name, fit.method, table, units)
        measures += _dice_measures(fit.name, table["expected_dice"], table["dice"], units)
    if assurance.dice_factor is not None:
        claims.append(("all", "Dice in interval", assurance.coverage, dice.covered(), True))
    if assurance.referral is not None:
        accepted = (dice.expected >= assurance.referral.limit) & dice.in_scope
        failed = np.where(accepted, (dice.true < assurance.min_dice).astype(float), np.nan)
        what = f"accepted with Dice < {assurance.min_dice:g}"
        claims.append(("all", what, assurance.max_failures, failed, False))
        share = _proportion(accepted.astype(float), units, 0.95)
        measures.append(Measure("all", "referral", "accepted share", *share))
    measures += _dice_measures("all", dice.expected, dice.true, units)
    measures += _referral_measures(dice, units)
    share = _proportion(dice.in_scope.astype(float), units, 0.95)
    measures.append(Measure("all", "scope", "in scope share", *share))
    sure = 1 - 0.05 / max(len(claims), 1)
    promises = [_promise(*claim, units=units, confidence=sure) for claim in claims]
    volume_rows: Rows = [
        {"case": case.name, "structure": fit.name, **found[i]}
        for i, case in enumerate(cases)
        for fit, found in zip(assurance.structures, rows, strict=True)
    ]
    result = CheckResult(len(cases), len(set(units)), tuple(promises), tuple(measures))
    return result, volume_rows, dice.rows(cases, units)


def _row(assurance: Assurance, case: CaseSummary, s: int) -> dict[str, float]:
    """One structure of one scan, in ml and fractions."""
    fit, ml, hist = assurance.structures[s], case.voxel_ml, case.histogram(s)
    true = ml * case.true_volume(s)
    center, low, high = assurance.interval(case, s) or (np.nan,) * 3
    out = {
        "true_ml": true, "median": center, "lower": low, "upper": high,
        "pit": volume_pit(hist, fit.rho, true, ml),
        "expected_dice": assurance.structure_dice(case, s), "dice": case.dice(s),
        "difficulty": plain_interval(case, s, "factor", fit.rho, assurance.coverage).width
        / max(ml * hist.expected, ml),
    }  # fmt: skip
    for name, rho in {"factor": fit.rho, **_UNFITTED}.items():
        out[f"{name}_crps"] = crps(volume_quantiles(hist, rho, CRPS_LEVELS, ml), true)
    intervals: dict[str, Interval | None] = {
        name: assurance.interval(case, s, name) for name in METHODS
    }
    for name, rho in _UNFITTED.items():
        intervals[name] = plain_interval(case, s, "factor", rho, assurance.coverage)
    for name, own in intervals.items():
        out[f"{name}_covered"] = np.nan if own is None else float(own.contains(true))
        out[f"{name}_width"] = np.nan if own is None else own.width
    out["covered"] = out[f"{fit.method}_covered"]
    size, hits = case.above(s)
    for side, limit in (("outer", fit.outer), ("inner", fit.inner)):
        b = BINS if limit is None else int(np.searchsorted(EDGES, limit))
        if b == BINS:
            out[side] = np.nan
        elif side == "outer":
            out[side] = 1 - hits[b] / hits[0] if hits[0] else np.nan
        else:
            out[side] = 1 - hits[b] / size[b] if size[b] else 0.0
    return out


class _CaseDice:
    """Expected and true mean Dice of each scan."""

    def __init__(self, assurance: Assurance, cases: Sequence[CaseSummary]) -> None:
        structures = range(len(assurance.structures))
        estimates = [assurance.dice(case) for case in cases]
        self.expected = np.array([estimate.mean for estimate in estimates])
        self.in_scope = np.array([not assurance.out_of_scope(c.features) for c in cases])
        self.true = np.array([mean_dice([c.dice(s) for s in structures]) for c in cases])
        self.pairs = list(zip(estimates, self.true, strict=True))
        self.confidence: Floats = np.array(
            [c.inside_sums.sum() / max(c.inside_count.sum(), 1) for c in cases]
        )

    def covered(self) -> Floats:
        inside = [float(low <= true <= high) for (_, low, high), true in self.pairs]
        return np.where(np.isnan(self.true + self.expected), np.nan, inside)

    def rows(self, cases: Sequence[CaseSummary], units: Sequence[str]) -> Rows:
        return [
            {"case": case.name, "patient": unit, "expected_dice": estimate.mean,
             "lower": estimate.low, "upper": estimate.high, "dice": true, "confidence": sure}
            for case, unit, (estimate, true), sure in zip(
                cases, units, self.pairs, self.confidence, strict=True
            )
        ]  # fmt: skip


def _promise(
    structure: str, what: str, promised: float, values: Floats, at_least: bool, *,
    units: Sequence[str], confidence: float,
) -> Promise:  # fmt: skip
    yes_or_no = bool(np.isin(values[~np.isnan(values)], (0, 1)).all())
    found = (_proportion if yes_or_no else mean_interval)(values, units, confidence)
    patients = len(set(pick(units, np.flatnonzero(~np.isnan(values)))))
    return Promise(structure, what, promised, *found, patients, at_least)


def _proportion(hits: Floats, units: Sequence[str], confidence: float) -> Estimate:
    """A proportion with its Clopper–Pearson interval; patients count once, NaN not at all."""
    known = np.flatnonzero(~np.isnan(hits))
    weights, n = unit_weights(pick(units, known), len(known))
    total = float(weights @ hits[known])
    low, high = clopper_pearson(total, n, confidence)
    return Estimate(total / n if n else np.nan, low, high)


def _interval_measures(
    name: str, method: str, table: dict[str, Floats], units: Sequence[str]
) -> list[Measure]:
    out = []
    for kind in (*METHODS, *_UNFITTED):
        cover = _proportion(table[f"{kind}_covered"], units, 0.95)
        out.append(Measure(name, kind, "coverage", *cover))
        out.append(Measure(name, kind, "width ml", *mean_interval(table[f"{kind}_width"], units)))
        if f"{kind}_crps" in table:
            out.append(Measure(name, kind, "CRPS ml", *mean_interval(table[f"{kind}_crps"], units)))
    # By the width that the factor model predicts, relative to the volume.
    thirds = np.array_split(np.argsort(table["difficulty"], kind="stable"), 3)
    for part, index in zip(("easy", "middle", "difficult"), thirds, strict=True):
        cover = _proportion(table["covered"][index], pick(units, index), 0.95)
        out.append(Measure(name, method, f"coverage, {part} third", *cover))
    out.append(Measure(name, "factor", "PIT mean (0.5)", *mean_interval(table["pit"], units)))
    spread = 12 * (table["pit"] - 0.5) ** 2
    out.append(Measure(name, "factor", "PIT spread (1)", *mean_interval(spread, units)))
    return out


def _dice_measures(
    name: str, expected: Floats, true: Floats, units: Sequence[str]
) -> list[Measure]:
    error = expected - true
    known = ~np.isnan(error)
    n = len({unit for unit, use in zip(units, known, strict=True) if use})
    r = low = high = np.nan
    if n > 3 and min(expected[known].std(), true[known].std()) > 0:
        r = float(np.corrcoef(expected[known], true[known])[0, 1])
        half = ndtri(0.975) / np.sqrt(n - 3)
        low, high = np.tanh(np.arctanh(min(max(r, -0.999999), 0.999999)) + np.array([-half, half]))
    return [
        Measure(name, "expected Dice", "absolute error", *mean_interval(np.abs(error), units)),
        Measure(name, "expected Dice", "bias", *mean_interval(error, units)),
        Measure(name, "expected Dice", "correlation", r, float(low), float(high)),
    ]


def _referral_measures(dice: _CaseDice, units: Sequence[str]) -> list[Measure]:
    """AURC of the loss 1 − Dice for two ways to order scans, with bootstrap intervals."""
    known = np.flatnonzero(~np.isnan(dice.expected + dice.true))
    if not len(known):
        return []
    names, owner = np.unique(np.array(units)[known], return_inverse=True)
    members = [known[owner == i] for i in range(len(names))]
    rng = np.random.default_rng(0)
    draws = [
        np.concatenate([members[i] for i in rng.integers(len(members), size=len(members))])
        for _ in range(_BOOTSTRAPS)
    ]
    loss = 1 - dice.true

    def area(score: Floats, index: Ints) -> float:
        return risk_coverage(score[index], loss[index]).aurc

    out = []
    orders = {"expected Dice": dice.expected, "mean confidence": dice.confidence, "best": dice.true}
    for name, score in orders.items():
        low, high = np.quantile([area(score, draw) for draw in draws], [0.025, 0.975])
        out.append(Measure("all", name, "AURC", area(score, known), float(low), float(high)))
    return out
