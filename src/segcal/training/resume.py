"""Open the folder of a run: describe a new run in it, or restore the state of an earlier one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from segcal.config import TrainConfig
from segcal.core.errors import PathError
from segcal.data import PreparedDataset, training_space
from segcal.models import count_parameters, read_checkpoint, write_checkpoint
from segcal.study import LAST, PREVIOUS, REFUSED, RunFolder
from segcal.training.device import device_name, gather
from segcal.training.state import TrainingState


def open_run(state: TrainingState, folder: RunFolder, say: Callable[[str], None]) -> None:
    """Lock and describe the folder, and load the saved state if there is one, in all processes."""
    first = state.fabric.is_global_zero
    content: dict[str, Any] | None = None
    failure: ValueError | None = None
    if first:
        try:
            content = _lock_and_read(state, folder, say)
        except ValueError as error:
            failure = error
    # If the first process fails, all of them have to stop.
    failure, content = gather(state.fabric, (failure, content))[0]
    if failure is not None:
        raise failure
    if content is not None:
        try:
            state.load_state_dict(content)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise PathError(folder.path, f"its state does not fit ({reason})") from error
    if first:
        folder.trim_log(state.epoch)
        if content is None:
            save_last(state, folder)


def save_last(state: TrainingState, folder: RunFolder) -> None:
    """Write last.pt; the old one becomes last.prev.pt. One of them exists at every moment."""
    if state.fabric.is_global_zero:
        content = {"run_id": folder.run_id, **state.state_dict()}
        write_checkpoint(folder.path / LAST, content, keep=folder.path / PREVIOUS)


def case_names(dataset: PreparedDataset, config: TrainConfig) -> dict[str, list[str]]:
    """The training and validation cases."""
    fold = config.data.fold
    return {part: [case.name for case in dataset.part(part, fold)] for part in ("train", "val")}


def _lock_and_read(
    state: TrainingState, folder: RunFolder, say: Callable[[str], None]
) -> dict[str, Any] | None:
    """The saved state, or None for a new run."""
    config, dataset = state.config, state.dataset
    cases = case_names(dataset, config)
    folder.hold()
    # Check again: another process may have used the folder before this one got the lock.
    folder.check(config, dataset.fingerprint, cases)
    trained = dataset.part("train", config.data.fold)
    about = {
        "dataset": dataset.info.name,
        "data_fingerprint": dataset.fingerprint,
        # For evaluation and prediction where the data are not at hand.
        "data": dataset.info.model_dump(mode="json", exclude={"cases", "skipped"}),
        "space": training_space(case.grid for case in trained),
        "cases": cases,
        # To recognize these scans under any name.
        "voxels_sha256": {
            part: {name: dataset[name].properties.voxels_sha256 for name in names}
            for part, names in cases.items()
        },
        "loss": repr(state.loss),
        "parameters": count_parameters(state.network),
        "compiled": state.compiled,
        "device": device_name(state.fabric.device),
        "processes": state.fabric.world_size,
    }
    folder.describe(config, about)
    return _read_last(folder.path, folder.run_id, say)


def _read_last(folder: Path, run_id: str, say: Callable[[str], None]) -> dict[str, Any] | None:
    """The newest valid state, or None if none was ever written.

    If last.pt is damaged or belongs to another run, last.prev.pt is used, and last.pt is renamed,
    so that the next save does not replace the valid file by it.
    """
    problems = []
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            content = read_checkpoint(path)
            if content.get("run_id") != run_id:
                raise PathError(path, "belongs to another run")
        except PathError as error:
            problems.append(error)
            continue
        for problem in problems:
            os.replace(problem.path, folder / REFUSED)
            say(f"{problem}; renamed to {REFUSED}, resuming from {name}")
        say(f"resuming {path} after {content['epoch']} epochs")
        return content
    if problems:
        raise problems[0]
    return None
