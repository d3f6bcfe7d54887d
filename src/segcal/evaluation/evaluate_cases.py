"""Measure predicted cases and write their evaluation: the same for runs, calibrators and audits."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError
from segcal.core.jobs import run_all
from segcal.core.provenance import git_commit, versions
from segcal.evaluation.case_metrics import PredictedCase, evaluate_predicted_case
from segcal.evaluation.measured_cases import KeptCase, Measured
from segcal.metrics import POOLED, CaseOptions, CaseResult, pool_cases
from segcal.predictions import name_file_in_errors
from segcal.study import Evaluation, EvaluationInfo, file_of_split, write_evaluation_files

T = TypeVar("T")
U = TypeVar("U")


def write_evaluation(
    cases: Iterable[PredictedCase] | Mapping[str, Callable[[], PredictedCase]],
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
    jobs: int = 1,
    kept: Mapping[str, KeptCase] | None = None,
    about: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Measure cases one after another and write cases.csv, bins.npz, slices.npz, evaluation.json.

    The arrays of a case are released once it is measured: memory grows only by its rows, its bins
    and its pictures (at most 1 MB).

    Args:
        cases: predicted cases; the next ones are drawn while earlier ones are being measured. Or a
            function that reads the case, by name.
        out: folder; created if it does not exist.
        run, method, seed, dataset: columns of the rows.
        labels: names of the classes, or of the regions of sigmoid heads; background first.
        split: "test", or the suffix of the file names.
        groups: structures of the segmentation metrics, name → labels; None is each class but 0.
        options: how the metrics are computed; None for the defaults.
        jobs: threads that measure; with functions, processes that read and measure. The result
            does not depend on it.
        kept: with functions, where each case is kept once it is measured; a later call uses it.
        about: further entries of evaluation.json.
        overwrite: whether an evaluation of this split may be replaced.
        progress: called with the number of finished cases.
    """
    started = time.monotonic()
    out = Path(out)
    if not overwrite and file_of_split(out, "evaluation.json", split).exists():
        problem = f"has an evaluation of split {split} already"
        raise PathError(out, problem, "pass --overwrite to replace it")
    structures = dict(groups or {name: (k,) for k, name in enumerate(labels) if k > 0})
    identity = {"run": run, "method": method, "seed": seed, "dataset": dataset}
    options = CaseOptions() if options is None else options
    measure = partial(evaluate_predicted_case, names=identity, groups=structures, options=options)
    names: list[str] = []
    results: list[CaseResult] = []
    slices: dict[str, Any] = {}
    report = progress or (lambda done: None)
    measured: Iterable[Measured]
    if isinstance(cases, Mapping):
        names += cases
        measured = _measure_in_processes(cases, measure, kept or {}, jobs, report)
    else:
        measured = map_in_order(measure, _checked(cases, labels, names), jobs)
    for result, picture in measured:
        slices |= {f"{key}_{len(results)}": array for key, array in picture.items()}
        results.append(result)
        if not isinstance(cases, Mapping):
            report(len(results))
    if not results:
        raise ValueError(f"Expected split {split} of {dataset} to have cases, but got none.")
    rows = [row for result in results for row in result.rows]
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
    bins = {"labels": np.array(labels), **_stack_bins(names, options.regions, results)}
    slices = {"cases": np.array(names), **slices}
    return write_evaluation_files(out, info, rows + pool_cases(results), bins, slices)


def _measure_in_processes(
    cases: Mapping[str, Callable[[], PredictedCase]],
    measure: Callable[[PredictedCase], Measured],
    kept: Mapping[str, KeptCase],
    jobs: int,
    report: Callable[[int], None],
) -> list[Measured]:
    if POOLED in cases:
        raise ValueError(f"Expected no case to be called {POOLED!r}; rename it.")
    work = {name: partial(_read_and_measure, read, measure) for name, read in cases.items()}
    work |= {name: partial(each.measure, work[name]) for name, each in kept.items()}
    return run_all(work, jobs, progress=lambda what, done, total: report(done))


def _read_and_measure(
    read: Callable[[], PredictedCase], measure: Callable[[PredictedCase], Measured]
) -> Measured:
    case = read()
    with name_file_in_errors(case.path) if case.path is not None else nullcontext():
        return measure(case)


def _checked(
    cases: Iterable[PredictedCase], labels: Sequence[str], names: list[str]
) -> Iterator[PredictedCase]:
    """Check the number of classes and the name of each case, and collect the names."""
    for case in cases:
        if len(case.probs) + bool(case.heads) != len(labels):
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
    names: Sequence[str], regions: Sequence[str], results: Sequence[CaseResult]
) -> dict[str, Any]:
    """The state of the bins, stacked over (case, region), and of the levels, over cases."""
    out: dict[str, Any] = {"cases": np.array(names), "regions": np.array(regions)}
    out |= _stack([_stack([r.statistics[name].bins.state() for name in regions]) for r in results])
    out |= _stack([result.levels.state() for result in results if result.levels is not None])
    truths = [result.true_bins.state() for result in results if result.true_bins is not None]
    if len(truths) == len(results):
        out |= {f"truth_{key}": array[:, None] for key, array in _stack(truths).items()}
    return out


def _stack(states: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    return {key: np.stack([state[key] for state in states]) for key in states[0]}
