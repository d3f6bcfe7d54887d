"""Fit a calibrator on files of predictions, and cross-validate it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from segcal.core.checks import check_choice, check_int
from segcal.core.errors import PathError
from segcal.core.heads import inside_labels
from segcal.core.jobs import run_all
from segcal.core.progress import ProgressCallback, no_progress
from segcal.evaluation.agreement import disagreement
from segcal.evaluation.posthoc_choice import AUTO, CANDIDATES, JUDGED, NONE, Choice, choose
from segcal.evaluation.posthoc_verdict import METRICS, Verdict, paired_change
from segcal.metrics import REGIONS, confusion, predicted_labels, voxel_statistics
from segcal.posthoc import (
    Balance,
    BaseCalibrator,
    Calibrator,
    HeadCalibrator,
    HeldOut,
    Sample,
    as_two_classes,
    make_calibrator,
    to_probs,
)
from segcal.predictions import IGNORED, LoadedCase, Pair, Pairs, name_file_in_errors
from segcal.stats import make_folds, patients_of


@dataclass(frozen=True)
class Fitted:
    """A calibrator fitted on all cases, and its verdict by cross-validation (None: not done).

    `choice` says why `auto` chose it; `absent` are the structures that no label map contains;
    `disagreement` says why masks and labels hardly agree, if they do not.
    """

    calibrator: BaseCalibrator
    verdict: Verdict | None
    choice: Choice | None = None
    absent: tuple[str, ...] = ()
    disagreement: str = ""

    def conclusion(self) -> str:
        """One line: the verdict, or why there is none."""
        if self.verdict is not None:
            return self.verdict.summary()
        if self.choice is not None:
            return "the file holds a temperature of 1, which changes nothing"
        return "not cross-validated"


def fit_pairs(
    pairs: Pairs,
    method: str,
    *,
    from_probs: bool,
    region: str = "all",
    balance: Balance = "none",
    folds: int = 5,
    patient: str | Mapping[str, str] | None = None,
    max_voxels: int = 1_000_000,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    shared: bool = False,
    jobs: int = 1,
    progress: ProgressCallback = no_progress,
) -> Fitted:
    """Fit `method` on all cases, and cross-validate it over cases.

    Sigmoid heads are problems of two classes: each gets a calibrator, and scores are means over
    heads.

    The cases are read twice, one at a time: once to sample the voxels that all fits share, once to
    score each case with the calibrator of the fold that did not contain it.

    Args:
        method: a name in `segcal.posthoc.CALIBRATORS`, or an import path; `options` are its own.
            "auto" compares several (`CANDIDATES`), and may choose none: the calibrator is then a
            temperature of 1.
        region: voxels to fit on, a name of `segcal.metrics.REGIONS`.
        from_probs, balance, max_voxels, seed: see `Calibrator.fit`.
        folds: number of folds, at most one per case or patient; 0 skips cross-validation.
        patient: a regular expression. Cases in which it finds the same text (its first group, if
            it has one) belong to one patient: they stay in one fold and count once in the
            intervals. None: each case is one patient. Or a mapping, case → patient.
        shared: fit one calibrator for all sigmoid heads, instead of one for each.
        jobs: processes that score cases; the result does not depend on it.
        progress: called as (what, cases done, cases in total).
    """
    check_choice("region", region, REGIONS)
    check_int("folds", folds, low=0)
    if method == AUTO and (folds < 2 or options):
        raise ValueError("--method auto needs --folds 2 or more, and has no options (--set)")
    units = None if patient is None else list(patients_of(pairs.names, patient).values())
    patients = len(set(units or pairs.names))
    if method == AUTO and patients < 2:
        problem = "auto compares methods over two patients or more, but there is one"
        raise ValueError(f"{problem}; give more cases, or name a method, such as temperature")
    parts = make_folds(pairs.names, folds, patient, seed) if folds else []
    methods = CANDIDATES if method == AUTO else {method: options or {}}
    make = {name: partial(make_calibrator, name, **given) for name, given in methods.items()}
    kinds = [new() for new in make.values()]
    sample = Sample(
        max_voxels=max_voxels, seed=seed, from_probs=from_probs, space=kinds[0].space,
        features=next((found for kind in kinds if (found := kind.feature_map())), None),
    )  # fmt: skip
    absent, disagree = _read_into(sample, pairs, from_probs, region, progress)

    def fit(new: Callable[[], Calibrator], cases: Sequence[int]) -> BaseCalibrator:
        if pairs.heads:
            return HeadCalibrator.fit(
                pairs.heads, new, sample, cases, shared=shared, balance=balance
            )
        return new().fit_voxels(sample.select(cases, balance))

    every = range(len(pairs))
    scorer = _Scorer(pairs, from_probs, units, jobs, progress)
    with name_file_in_errors(pairs.folder):
        models: dict[str, dict[int, BaseCalibrator]] = {name: {} for name in make}
        for part in parts:
            others = [i for i in every if i not in part]
            for name, new in make.items():
                models[name] |= dict.fromkeys(part, fit(new, others))
        choice = None
        if method == AUTO:
            choice = scorer.choose(models)
            make[NONE] = partial(make_calibrator, "temperature", bounds=(1.0, 1.0))
            method = choice.method
        final = fit(make[method], every)
        verdict = None
        if method == NONE and final.report is not None:
            final.report.at_bound = []
        elif parts:
            verdict = scorer.cross_validate(method, models[method], region)
    final.about = {
        "region": region,
        "seed": seed,
        "folds": len(parts),
        "cases": pairs.names,
        "patients": patients,
        "cross_validation": verdict.as_dict() if verdict is not None else None,
        **({"auto": choice.as_dict()} if choice is not None else {}),
    }
    return Fitted(final, verdict, choice, absent, disagree)


def _read_into(
    sample: Sample, pairs: Pairs, from_probs: bool, region: str, progress: ProgressCallback
) -> tuple[tuple[str, ...], str]:
    """Add voxels of every case to the sample.

    Returned are the structures that no label map contains, and why masks and labels disagree.
    """
    names = [*pairs.heads] or [f"class {k}" for k in range(1, pairs.num_classes)]
    absent = dict.fromkeys(names)
    hard = from_probs
    tables: dict[int, NDArray[np.int64]] = {}
    for number, pair in enumerate(pairs, start=1):
        for head, case in enumerate(_problems(pair, from_probs)):
            for k in np.unique(case.target[case.target > 0]):
                absent.pop(names[head if pairs.heads else k - 1], None)
            hard = hard and all(bool(((v == 0) | (v == 1)).all()) for v in case.values)
            with name_file_in_errors(pair.softmax.path):
                mask = region_mask(case, region)
                sample.add(HeldOut(case.values, case.target, mask, case.spacing_mm))
            found = confusion(
                predicted_labels(case.values), case.target, len(case.values), ignore_index=IGNORED
            )
            tables[head] = tables.get(head, 0) + found
        progress("reading", number, len(pairs))
    if hard:
        problem = "contains only the values 0 and 1, like masks with a channel per class"
        raise PathError(pairs.folder, problem, "give the probabilities of the network")
    lines = ((head, disagreement(table)) for head, table in tables.items())
    named = [f"{names[head]}: {line}" if pairs.heads else line for head, line in lines if line]
    return tuple(absent), "; ".join(named)


def region_mask(case: LoadedCase, region: str) -> NDArray[np.bool_]:
    """The voxels of a region of one case."""
    labels = predicted_labels(case.values)
    mask = REGIONS[region](
        case.target, labels=labels, spacing_mm=case.spacing_mm, ignore_index=IGNORED
    )
    return np.asarray(mask)


@dataclass(frozen=True)
class _Scorer:
    """Scores each case with calibrators that did not see it, in `jobs` processes.

    `units` are the patients of the cases; None: each case is one.
    """

    pairs: Pairs
    from_probs: bool
    units: Sequence[str] | None
    jobs: int
    progress: ProgressCallback

    def choose(self, models: Mapping[str, Mapping[int, BaseCalibrator]]) -> Choice:
        """Choose the best method."""
        rows = self._score("comparing methods", models, JUDGED)
        nll = {
            name: np.array([[row.scores[name, r, "nll"] for r in JUDGED] for row in rows])
            for name in (NONE, *models)
        }
        return choose(nll, self.units)

    def cross_validate(
        self, method: str, models: Mapping[int, BaseCalibrator], region: str
    ) -> Verdict:
        """Compare the scores of each case before and after calibration."""
        rows = self._score("cross-validating", {method: models}, tuple(REGIONS))
        changes = [
            paired_change(
                *key, *([row.scores[m, *key] for row in rows] for m in (NONE, method)),
                units=self.units,
            )
            for key in product(dict.fromkeys([region, *REGIONS]), METRICS)
        ]  # fmt: skip
        changed, voxels = (sum(row.changed[method] for row in rows), sum(r.voxels for r in rows))
        folds = list({id(model): model for model in models.values()}.values())
        messages = Counter(line for m in folds if m.report for line in m.report.warnings())
        warnings = tuple(f"in {n} of {len(folds)} folds: {line}" for line, n in messages.items())
        unit: Literal["cases", "patients"] = "cases" if self.units is None else "patients"
        return Verdict(region, tuple(changes), changed, voxels, unit, warnings)

    def _score(
        self, what: str, models: Mapping[str, Mapping[int, BaseCalibrator]], regions: Sequence[str]
    ) -> list[_CaseScores]:
        work = {
            pair.name: partial(
                _score_case, pair, {n: m[i] for n, m in models.items()}, self.from_probs, regions
            )
            for i, pair in enumerate(self.pairs)
        }
        return run_all(work, self.jobs, what, self.progress)


@dataclass
class _CaseScores:
    """Scores of a case by (method, region, metric), and the labels that each method changes."""

    scores: dict[tuple[str, str, str], float]
    changed: Counter[str]
    voxels: int


def _score_case(
    pair: Pair, models: Mapping[str, BaseCalibrator], from_probs: bool, regions: Sequence[str]
) -> _CaseScores:
    """Score a case without a calibrator (NONE) and with each; scores are means over heads."""
    changed, voxels = Counter[str](), 0
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    with name_file_in_errors(pair.softmax.path):
        for head, case in enumerate(_problems(pair, from_probs)):
            before = to_probs(case.values, from_probs=from_probs)
            masks = {region: region_mask(case, region) for region in regions}
            voxels += case.target.size
            for name in (NONE, *models):
                probs = before
                if name != NONE:
                    probs = _calibrate(models[name], head, case, from_probs)
                    changed[name] += int(
                        (predicted_labels(before) != predicted_labels(probs)).sum()
                    )
                for region, mask in masks.items():
                    for metric, value in _scores(probs, case.target, mask).items():
                        found[name, region, metric].append(value)
    return _CaseScores({key: _mean(each) for key, each in found.items()}, changed, voxels)


def _problems(pair: Pair, from_probs: bool) -> list[LoadedCase]:
    """The case; with sigmoid heads, each head as a case of two classes."""
    case = pair.load()
    if not pair.heads:
        return [case]
    return [
        replace(
            case,
            values=as_two_classes(head, from_probs),
            target=inside_labels(case.target, labels, IGNORED),
        )
        for head, labels in zip(case.values, pair.heads.values(), strict=True)
    ]


def _calibrate(
    model: BaseCalibrator, head: int, case: LoadedCase, from_probs: bool
) -> NDArray[Any]:
    """The calibrated probabilities of a case, or of one head as a case of two classes."""
    part = model.parts[head] if isinstance(model, HeadCalibrator) else model
    probs: NDArray[Any] = part.transform(
        case.values, from_probs=from_probs, spacing_mm=case.spacing_mm
    )
    return probs


def _mean(values: Sequence[float]) -> float:
    """The mean over heads; those without voxels do not count."""
    defined = [value for value in values if value == value]
    return sum(defined) / len(defined) if defined else float("nan")


def _scores(
    probs: NDArray[Any], target: NDArray[np.signedinteger], mask: NDArray[np.bool_]
) -> dict[str, float]:
    found = voxel_statistics(probs, target, len(probs), mask, ignore_index=IGNORED, batched=False)
    return {"ece": found.bins.ece(), "nll": found.scores.nll(), "brier": found.scores.brier()}
