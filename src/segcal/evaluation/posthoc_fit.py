"""Fit a calibrator on files of predictions, and cross-validate it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.core.checks import check_choice, check_int
from segcal.core.progress import ProgressCallback, no_progress
from segcal.evaluation.posthoc_verdict import METRICS, Verdict, paired_change
from segcal.metrics import REGIONS, voxel_statistics
from segcal.posthoc import Balance, Calibrator, HeldOut, Sample, make_calibrator, to_probs
from segcal.predictions import IGNORED, LoadedCase, Pairs, name_file_in_errors
from segcal.stats import make_folds, patients_of


@dataclass(frozen=True)
class Fitted:
    """A calibrator fitted on all cases, and its verdict by cross-validation (None: not done)."""

    calibrator: Calibrator
    verdict: Verdict | None


def fit_pairs(
    pairs: Pairs,
    method: str,
    *,
    from_probs: bool,
    region: str = "all",
    balance: Balance = "none",
    folds: int = 5,
    patient: str | None = None,
    max_voxels: int = 1_000_000,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    progress: ProgressCallback = no_progress,
) -> Fitted:
    """Fit `method` on all cases, and cross-validate it over cases.

    The cases are read twice, one at a time: once to sample the voxels that all fits share, once to
    score each case with the calibrator of the fold that did not contain it.

    Args:
        method: a name in `segcal.posthoc.CALIBRATORS`, or an import path; `options` are its own.
        region: voxels to fit on, a name of `segcal.metrics.REGIONS`.
        from_probs, balance, max_voxels, seed: see `Calibrator.fit`.
        folds: number of folds, at most one per case or patient; 0 skips cross-validation.
        patient: a regular expression. Cases in which it finds the same text (its first group, if
            it has one) belong to one patient: they stay in one fold and count once in the
            intervals. None: each case is one patient.
        progress: called as (what, cases done, cases in total).
    """
    check_choice("region", region, REGIONS)
    check_int("folds", folds, low=0)
    parts = make_folds(pairs.names, folds, patient, seed) if folds else []
    make = partial(make_calibrator, method, **(options or {}))
    space = make().space
    sample = Sample(max_voxels=max_voxels, seed=seed, from_probs=from_probs, space=space)
    for number, pair in enumerate(pairs, start=1):
        case = pair.load()
        with name_file_in_errors(pair.softmax.path):
            sample.add(HeldOut(case.values, case.target, region_mask(case, region)))
        progress("reading", number, len(pairs))
    with name_file_in_errors(pairs.folder):
        final = make().fit_voxels(sample.select(balance=balance))
        models: dict[int, Calibrator] = {}
        for part in parts:
            others = [i for i in range(len(pairs)) if i not in part]
            model = make().fit_voxels(sample.select(others, balance))
            models |= dict.fromkeys(part, model)
        verdict = None
        if parts:
            units = None if patient is None else list(patients_of(pairs.names, patient).values())
            verdict = _cross_validate(pairs, models, from_probs, region, units, progress)
    final.about = {
        "region": region,
        "seed": seed,
        "folds": len(parts),
        "cases": pairs.names,
        "cross_validation": verdict.as_dict() if verdict is not None else None,
    }
    return Fitted(final, verdict)


def region_mask(case: LoadedCase, region: str) -> NDArray[np.bool_]:
    """The voxels of a region of one case."""
    labels = case.values.argmax(0) if region == "union" else None
    mask = REGIONS[region](
        case.target, labels=labels, spacing_mm=case.spacing_mm, ignore_index=IGNORED
    )
    return np.asarray(mask)


def _cross_validate(
    pairs: Pairs,
    models: Mapping[int, Calibrator],
    from_probs: bool,
    region: str,
    units: Sequence[str] | None,
    progress: ProgressCallback,
) -> Verdict:
    """Compare the scores of each case before and after the calibrator that did not see it."""
    scores: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    changed = voxels = 0
    for i, pair in enumerate(pairs):
        case = pair.load()
        with name_file_in_errors(pair.softmax.path):
            before = to_probs(case.values, from_probs=from_probs)
            after = models[i].transform(case.values, from_probs=from_probs)
            changed += int((before.argmax(0) != after.argmax(0)).sum())
            voxels += case.target.size
            for name in REGIONS:
                mask = region_mask(case, name)
                old, new = (_scores(probs, case.target, mask) for probs in (before, after))
                for metric in METRICS:
                    scores[name, metric].append((old[metric], new[metric]))
        progress("cross-validating", i + 1, len(pairs))
    ordered = [region, *(name for name in REGIONS if name != region)]
    changes = [
        paired_change(name, metric, *zip(*scores[name, metric], strict=True), units=units)
        for name in ordered
        for metric in METRICS
    ]
    folds = list({id(model): model for model in models.values()}.values())
    found = Counter(line for m in folds if m.report is not None for line in m.report.warnings())
    warnings = tuple(f"in {n} of {len(folds)} folds: {line}" for line, n in found.items())
    return Verdict(
        region, tuple(changes), changed, voxels, "cases" if units is None else "patients", warnings
    )


def _scores(
    probs: NDArray[Any], target: NDArray[np.int32], mask: NDArray[np.bool_]
) -> dict[str, float]:
    found = voxel_statistics(probs, target, len(probs), mask, ignore_index=IGNORED, batched=False)
    return {"ece": found.bins.ece(), "nll": found.scores.nll(), "brier": found.scores.brier()}
