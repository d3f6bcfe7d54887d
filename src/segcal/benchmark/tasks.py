"""One task: train a run (or go on with it), then evaluate it. The same for every launcher."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from segcal.benchmark.done import evaluated, is_done, must_train, prune
from segcal.config import EvaluationConfig, TrainConfig, check_config, check_section


@dataclass(frozen=True)
class Task:
    """Plain data, so that it travels to any process.

    Args:
        run: name of the run in the tables, such as "acdc/nacl/seed0".
        folder: of the run, relative to the study.
        splits: to be evaluated once it is trained.
        config, evaluation: settings of training and evaluation, as plain content.
        keep: the weights that stay then: "all", "best" or "none".
    """

    run: str
    dataset: str
    method: str
    seed: int
    folder: str
    splits: tuple[str, ...]
    config: dict[str, Any]
    evaluation: dict[str, Any]
    keep: str = "best"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        content = json.loads(text)
        return cls(**{**content, "splits": tuple(content["splits"])})

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
    """

    state: str
    error: str = ""
    seconds: float = 0.0
    unclean: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Result:
        return cls(**json.loads(text))


def run_task(task: Task, study: Path) -> Result:
    """Do a task, whatever of it is left to do; what it says goes to the study's logs.

    An error becomes a failed result. Interrupted training raises.
    """
    from segcal.training import Interrupted, NonFiniteLossError

    started = time.monotonic()
    with _logged(study, task):
        try:
            _train_and_evaluate(task, study)
        except Interrupted:
            raise
        except Exception as error:
            traceback.print_exc()
            expected = isinstance(error, (ValueError, NonFiniteLossError))
            took = time.monotonic() - started
            return Result("failed", _one_line(error), took, unclean=not expected)
        finally:
            _forget()
    return Result("done", "", time.monotonic() - started)


def _train_and_evaluate(task: Task, study: Path) -> None:
    from segcal.evaluation import evaluate_run
    from segcal.training import train

    folder, config = study / task.folder, task.settings
    if not is_done(task, study):
        if must_train(folder, config):
            train(config, folder, resume=True)
        for split in task.splits:
            if not evaluated(task, study, split):
                evaluate_run(
                    folder, split=split, config=task.evaluation_settings, data=config.data.path,
                    name=task.run, method=task.method, dataset=task.dataset, overwrite=True,
                )  # fmt: skip
    prune(task, study)


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
