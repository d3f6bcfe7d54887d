"""How far a task is: trained, evaluated, calibrated; and which weights can be deleted then."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from segcal.config import TrainConfig, changed_values
from segcal.core.errors import PathError
from segcal.data import open_dataset
from segcal.study import (
    BEST,
    EXTERNAL,
    LAST,
    PREVIOUS,
    REFUSED,
    Evaluation,
    check_same_data,
    check_same_settings,
    epochs_done,
    free_to_change,
    read_evaluation,
    read_run_config,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from segcal.benchmark.tasks import Task


def is_done(task: Task, study: Path) -> bool:
    """Whether nothing is left to do: trained, evaluated on all sets, calibrated as requested."""
    return (
        is_trained(task, study)
        and all(is_calibrated(task, study, name) for name in task.posthoc)
        and all(
            is_evaluated_on(name, one, study, study / task.folder)
            for one in task.and_calibrated()
            for name in task.external
        )
    )


def is_trained(task: Task, study: Path) -> bool:
    """Whether the run itself was trained with these settings, and evaluated."""
    try:
        existing = read_run_config(study / task.folder)
    except ValueError:  # a damaged file
        return False
    ignored = free_to_change(task.config) - {"epochs"}
    if existing is None or set(changed_values(existing, task.config)) - ignored:
        return False
    return is_evaluated(task, study)


def is_evaluated(task: Task, study: Path) -> bool:
    """Whether the run was evaluated as requested, after all epochs, with its present weights."""
    folder = study / task.folder
    try:
        existing = read_evaluation(folder, task.split)
        return existing is not None and _is_current(existing, task, folder)
    except ValueError:  # a damaged file, or no run
        return False


def is_evaluated_on(external: str, task: Task, study: Path, run: Path) -> bool:
    """Whether a task (of the run in folder `run`) was evaluated on an external set.

    The weights and the calibrator must be those of its own evaluation.
    """
    folder = study / task.folder
    try:
        own, found = read_evaluation(folder), read_evaluation(folder / EXTERNAL / external)
        return (
            own is not None
            and found is not None
            and found.info.checkpoint_sha256 == own.info.checkpoint_sha256
            and _params(found) == _params(own)
            and _is_current(found, task, run, external)
        )
    except ValueError:
        return False


def _params(evaluation: Evaluation) -> object:
    return (evaluation.info.calibrator or {}).get("params")


def is_calibrated(task: Task, study: Path, name: str) -> bool:
    """Whether the run was evaluated with that calibrator, fitted to its present weights."""
    calibrated, run = task.calibrated(name), study / task.folder
    try:
        before, after = read_evaluation(run), read_evaluation(study / calibrated.folder)
        if before is None or after is None or not _is_current(after, calibrated, run):
            return False
    except ValueError:
        return False
    fitted = (after.info.calibrator or {}).get("fitted_cases", ())
    return (
        set(fitted) == _present(task, "val")[1]
        and after.info.checkpoint_sha256 == before.info.checkpoint_sha256
    )


def _is_current(existing: Evaluation, task: Task, run: Path, external: str = "") -> bool:
    """Whether an evaluation is complete, and what the task requests of the run in that folder.

    `external` names an external set, of which all cases are evaluated.
    """
    from segcal.evaluation import differences

    names = {"run": task.run, "method": task.method, "dataset": task.dataset, "seed": task.seed}
    fingerprint, cases = _present(task, existing.split)
    if external:
        names["dataset"] = external
        fingerprint, cases = _read_now(task.external[external], "all", None)
    return (
        existing.damaged() is None
        and existing.info.data_fingerprint == fingerprint
        and set(existing.info.case_names) == cases
        and existing.info.epochs == task.config.epochs
        and not differences(existing, task.evaluation, names, run)
    )


def check_existing_runs(tasks: Iterable[Task], study: Path) -> None:
    """Refuse, before anything is written, a run that has other settings, data or cases."""
    for task in tasks:
        folder = study / task.folder
        if read_run_config(folder) is not None:
            must_train(folder, task.config)
            fingerprint = _present(task, "test")[0]
            cases = {part: _present(task, part)[1] for part in ("train", "val")}
            check_same_data(folder, task.config, fingerprint, cases)


def _present(task: Task, split: str) -> tuple[str, frozenset[str]]:
    """The fingerprint of the task's data as they are now, and the cases of a split."""
    return _read_now(task.config.data.path, split, task.config.data.fold)


def _read_now(folder: str, split: str, fold: int | None) -> tuple[str, frozenset[str]]:
    files = [Path(folder) / name for name in ("dataset.yaml", "splits.json")]
    stats = [path.stat() for path in files if path.is_file()]
    stamps = tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)
    return _read_split(folder, split, fold, stamps)


@lru_cache(maxsize=256)
def _read_split(
    path: str, split: str, fold: int | None, stamps: tuple[tuple[int, int], ...]
) -> tuple[str, frozenset[str]]:
    """`stamps` are the times and sizes of the files: after a change they are read again."""
    dataset = open_dataset(path)
    return dataset.fingerprint, frozenset(case.name for case in dataset.part(split, fold))


def must_train(folder: Path, requested: TrainConfig) -> bool:
    """Whether a run has to be started or continued; False if it has all its epochs.

    A run whose state was deleted is not started again; an error names what is missing.
    """
    if read_run_config(folder) is None:
        return True
    check_same_settings(folder, requested)
    done = epochs_done(folder)
    if done == 0 or any((folder / name).exists() for name in (LAST, PREVIOUS)):
        return True
    if done < requested.epochs:
        problem = f"has {done} of {requested.epochs} epochs but no {LAST} to continue from"
        remedy = f"request {done} epochs, restore {LAST}, or delete the folder to train it again"
        raise PathError(folder, problem, remedy)
    return False


def delete_weights(task: Task, study: Path, keep: str | None = None) -> None:
    """Delete the weights of a finished run except those to keep ("all", "best" or "none")."""
    keep = keep or task.keep
    if keep == "all":
        return
    kept = {BEST, f"{task.evaluation.checkpoint}.pt"} if keep == "best" else set()
    for name in {BEST, LAST, PREVIOUS, REFUSED} - kept:
        (study / task.folder / name).unlink(missing_ok=True)
