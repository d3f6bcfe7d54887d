"""Measure on labeled scans whether the promises of an `Assurance` hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from segcal.assurance.apply import check_classes, result_folder, write_csv
from segcal.assurance.conformal import risk_coverage, unit_weights
from segcal.assurance.factor import CRPS_LEVELS, crps, volume_pit, volume_quantiles
from segcal.assurance.histogram import EDGES, Floats
from segcal.assurance.intervals import METHODS, Interval, plain_interval
from segcal.assurance.model import Assurance, nanmean
from segcal.assurance.summary import CaseSummary, identify, read_labeled, units_of
from segcal.core.errors import PathError
from segcal.core.files import write_json
from segcal.core.jobs import run_all
from segcal.core.progress import ProgressCallback, no_progress
from segcal.core.text import count
from segcal.predictions import Pairs
from segcal.stats import Estimate, clopper_pearson, jackknife_interval, mean_interval

AURC = "area under the risk-coverage curve"
# Volume distributions that need no fit: name, ρ.
_UNFITTED = {"independent": 0.0, "nested": 1.0}
Units: TypeAlias = NDArray[np.str_]
Rows: TypeAlias = list[dict[str, Any]]
# Structure, what, promised, the value of each scan, whether it is to be at least the promised one.
Claim: TypeAlias = tuple[str, str, float, Floats, bool]


class Promise(NamedTuple):
    """A promise, what was measured, and its interval.

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


class Measure(NamedTuple):
    """Another number of a check with its 95 % interval."""

    structure: str
    method: str
    what: str
    value: float
    low: float
    high: float


class CheckResult(NamedTuple):
    """Promises and further measures, of `cases` scans of `patients` patients."""

    cases: int
    patients: int
    promises: list[Promise]
    measures: list[Measure]

    @property
    def broken(self) -> list[Promise]:
        """The promises that do not hold."""
        return [promise for promise in self.promises if promise.broken]

    @property
    def conclusion(self) -> str:
        """How many promises are broken, if any could be checked."""
        if not self.promises:
            return "no promise could be checked"
        return f"{len(self.broken)} of {count(len(self.promises), 'promise')} broken"


def check_assurance(
    assurance: Assurance,
    pairs: Pairs,
    out: Path,
    *,
    patient: str | Mapping[str, str] | None = None,
    jobs: int = 1,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
) -> CheckResult:
    """Compare volumes, Dice and masks with labels; write check.json, measures.csv,
    volumes.csv and cases.csv.

    Args:
        assurance, out, jobs, overwrite, progress: see `apply_assurance`.
        pairs: predictions with labels, of scans (and patients) that are not in the fit.
        patient: see `fit_assurance`.
    """
    units = units_of(pairs, patient)
    fitted = {key: case.case for case in assurance.cases for key in case.identity}
    patients = {case.patient for case in assurance.cases} if patient is not None else set()
    for pair, unit in zip(pairs, units, strict=True):
        check_classes(pair.softmax, assurance)
        other = next((fitted[key] for key in identify(pair) if key in fitted), None)
        if other is not None or unit in patients:
            problem = f"was part of the fit ({other})" if other else f"shows {unit} of the fit"
            raise PathError(pair.softmax.path, problem, "check on other scans")
    calibrator = assurance.own_calibrator()
    with result_folder(out, overwrite) as draft:
        work = {pair.name: partial(read_labeled, pair, calibrator) for pair in pairs}
        cases = run_all(work, jobs, "checking", progress)
        result, volume_rows, case_rows = measure(assurance, cases, units)
        measures = [one._asdict() for one in result.measures]
        promises = [{**one._asdict(), "broken": one.broken} for one in result.promises]
        write_csv(draft / "volumes.csv", volume_rows)
        write_csv(draft / "cases.csv", case_rows)
        write_csv(draft / "measures.csv", measures)
        write_json(draft / "check.json", {
            "cases": result.cases, "patients": result.patients,
            "promises": _json(promises), "measures": _json(measures),
        })  # fmt: skip
    return result


def _json(rows: Rows) -> Rows:
    """With null for NaN, which JSON does not have."""
    return [{k: None if v != v else v for k, v in row.items()} for row in rows]


