"""Measure predicted cases and write their evaluation: the same for runs, calibrators and audits."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from segcal.core.errors import PathError
from segcal.core.provenance import git_commit, versions
from segcal.evaluation.case_metrics import EvaluatedCase, PredictedCase, evaluate_predicted_case
from segcal.metrics import POOLED, CaseOptions, pool_cases
from segcal.study import Evaluation, EvaluationInfo, file_of_split, write_evaluation_files

T = TypeVar("T")
U = TypeVar("U")


def write_evaluation(
    cases: Iterable[PredictedCase],
    out: Path | str,
    *,
    run: str,
    method: str,
    seed: int,
    dataset: str,
    labels: Sequence[str],
    split: str = "test",
    groups: Mapping[str, Sequence[int]] | None = None,
    options: CaseOptions | None = None,
    workers: int = 1,
    about: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Measure cases one after another and write cases.csv, bins.npz, slices.npz, evaluation.json.

    The arrays of a case are released once it is measured: memory grows only by its rows, its bins
    and one slice.

    Args:
        cases: predicted cases; the next ones are drawn while earlier ones are being measured.
        out: folder; created if it does not exist.
        run, method, seed, dataset: columns of the rows.
        labels: names of the classes, background first.
        split: "test", or the suffix of the file names.
        groups: structures of the segmentation metrics, name → labels; None is each class but 0.
        options: how the metrics are computed; None for the defaults.
        workers: threads that measure.
        about: further entries of evaluation.json.
        overwrite: whether an evaluation of this split may be replaced.
        progress: called with the number of finished cases.
    """
    started = time.monotonic()
    out = Path(out)
    if not overwrite and file_of_split(out, "evaluation.json", split).exists():
        raise PathError(
            out, f"has an evaluation of split {split} already", "pass --overwrite to replace it"
        )
    structures = dict(groups or {name: (k,) for k, name in enumerate(labels) if k > 0})
    identity = {"run": run, "method": method, "seed": seed, "dataset": dataset}
    options = CaseOptions() if options is None else options
    evaluate = partial(evaluate_predicted_case, names=identity, groups=structures, options=options)
    names: list[str] = []
    measured: list[EvaluatedCase] = []
    for one in map_in_order(evaluate, _checked(cases, labels, names), workers):
        measured.append(one)
        if progress is not None:
            progress(len(measured))
    if not measured:
        raise ValueError(f"Expected split {split} of {dataset} to have cases, but got none.")
    rows = [row for one in measured for row in one.result.rows]
    undefined = Counter(row.metric for row in rows if math.isnan(row.value))
    info = EvaluationInfo.model_validate({
        **identity,
        "split": split,
        "regions": options.regions,
        "options": {k: v for k, v in asdict(options).items() if k not in ("regions", "metrics")},
        "metrics": options.metrics,
        "labels": labels,
        "structures": list(structures),
        **(about or {}),
        "case_names": names,
        "undefined": undefined,
        "seconds": round(time.monotonic() - started, 3),
        "versions": versions(),
        "commit": git_commit(),
    })  # fmt: skip
    bins = _stack_bins(names, options.regions, labels, measured)
    rows += pool_cases(one.result for one in measured)
    return write_evaluation_files(out, info, rows, bins, _slices(names, measured))


def _checked(
    cases: Iterable[PredictedCase], labels: Sequence[str], names: list[str]
) -> Iterator[PredictedCase]:
    """Check the number of classes and the name of each case, and collect the names."""
    for case in cases:
        if len(case.probs) != len(labels):
            raise ValueError(
                f"Expected case {case.name} to have {len(labels)} classes "
                f"({', '.join(labels)}), but got {len(case.probs)}."
            )
        if case.name in names or case.name == POOLED:
            raise ValueError(f"Expected case names to be unique, but got {case.name!r}.")
        names.append(case.name)
        yield case


def map_in_order(function: Callable[[T], U], items: Iterable[T], workers: int) -> Iterator[U]:
    """Like `map`, by threads; at most `workers` items wait."""
    if workers <= 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(workers) as pool:
        pending: deque[Future[U]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                del item
                if len(pending) > workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def _stack_bins(
    names: Sequence[str],
    regions: Sequence[str],
    labels: Sequence[str],
    measured: Sequence[EvaluatedCase],
) -> dict[str, Any]:
    """The state of the bins, stacked over (case, region)."""
    out: dict[str, Any] = {
        "cases": np.array(names), "regions": np.array(regions), "labels": np.array(labels),
    }  # fmt: skip
    states = [[one.result.statistics[name].bins.state() for name in regions] for one in measured]
    for key in states[0][0]:
        out[key] = np.stack([np.stack([state[key] for state in case]) for case in states])
    truths = [one.result.true_bins.state() for one in measured if one.result.true_bins is not None]
    if len(truths) == len(measured):
        for key in truths[0]:
            out[f"truth_{key}"] = np.stack([state[key][None] for state in truths])
    return out


def _slices(names: Sequence[str], measured: Sequence[EvaluatedCase]) -> dict[str, Any]:
    out: dict[str, Any] = {"cases": np.array(names)}
    for index, one in enumerate(measured):
        for key, array in vars(one.picture).items():
            out[f"{key}_{index}"] = array
    return out
