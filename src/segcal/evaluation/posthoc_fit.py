"""Fit a calibrator on files of predictions, and cross-validate it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.core.checks import check_choice, check_int
from segcal.core.heads import inside_labels
from segcal.core.jobs import run_all
from segcal.core.progress import ProgressCallback, no_progress
from segcal.evaluation.posthoc_choice import AUTO, CANDIDATES, JUDGED, NONE, Choice, choose
from segcal.evaluation.posthoc_verdict import METRICS, Verdict, paired_change
from segcal.metrics import REGIONS, predicted_labels, voxel_statistics
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

    `choice` says why `auto` chose it; `absent` are the structures that no label map contains.
    """

    calibrator: BaseCalibrator
    verdict: Verdict | None
    choice: Choice | None = None
    absent: tuple[str, ...] = ()

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
    if method == AUTO and len(set(units or pairs.names)) < 2:
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
    names = [*pairs.heads] or [f"class {k}" for k in range(1, pairs.num_classes)]
    absent = set(names)
    for number, pair in enumerate(pairs, start=1):
        for head, case in enumerate(_problems(pair, from_probs)):
            present = np.unique(case.target)
            absent -= {names[head if pairs.heads else k - 1] for k in present[present > 0]}
            with name_file_in_errors(pair.softmax.path):
                mask = region_mask(case, region)
                sample.add(HeldOut(case.values, case.target, mask, case.spacing_mm))
        progress("reading", number, len(pairs))

    def fit(new: Callable[[], Calibrator], cases: Sequence[int]) -> BaseCalibrator:
        if pairs.heads:
            return HeadCalibrator.fit(
                pairs.heads, new, sample, cases, shared=shared, balance=balance
            )
        return new().fit_voxels(sample.select(cases, balance))

    every = range(len(pairs))
    with name_file_in_errors(pairs.folder):
        models: dict[str, dict[int, BaseCalibrator]] = {name: {} for name in make}
        for part in parts:
            others = [i for i in every if i not in part]
            for name, new in make.items():
                models[name] |= dict.fromkeys(part, fit(new, others))
        choice = None
        if method == AUTO:
            choice = _choose(pairs, models, from_probs, units, jobs, progress)
            make[NONE] = partial(make_calibrator, "temperature", bounds=(1.0, 1.0))
            method = choice.method
        final = fit(make[method], every)
        verdict = None
        if method == NONE and final.report is not None:
            final.report.at_bound = []
        elif parts:
            verdict = _cross_validate(
                pairs, models[method], from_probs, region, units, jobs, progress
            )
    final.about = {
        "region": region,
        "seed": seed,
        "folds": len(parts),
        "cases": pairs.names,
        "patients": len(set(units or pairs.names)),
        "cross_validation": verdict.as_dict() if verdict is not None else None,
        **({"auto": choice.as_dict()} if choice is not None else {}),
    }
    return Fitted(final, verdict, choice, tuple(name for name in names if name in absent))


def region_mask(case: LoadedCase, region: str) -> NDArray[np.bool_]:
    """The voxels of a region of one case."""
    labels = predicted_labels(case.values)
    mask = REGIONS[region](
        case.target, labels=labels, spacing_mm=case.spacing_mm, ignore_index=IGNORED
    )
    return np.asarray(mask)


def _choose(
    pairs: Pairs,
    models: Mapping[str, Mapping[int, BaseCalibrator]],
    from_probs: bool,
    units: Sequence[str] | None,
    jobs: int,
    progress: ProgressCallback,
) -> Choice:
    """Score each case with the calibrators that did not see it, and choose the best method."""
    work = {
        pair.name: partial(_compare, pair, {n: m[i] for n, m in models.items()}, from_probs)
        for i, pair in enumerate(pairs)
    }
    rows = run_all(work, jobs, "comparing methods", progress)
    return choose({name: np.array([row[name] for row in rows]) for name in rows[0]}, units)


def _compare(
    pair: Pair, models: Mapping[str, BaseCalibrator], from_probs: bool
) -> dict[str, list[float]]:
    """The NLL of a case in each judged region, before and after each calibrator."""
    found: dict[str, list[list[float]]] = {name: [] for name in (NONE, *models)}
    with name_file_in_errors(pair.softmax.path):
        for head, case in enumerate(_problems(pair, from_probs)):
            masks = [region_mask(case, name) for name in JUDGED]
            for name, scores in found.items():
                if name == NONE:
                    probs = to_probs(case.values, from_probs=from_probs)
                else:
                    probs = _calibrate(models[name], head, case, from_probs)
                scores.append([_scores(probs, case.target, mask)["nll"] for mask in masks])
    return {name: [_mean(each) for each in zip(*s, strict=True)] for name, s in found.items()}


def _cross_validate(
    pairs: Pairs,
    models: Mapping[int, BaseCalibrator],
    from_probs: bool,
    region: str,
    units: Sequence[str] | None,
    jobs: int,
    progress: ProgressCallback,
) -> Verdict:
    """Compare the scores of each case before and after the calibrator that did not see it."""
    work = {
        pair.name: partial(_before_and_after, pair, models[i], from_probs)
        for i, pair in enumerate(pairs)
    }
    found = run_all(work, jobs, "cross-validating", progress)
    changed, voxels = (sum(each) for each in zip(*(counts for _, counts in found), strict=True))
    ordered = [region, *(name for name in REGIONS if name != region)]
    changes = [
        paired_change(
            name,
            metric,
            *zip(*(scores[name, metric] for scores, _ in found), strict=True),
            units=units,
        )
        for name in ordered
        for metric in METRICS
    ]
    folds = list({id(model): model for model in models.values()}.values())
    messages = Counter(line for m in folds if m.report is not None for line in m.report.warnings())
    warnings = tuple(f"in {n} of {len(folds)} folds: {line}" for line, n in messages.items())
    return Verdict(
        region, tuple(changes), changed, voxels, "cases" if units is None else "patients", warnings
    )


def _before_and_after(
    pair: Pair, model: BaseCalibrator, from_probs: bool
) -> tuple[dict[tuple[str, str], tuple[float, float]], tuple[int, int]]:
    """Scores by region and metric, and the number of changed labels and of voxels."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    changed = voxels = 0
    with name_file_in_errors(pair.softmax.path):
        for head, case in enumerate(_problems(pair, from_probs)):
            before = to_probs(case.values, from_probs=from_probs)
            after = _calibrate(model, head, case, from_probs)
            changed += int((predicted_labels(before) != predicted_labels(after)).sum())
            voxels += case.target.size
            for name in REGIONS:
                mask = region_mask(case, name)
                old, new = (_scores(probs, case.target, mask) for probs in (before, after))
                for metric in METRICS:
                    found[name, metric].append((old[metric], new[metric]))
    scores = {
        key: (_mean([old for old, _ in both]), _mean([new for _, new in both]))
        for key, both in found.items()
    }
    return scores, (changed, voxels)


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