def measure(
    assurance: Assurance, cases: Sequence[CaseSummary], units: Units
) -> tuple[CheckResult, Rows, Rows]:
    """All measures of labeled scans; and the rows of volumes.csv and cases.csv."""
    coverage, risk = assurance.coverage, assurance.risk
    claims: list[Claim] = []
    measures: list[Measure] = []
    volume_rows: Rows = []
    for s, fit in enumerate(assurance.structures):
        rows = [_volume_row(assurance, case, s) for case in cases]
        volume_rows += [
            {"case": case.name, "structure": fit.name, **row}
            for case, row in zip(cases, rows, strict=True)
        ]
        table = {key: np.array([row[key] for row in rows], float) for key in rows[0]}
        claims += [
            (fit.name, "volume in interval", coverage, table["covered"], True),
            (fit.name, "outer mask misses", risk, table["outer"], False),
            (fit.name, "inner mask is wrong", risk, table["inner"], False),
        ]
        measures += _interval_measures(fit.name, fit.method, table, units)
        measures += _dice_measures(fit.name, table, units)
    case_rows = [_case_row(assurance, case) for case in cases]
    table = {key: np.array([row[key] for row in case_rows], float) for key in case_rows[0]}
    claims.append(("all", "Dice in interval", coverage, table["covered"], True))
    if assurance.referral is not None:
        failed = np.where(table["accepted"], table["dice"] < assurance.min_dice, np.nan)
        what = f"accepted with Dice < {assurance.min_dice:g}"
        claims.append(("all", what, assurance.max_failures, failed, False))
    measures += _dice_measures("all", table, units)
    measures += _aurc(table, units)
    referral = {"accepted": "referral"} if assurance.referral is not None else {}
    for key, method in {**referral, "in_scope": "scope"}.items():
        share = _proportion(table[key], units)
        measures.append(Measure("all", method, f"{key.replace('_', ' ')} share", *share))
    result = CheckResult(len(cases), len(set(units)), _promises(claims, units), measures)
    names = ({"case": c.name, "patient": str(u)} for c, u in zip(cases, units, strict=True))
    return result, volume_rows, [{**n, **r} for n, r in zip(names, case_rows, strict=True)]


def _promises(claims: Sequence[Claim], units: Units) -> list[Promise]:
    """The claims that some scans can show, with intervals that hold together."""
    kept = [claim for claim in claims if not np.isnan(claim[3]).all()]
    sure = 1 - 0.05 / max(len(kept), 1)
    promises = []
    for structure, what, promised, values, at_least in kept:
        interval = (mean_interval if "mask" in what else _proportion)(values, units, sure)
        found = Estimate(*np.clip(interval, 0, 1).tolist())
        patients = len(set(units[~np.isnan(values)]))
        promises.append(Promise(structure, what, promised, *found, patients, at_least))
    return promises


def _volume_row(assurance: Assurance, case: CaseSummary, s: int) -> dict[str, float]:
    """One structure of one scan, in ml and fractions."""
    fit, ml, hist = assurance.structures[s], case.voxel_ml, case.histogram(s)
    true = ml * case.true_volume(s)
    center, low, high = assurance.interval(case, s)
    plain = plain_interval(case, s, "factor", fit.rho, assurance.coverage)
    out = {
        "true_ml": true, "median": center, "lower": low, "upper": high,
        "pit": volume_pit(hist, fit.rho, true, ml),
        "expected_dice": assurance.structure_dice(case, s), "dice": case.dice(s),
        "difficulty": plain.widened(1).width / max(ml * hist.expected, ml),
    }  # fmt: skip
    intervals: dict[str, Interval] = {name: assurance.interval(case, s, name) for name in METHODS}
    for name, rho in {"factor": fit.rho, **_UNFITTED}.items():
        out[f"{name}_crps"] = crps(volume_quantiles(hist, rho, CRPS_LEVELS, ml), true)
        if name in _UNFITTED:
            intervals[name] = plain_interval(case, s, "factor", rho, assurance.coverage).widened(1)
    for name, own in intervals.items():
        out[f"{name}_covered"] = np.nan if np.isnan(own.center) else float(own.contains(true))
        out[f"{name}_width"] = own.width
    out["covered"] = out[f"{fit.method}_covered"]
    size, hits = case.above(s)
    b, c = np.searchsorted(EDGES, [fit.outer or 0.0, fit.inner or 0.0])
    out["outer"] = 1 - hits[b] / hits[0] if fit.outer is not None and hits[0] else np.nan
    out["inner"] = np.nan if fit.inner is None else (1 - hits[c] / size[c] if size[c] else 0.0)
    return out


