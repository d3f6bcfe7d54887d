"""What of a task is done already, what is left to train, and which weights may go then."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from segcal.config import TrainConfig, changed_keys, check_config, read_yaml
from segcal.data import open_dataset
from segcal.evaluation import Evaluation, read_evaluation
from segcal.evaluation.evaluation_files import epochs_done

if TYPE_CHECKING:
    from collections.abc import Iterable

    from segcal.benchmark.tasks import Task

# The data may have moved; what "auto" meant was written down when the run began.
_MAY_DIFFER = ("data.path", "device", "cuda_graph")


def is_done(task: Task, study: Path) -> bool:
    """Whether nothing is left to do: trained, evaluated, and calibrated as it asks."""
    return is_trained(task, study) and all(
        is_calibrated(task, study, name) for name in task.posthoc
    )


def is_trained(task: Task, study: Path) -> bool:
    """Whether the run itself was trained with these settings, and evaluated."""
    try:
        there = _settings_of(study / task.folder)
    except ValueError:  # a damaged file
        return False
    if there is None or _changed(there, task.settings):
        return False
    return all(evaluated(task, study, split) for split in task.splits)


def evaluated(task: Task, study: Path, split: str) -> bool:
    """Whether the split was evaluated as the task asks, when all its epochs were trained.

    The checkpoint, if it is there, must be the one that was evaluated. If it is not, it was
    deleted since, and the evaluation stands for it.
    """
    folder = study / task.folder
    try:
        done = read_evaluation(folder, split)
        return done is not None and _fits(done, task, folder)
    except ValueError:  # a damaged file, or no run
        return False


def is_calibrated(task: Task, study: Path, name: str) -> bool:
    """Whether the run was evaluated with that calibrator, with the weights it is known by."""
    after, run = task.calibrated(name), study / task.folder
    try:
        before, done = read_evaluation(run), read_evaluation(study / after.folder)
        if before is None or done is None or not _fits(done, after, run):
            return False
    except ValueError:
        return False
    fitted = done.about.get("calibrator", {}).get("fitted_cases")
    if fitted is not None and set(fitted) != _present(task, "val")[1]:
        return False
    return bool(done.about.get("checkpoint_sha256") == before.about.get("checkpoint_sha256"))


def _fits(done: Evaluation, task: Task, run: Path) -> bool:
    """Whether an evaluation is whole, and what the task asks of the run in that folder."""
    from segcal.evaluation.finished_run import differences

    told = {"run": task.run, "method": task.method, "dataset": task.dataset, "seed": task.seed}
    fingerprint, cases = _present(task, done.split)
    return (
        done.damaged() is None
        and done.about.get("data_fingerprint") == fingerprint
        and set(done.case_names) == cases
        and not differences(done, task.evaluation_settings, told, run)
        # The log alone would not tell weights that were trained on from those evaluated before.
        and done.about.get("epochs", epochs_done(run)) == task.settings.epochs
    )


def check_before(tasks: Iterable[Task], study: Path) -> None:
    """Refuse, before anything is written, a plan that some run of the study contradicts.

    Methods are compared on the same data, trained and tested on the same cases; a run that is
    there with other settings, other data or other cases is named.
    """
    for task in tasks:
        folder, asked = study / task.folder, task.settings
        there = _settings_of(folder)
        if there is None:
            continue
        for key in _changed(there, asked):
            if key != "epochs":
                raise _other_settings(folder, key)
            must_train(folder, asked)
        _check_data(task, folder)


def _check_data(task: Task, folder: Path) -> None:
    try:
        about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        trained, seen = about["data_fingerprint"], dict(about["cases"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # It was stopped before it began, or is damaged: its training says so.
    path = task.settings.data.path
    if trained != _present(task, "test")[0]:
        raise ValueError(
            f"{folder}: was trained on other data than {path}; give its own with "
            f"--data {task.dataset}=DIR, or another --out"
        )
    test = _present(task, "test")[1]
    for part, names in seen.items():
        known = sorted(set(names) & test)
        changed = sorted(set(names) ^ _present(task, part)[1])
        if known or changed:
            what = f"used test case {known[0]} in its {part} split" if known else (
                f"differs from {path} in {part} case {changed[0]}"
            )  # fmt: skip
            raise ValueError(
                f"{folder}: {what} (the set was split anew); bring the splits back, delete the "
                "folder to train it anew, or give another --out"
            )


def _present(task: Task, split: str) -> tuple[str, frozenset[str]]:
    """The fingerprint of the task's data as they are now, and the cases of a split."""
    data = task.settings.data
    root = Path(data.path)
    stamps = tuple(
        (path.stat().st_mtime_ns, path.stat().st_size)
        for path in (root / "dataset.yaml", root / "splits.json")
        if path.is_file()
    )
    return _look_up(data.path, split, data.fold, stamps)


@lru_cache(maxsize=256)
def _look_up(
    path: str, split: str, fold: int | None, stamps: tuple[tuple[int, int], ...]
) -> tuple[str, frozenset[str]]:
    """`stamps` say when the files were changed: a study asks for the same again and again."""
    dataset = open_dataset(path)
    return dataset.fingerprint, frozenset(case.name for case in dataset.part(split, fold))


def must_train(folder: Path, asked: TrainConfig) -> bool:
    """Whether a run is to be begun or gone on with; False if it has all its epochs already.

    A run whose state was deleted is never begun anew by itself: an error says what is missing.
    """
    from segcal.training.checkpoint import LAST, PREVIOUS

    there = _settings_of(folder)
    if there is None:
        return True
    if there.epochs > asked.epochs:
        raise ValueError(
            f"{folder}: was trained for {there.epochs} epochs, not {asked.epochs}; "
            "give the old value, or another --out"
        )
    done = epochs_done(folder)
    if done == 0 or any((folder / name).exists() for name in (LAST, PREVIOUS)):
        return True
    for key in _changed(there, asked):
        if key != "epochs":
            raise _other_settings(folder, key)
    if done < asked.epochs:
        raise ValueError(
            f"{folder}: has {done} of {asked.epochs} epochs but no {LAST} to go on from; "
            f"ask for {done}, bring it back, or delete the folder to train it anew"
        )
    return False


def _other_settings(folder: Path, key: str) -> ValueError:
    return ValueError(
        f"{folder}: was started with another `{key}`; give the old value, or another --out"
    )


def _settings_of(folder: Path) -> TrainConfig | None:
    """What the run in a folder was told; None where no run is."""
    path = folder / "config.yaml"
    return check_config(read_yaml(path), str(path)) if path.is_file() else None


def _changed(there: TrainConfig, asked: TrainConfig) -> list[str]:
    free = (*_MAY_DIFFER, *(("precision",) if asked.precision == "auto" else ()))
    return [key for key in changed_keys(there, asked) if key not in free]


def prune(task: Task, study: Path, keep: str | None = None) -> None:
    """Delete the weights of a finished run that are not to be kept, by the task or by `keep`."""
    from segcal.training.checkpoint import BEST, LAST, PREVIOUS, REFUSED

    keep = keep or task.keep
    if keep == "all":
        return
    stays = {BEST, f"{task.evaluation_settings.checkpoint}.pt"} if keep == "best" else set[str]()
    for name in {BEST, LAST, PREVIOUS, REFUSED} - stays:
        (study / task.folder / name).unlink(missing_ok=True)
