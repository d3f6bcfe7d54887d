"""One task: train a run (or go on with it), then evaluate it. The same for every launcher."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from segcal.benchmark.plan import calibrated_name
from segcal.benchmark.run_status import evaluated, is_calibrated, is_trained, must_train, prune
from segcal.config import EvaluationConfig, TrainConfig, check_config, check_section


@dataclass(frozen=True)
class Task:
    """Plain data, so that it travels to any process.

    Args:
        run: name of the run in the tables, such as "acdc/nacl/seed0".
        folder: of the run, relative to the study.
        splits: to be evaluated once it is trained.
        config, evaluation: settings of training and evaluation, as plain content.
        posthoc: calibrators that are fitted then, each evaluated as a run of its own.
        keep: the weights that stay at the end: "all", "best" or "none".
    """

    run: str
    dataset: str
    method: str
    seed: int
    folder: str
    splits: tuple[str, ...]
    config: dict[str, Any]
    evaluation: dict[str, Any]
    posthoc: tuple[str, ...] = ()
    keep: str = "best"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        content = json.loads(text)
        lists = {key: tuple(content[key]) for key in ("splits", "posthoc")}
        return cls(**{**content, **lists})

    def calibrated(self, name: str) -> Task:
        """The run that a calibrator makes of this one: an evaluation in a folder of its own."""
        place, seed = self.folder.rsplit("/", 1)
        method = calibrated_name(self.method, name)
        return replace(
            self,
            run=f"{self.dataset}/{method}/seed{self.seed}",
            method=method,
            folder=f"{calibrated_name(place, name)}/{seed}",
            posthoc=(),
        )

    def and_calibrated(self) -> list[Task]:
        """This run and those that its calibrators make of it."""
        return [self, *map(self.calibrated, self.posthoc)]

    @property
    def settings(self) -> TrainConfig:
        return check_config(self.config, self.run)

    @property
    def evaluation_settings(self) -> EvaluationConfig:
        return check_section(EvaluationConfig, self.evaluation, self.run)


@dataclass(frozen=True)
class Result:
    """How a task ended. `error` is one line, empty if it is done.

    `unclean`: it failed in a way (memory, a GPU's error) after which its process should not go on.
    `posthoc` holds the errors of its calibrators, empty if they are done.
    """

    state: str
    error: str = ""
    seconds: float = 0.0
    unclean: bool = False
    posthoc: dict[str, str] = field(default_factory=dict)

    def of(self, calibrator: str) -> Result:
        """How the calibrated run ended."""
        if self.state != "done":
            return Result("failed", f"the run to be calibrated failed: {self.error}")
        error = self.posthoc.get(calibrator, "")
        return Result("failed" if error else "done", error)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Result:
        return cls(**json.loads(text))


def run_task(task: Task, study: Path) -> Result:
    """Do a task, whatever of it is left to do; what it says goes to the study's logs.

    An error becomes a failed result. Interrupted training raises.
    """
    with _logged(study, task):
        try:
            result = _attempt(partial(_train_and_evaluate, task, study))
            if result.state != "done":
                return result
            after = {
                name: _attempt(partial(_calibrate, task, study, name)) for name in task.posthoc
            }
            if all(one.state == "done" for one in after.values()):
                prune(task, study)
            return replace(
                result,
                posthoc={name: one.error for name, one in after.items()},
                unclean=any(one.unclean for one in after.values()),
            )
        finally:
            _forget()


def _attempt(what: Callable[[], None]) -> Result:
    from segcal.training import Interrupted, NonFiniteLossError

    started = time.monotonic()
    try:
        what()
    except Interrupted:
        raise
    except Exception as error:
        traceback.print_exc()
        expected = isinstance(error, (ValueError, NonFiniteLossError))
        took = time.monotonic() - started
        return Result("failed", _one_line(error), took, unclean=not expected)
    return Result("done", "", time.monotonic() - started)


def _train_and_evaluate(task: Task, study: Path) -> None:
    from segcal.evaluation import evaluate_run
    from segcal.training import train

    folder, config = study / task.folder, task.settings
    if is_trained(task, study):
        return
    if must_train(folder, config):
        train(config, folder, resume=True)
    for split in task.splits:
        if not evaluated(task, study, split):
            evaluate_run(
                folder, split=split, config=task.evaluation_settings, data=config.data.path,
                name=task.run, method=task.method, dataset=task.dataset, overwrite=True,
            )  # fmt: skip


def _calibrate(task: Task, study: Path, name: str) -> None:
    from segcal.evaluation import evaluate_calibrated

    after = task.calibrated(name)
    if not is_calibrated(task, study, name):
        evaluate_calibrated(
            study / task.folder, name, study / after.folder, config=task.evaluation_settings,
            data=task.settings.data.path, name=after.run, method=after.method,
            dataset=after.dataset, overwrite=True,
        )  # fmt: skip


def log_of(study: Path, task: Task) -> Path:
    return study / "logs" / f"{task.folder.removeprefix('runs/').replace('/', '_')}.log"


@contextmanager
def _logged(study: Path, task: Task) -> Iterator[None]:
    """Send everything that is said, by C libraries too, to the log of the run."""
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


def _forget() -> None:
    """Leave nothing of a run in the process: the next one is as if it were the first."""
    import gc

    torch = sys.modules.get("torch")
    if torch is None:
        return
    # Compiled code is kept per source line, and only for so many networks.
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _one_line(error: BaseException) -> str:
    from segcal.training import TrainingError

    text = " ".join(str(error).split())
    ours = isinstance(error, (ValueError, TrainingError))
    return text if ours and text else f"{type(error).__name__}: {text}"