def _case_row(assurance: Assurance, case: CaseSummary) -> dict[str, float]:
    """Expected and true mean Dice of one scan."""
    (mean, low, high), rule = assurance.dice(case), assurance.referral
    true = nanmean([case.dice(s) for s in range(len(assurance.structures))])
    in_scope = not assurance.out_of_scope(case.features)
    return {
        "expected_dice": mean, "lower": low, "upper": high, "dice": true,
        "covered": np.nan if np.isnan(low + true) else float(low <= true <= high),
        "in_scope": in_scope,
        "accepted": np.nan if rule is None else float(in_scope and mean >= rule.limit),
        "confidence": case.inside_sums.sum() / max(case.inside_count.sum(), 1),
    }  # fmt: skip


def _proportion(hits: Floats, units: Units, confidence: float = 0.95) -> Estimate:
    """A proportion with its Clopper–Pearson interval; patients count once, NaN not at all.

    With several scans per patient it is too wide rather than too narrow.
    """
    known = ~np.isnan(hits)
    weights, n = unit_weights(units[known], int(known.sum()))
    total = float(weights @ hits[known])
    return Estimate(total / n if n else np.nan, *clopper_pearson(total, n, confidence))


def _interval_measures(
    name: str, method: str, table: Mapping[str, Floats], units: Units
) -> list[Measure]:
    out = []
    for kind in (*METHODS, *_UNFITTED):
        out.append(Measure(name, kind, "coverage", *_proportion(table[f"{kind}_covered"], units)))
        for key, what in (("width", "width ml"), ("crps", "CRPS ml")):
            if f"{kind}_{key}" in table:
                found = mean_interval(table[f"{kind}_{key}"], units)
                out.append(Measure(name, kind, what, *found))
    # By the width that the factor model predicts, relative to the volume.
    thirds = np.array_split(np.argsort(table["difficulty"], kind="stable"), 3)
    for kind in dict.fromkeys((method, "factor", "share")):
        for part, index in zip(("easy", "middle", "difficult"), thirds, strict=True):
            cover = _proportion(table[f"{kind}_covered"][index], units[index])
            out.append(Measure(name, kind, f"coverage, {part} third", *cover))
    out.append(Measure(name, "factor", "PIT mean (0.5)", *mean_interval(table["pit"], units)))
    spread = 12 * (table["pit"] - 0.5) ** 2
    out.append(Measure(name, "factor", "PIT spread (1)", *mean_interval(spread, units)))
    return out


def _dice_measures(name: str, table: Mapping[str, Floats], units: Units) -> list[Measure]:
    error = table["expected_dice"] - table["dice"]
    known = ~np.isnan(error)
    weights, n = unit_weights(units[known], int(known.sum()))
    r = low = high = np.nan
    if n > 3:
        pair = table["expected_dice"][known], table["dice"][known]
        (a, both), (_, b) = np.cov(*pair, aweights=weights)
        if a * b > 0:
            r = both / np.sqrt(a * b)
            z, half = np.arctanh(np.clip(r, -0.999999, 0.999999)), ndtri(0.975) / np.sqrt(n - 3)
            low, high = np.tanh([z - half, z + half])
    return [
        Measure(name, "expected Dice", "absolute error", *mean_interval(np.abs(error), units)),
        Measure(name, "expected Dice", "bias", *mean_interval(error, units)),
        Measure(name, "expected Dice", "correlation", float(r), float(low), float(high)),
    ]


def _aurc(table: Mapping[str, Floats], units: Units) -> list[Measure]:
    """The area under the risk-coverage curve of the loss 1 − Dice for three orders of scans."""
    known = ~np.isnan(table["expected_dice"] + table["dice"])
    if not known.any():
        return []
    loss = 1 - table["dice"][known]
    weights, n = unit_weights(units[known], len(loss))
    owner = np.unique(units[known], return_inverse=True)[1]
    out = []
    for key in ("expected_dice", "confidence", "dice"):
        score = table[key][known]
        area = risk_coverage(score, loss, weights).aurc
        others = [owner != patient for patient in range(n if n > 1 else 0)]
        without = [risk_coverage(score[o], loss[o], weights[o]).aurc for o in others]
        measured = jackknife_interval(area, without).within((0, 1))
        name = {"dice": "best possible", "confidence": "mean confidence"}.get(key, "expected Dice")
        out.append(Measure("all", name, AURC, *measured))
    return out
