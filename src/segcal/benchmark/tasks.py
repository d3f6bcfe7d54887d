"""One task: train a run (or continue it), evaluate it and calibrate it; used by every launcher."""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from segcal.benchmark.plan import calibrated_name
from segcal.benchmark.run_status import (
    delete_weights,
    is_calibrated,
    is_evaluated,
    is_evaluated_on,
    is_trained,
    must_train,
)
from segcal.config import EvaluationConfig, Section, TrainConfig
from segcal.metrics import DEFAULT_REGION
from segcal.study import Evaluation, read_evaluation


class Task(Section):
    """One run of a study; every process can do it.

    Attributes:
        run: name of the run in the tables, such as "acdc/nacl/seed0".
        folder: folder of the run, relative to the study.
        split: the split to evaluate after training.
        region: where the calibration of the progress line is measured.
        external: other prepared sets to evaluate then, name → folder.
        posthoc: calibrators to fit then, each evaluated as a run of its own.
        keep: the weights to keep at the end: "all", "best" or "none".
    """

    run: str
    dataset: str
    method: str
    seed: int
    folder: str
    split: str
    config: TrainConfig
    evaluation: EvaluationConfig
    region: str = DEFAULT_REGION
    external: dict[str, str] = Field(default_factory=dict)
    posthoc: tuple[str, ...] = ()
    keep: str = "best"

    def calibrated(self, name: str) -> Task:
        """The calibrated run: an evaluation in a folder of its own."""
        place, seed = self.folder.rsplit("/", 1)
        method = calibrated_name(self.method, name)
        changes = {
            "run": f"{self.dataset}/{method}/{seed}",
            "method": method,
            "folder": f"{calibrated_name(place, name)}/{seed}",
            "posthoc": (),
        }
        return self.model_copy(update=changes)

    def and_calibrated(self) -> list[Task]:
        """This run and its calibrated runs."""
        return [self, *map(self.calibrated, self.posthoc)]


@dataclass(frozen=True)
class Result:
    """How a task ended.

    Attributes:
        state: "done", "failed" or "missing".
        error: one line, empty if the task is done.
        unclean: it failed in a way (memory, an error of the GPU) that needs a new process.
        posthoc: the error of each calibrator, empty if it is done.
        scores: mean DSC and ECE of the evaluated split.
    """

    state: str
    error: str = ""
    seconds: float = 0.0
    unclean: bool = False
    posthoc: dict[str, str] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)


def run_task(task: Task, study: Path) -> Result:
    """Do what is left of a task; output goes to the logs of the study.

    An error becomes a failed result. Interrupted training raises.
    """
    with _logged(study, task):
        try:
            result = _attempt(partial(_train_and_evaluate, task, study))
            if result.state != "done":
                return result
            calibrated = {
                name: _attempt(partial(_calibrate, task, study, name)) for name in task.posthoc
            }
            if all(one.state == "done" for one in calibrated.values()):
                delete_weights(task, study)
            errors = {name: one.error for name, one in calibrated.items()}
            unclean = any(one.unclean for one in calibrated.values())
            return replace(result, posthoc=errors, unclean=unclean)
        finally:
            _free_memory()


def _attempt(function: Callable[[], dict[str, float]]) -> Result:
    from segcal.training import Interrupted, NonFiniteLossError, TrainingError

    started = time.monotonic()
    try:
        scores = function()
    except Interrupted:
        raise
    except Exception as error:
        traceback.print_exc()
        text = " ".join(str(error).split())
        if not text or not isinstance(error, (ValueError, TrainingError)):
            text = f"{type(error).__name__}: {text}"
        unclean = not isinstance(error, (ValueError, NonFiniteLossError))
        return Result("failed", text, time.monotonic() - started, unclean)
    return Result("done", "", time.monotonic() - started, scores=scores)


def _train_and_evaluate(task: Task, study: Path) -> dict[str, float]:
    from segcal.training import train

    folder = study / task.folder
    if not is_trained(task, study) and must_train(folder, task.config):
        train(task.config, folder, resume=True)
    evaluation = read_evaluation(folder, task.split) if is_evaluated(task, study) else None
    if evaluation is None:
        evaluation = _evaluate(task, study, task, split=task.split)
    _evaluate_external(task, study, task)
    means = evaluation.means(task.region)
    return {name: means[name] for name in ("dsc", "ece") if name in means}


def _calibrate(task: Task, study: Path, name: str) -> dict[str, float]:
    calibrated = task.calibrated(name)
    if not is_calibrated(task, study, name):
        out = study / calibrated.folder
        _evaluate(task, study, calibrated, calibrator=name, out=out)
    _evaluate_external(task, study, calibrated, name)
    return {}


def _evaluate_external(task: Task, study: Path, shown: Task, calibrator: str | None = None) -> None:
    """Evaluate the run of `task` on its external sets; `shown` is the run in the tables."""
    run, out = study / task.folder, study / shown.folder
    for name in [name for name in task.external if not is_evaluated_on(name, shown, study, run)]:
        other = {"data": task.external[name], "dataset": name}
        _evaluate(task, study, shown, calibrator=calibrator, out=out, **other)


def _evaluate(task: Task, study: Path, shown: Task, **options: Any) -> Evaluation:
    """Evaluate the run of `task` under the names of `shown`."""
    from segcal.evaluation import evaluate_run

    names = {"name": shown.run, "method": shown.method, "dataset": shown.dataset}
    options = {"data": task.config.data.path, **names, **options}
    return evaluate_run(
        study / task.folder, config=task.evaluation, raw=True, overwrite=True, **options
    )


def log_of(study: Path, task: Task) -> Path:
    return study / "logs" / f"{task.folder.removeprefix('runs/').replace('/', '_')}.log"


@contextmanager
def _logged(study: Path, task: Task) -> Iterator[None]:
    """Send all output, also that of C libraries, to the log of the run."""
    path = log_of(study, task)
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [(number, os.dup(number)) for number in (1, 2)]
    streams = sys.stdout, sys.stderr
    with path.open("a", encoding="utf-8", buffering=1) as log:
        for number, _ in kept:
            os.dup2(log.fileno(), number)
        sys.stdout = sys.stderr = log
        try:
            yield
        finally:
            sys.stdout, sys.stderr = streams
            for number, copy in kept:
                os.dup2(copy, number)
                os.close(copy)


def _free_memory() -> None:
    """Release what a run left in the process, so that the next one starts afresh."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    # torch keeps compiled code per source line, for a limited number of networks.
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
