"""Post-hoc calibration of files: fit and judge by cross-validation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.core.checks import check_choice, check_int
from segcal.core.errors import PathError
from segcal.core.progress import ProgressCallback, no_progress
from segcal.evaluation.posthoc_verdict import METRICS, Verdict, compare
from segcal.metrics import REGIONS, predicted_labels, voxel_statistics
from segcal.posthoc import CALIBRATORS, Calibrator, HeldOut, make_calibrator, to_probs
from segcal.predictions.pairing import IGNORED, Loaded, Pairs
from segcal.stats import patients_of

# Those that a study may fit to each of its runs; "local" is a training of its own.
AFTER_TRAINING = tuple(name for name in CALIBRATORS if name != "local")


@dataclass(frozen=True)
class Fitted:
    """A calibrator fitted on all cases, and what cross-validation says of such a fit."""

    calibrator: Calibrator
    verdict: Verdict | None


def fit_pairs(
    pairs: Pairs,
    method: str,
    *,
    from_probs: bool,
    region: str = "all",
    balance: str = "none",
    folds: int = 5,
    patient: str | None = None,
    max_voxels: int = 1_000_000,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    progress: ProgressCallback = no_progress,
) -> Fitted:
    """Fit `method` on all cases, and judge it by cross-validation over cases.

    The cases are read twice, one at a time: once to draw the voxels that all fits share, once to
    score each with the calibrator of the fold that did not see it.

    Args:
        pairs: predictions beside their labels.
        method: a name of `segcal.posthoc.CALIBRATORS`.
        from_probs: predictions are probabilities.
        region: voxels to fit on, a name of `segcal.metrics.REGIONS`.
        balance: see `Calibrator.fit`.
        folds: of the cross-validation; at most one per case or patient; 0 does not judge.
        patient: a regular expression; cases in which it finds the same text (its first group, if
            it has one) are of one patient: they stay in one fold, and count as one in the
            intervals. None: each case is its own.
        max_voxels, seed: of the sample.
        options: of the calibrator.
        progress: called as (what, cases done, cases in total).
    """
    check_choice("region", region, REGIONS)
    check_int("folds", folds, low=0)
    parts = make_folds(pairs.names, folds, patient, seed) if folds else []
    make = partial(make_calibrator, method, **(options or {}))
    gathered = make().gather(
        from_probs=from_probs, max_voxels=max_voxels, seed=seed, ignore_index=IGNORED
    )
    dims = 0
    for number, pair in enumerate(pairs, start=1):
        loaded = pair.load()
        dims = loaded.target.ndim
        with naming(pair.softmax.path):
            mask = region_mask(loaded, region)
            gathered.add(HeldOut(loaded.values, loaded.target, mask, loaded.image))
        progress("reading", number, len(pairs))
    with naming(pairs.folder):
        final = make().fit_gathered(gathered.of(None, balance))
        final.note(balance, from_probs)
        verdict = None
        if parts:
            everyone = range(len(pairs))
            models = [
                make().fit_gathered(gathered.of([i for i in everyone if i not in part], balance))
                for part in map(set, parts)
            ]
            units = None if patient is None else list(patients_of(pairs.names, patient).values())
            verdict = _judge(pairs, parts, models, from_probs, region, units, progress)
    final.about = {
        "region": region,
        "seed": seed,
        "folds": len(parts),
        "cases": pairs.names,
        # How arrays were read, for those that say nothing of it.
        "axes": pairs.axes,
        "dims": dims,
        "cross_validation": verdict.as_dict() if verdict is not None else None,
    }
    return Fitted(final, verdict)


def make_folds(
    names: Sequence[str], folds: int, patient: str | None = None, seed: int = 0
) -> list[list[int]]:
    """Positions of the cases of each fold; cases of one patient stay together.

    Example:
        >>> [len(f) for f in make_folds(["p1_a", "p1_b", "p2_a", "p3_a"], 3, r"(p\\d)")]
        [2, 1, 1]
    """
    check_int("folds", folds, low=2)
    of = dict(zip(names, names, strict=True)) if patient is None else patients_of(names, patient)
    groups: dict[str, list[int]] = defaultdict(list)
    for i, name in enumerate(names):
        groups[of[name]].append(i)
    if len(groups) < 2:
        raise ValueError(
            f"Expected two cases of different patients or more to cross-validate, but got "
            f"{len(groups)}. Give more, or --folds 0 to fit without a verdict."
        )
    order = np.random.default_rng(seed).permutation(len(groups))
    members = [list(groups.values())[i] for i in order]
    members.sort(key=len, reverse=True)  # stable: the shuffle holds among equals
    out: list[list[int]] = [[] for _ in range(min(folds, len(groups)))]
    for group in members:
        min(out, key=len).extend(group)
    return out


def region_mask(loaded: Loaded, region: str) -> NDArray[np.bool_]:
    """The voxels of a region of one case."""
    labels = predicted_labels(loaded.values) if region == "union" else None
    mask = REGIONS[region](
        loaded.target, labels=labels, spacing_mm=loaded.spacing_mm, ignore_index=IGNORED
    )
    return np.asarray(mask)


def _judge(
    pairs: Pairs,
    parts: Sequence[Sequence[int]],
    models: Sequence[Calibrator],
    from_probs: bool,
    region: str,
    units: Sequence[str] | None,
    progress: ProgressCallback,
) -> Verdict:
    """Scores of each case before, and after the calibrator that did not see it."""
    model_of = {i: model for part, model in zip(parts, models, strict=True) for i in part}
    scores: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    changed = voxels = 0
    for i, pair in enumerate(pairs):
        loaded = pair.load()
        with naming(pair.softmax.path):
            before = to_probs(loaded.values, from_probs=from_probs)
            after = model_of[i].transform(loaded.values, from_probs=from_probs, image=loaded.image)
            changed += int((before.argmax(0) != after.argmax(0)).sum())
            voxels += loaded.target.size
            for name in REGIONS:
                mask = region_mask(loaded, name)
                pair_of = [_scores(p, loaded.target, mask) for p in (before, after)]
                for metric in METRICS:
                    scores[name, metric].append((pair_of[0][metric], pair_of[1][metric]))
        progress("judging", i + 1, len(pairs))
    ordered = [region, *(name for name in REGIONS if name != region)]
    changes = [
        compare(name, metric, *zip(*scores[name, metric], strict=True), units=units)
        for name in ordered
        for metric in METRICS
    ]
    unit = "cases" if units is None else "patients"
    return Verdict(region, tuple(changes), changed, voxels, unit, _notes(models))


def _notes(models: Sequence[Calibrator]) -> tuple[str, ...]:
    """What befell the fits of the folds: they are judged, so it must be known."""
    found: dict[str, int] = defaultdict(int)
    for report in (model.report for model in models if model.report is not None):
        for words in (*report.at_bound, *report.notes):
            found[words] += 1
        if not report.converged:
            found["the search was cut off before it converged"] += 1
    return tuple(f"in {n} of {len(models)} folds: {words}" for words, n in found.items())


def _scores(
    probs: NDArray[Any], target: NDArray[np.int32], mask: NDArray[np.bool_]
) -> dict[str, float]:
    found = voxel_statistics(probs, target, len(probs), mask, ignore_index=IGNORED, batched=False)
    return {
        "ece": found.bins.ece(),
        "nll": found.scores.nll(),
        "brier": found.scores.brier(),
    }


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Problems with values name the file or folder they were found in."""
    try:
        yield
    except PathError:
        raise
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
