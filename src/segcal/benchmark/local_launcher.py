"""Launchers: tasks in, events out as they start and end. Here: processes of this machine."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from segcal.benchmark.tasks import Result, Task

# How often idle launchers let their caller look around, and how long a worker may take to save.
TICK_S = 0.5
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Started:
    """A task is being done."""

    task: Task


@dataclass(frozen=True)
class Ended:
    """A task is done or has failed."""

    task: Task
    result: Result


@dataclass(frozen=True)
class Retried:
    """The process of a task died; the task is done again, from its last checkpoint."""

    task: Task
    reason: str


@dataclass(frozen=True)
class Tick:
    """Nothing happened."""


Event = Started | Ended | Retried | Tick


@dataclass
class _Worker:
    process: subprocess.Popen[str]
    task: Task | None = None


@dataclass
class _Local:
    """A few processes that take one task after another: torch starts once in each."""

    study: Path
    jobs: int
    gpus: list[str]
    retries: int
    workers: dict[int, _Worker] = field(default_factory=dict)
    said: queue.Queue[tuple[int, subprocess.Popen[str], str | None]] = field(
        default_factory=queue.Queue
    )

    def give(self, number: int, task: Task) -> None:
        """Hand a task to worker `number`, which is started if it is not there."""
        worker = self.workers.get(number)
        if worker is None or worker.process.poll() is not None:
            worker = self.workers[number] = self._start(number)
        assert worker.process.stdin is not None
        worker.task = task
        try:
            worker.process.stdin.write(task.to_json() + "\n")
            worker.process.stdin.flush()
        except OSError:
            pass  # It died just now: its reader says so.

    def _start(self, number: int) -> _Worker:
        process = subprocess.Popen(
            [sys.executable, "-m", "segcal.benchmark.worker", str(self.study)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=worker_environment(number, self.jobs, self.gpus),
            # Ctrl-C is for the one who asked; workers are told by it.
            start_new_session=True,
        )
        threading.Thread(target=self._listen, args=(number, process), daemon=True).start()
        return _Worker(process)

    def _listen(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.said.put((number, process, line))
        process.wait()
        self.said.put((number, process, None))

    def stop(self) -> None:
        """Ask all to save and leave; insist after a while."""
        for worker in self.workers.values():
            if worker.task is None and worker.process.stdin is not None:
                worker.process.stdin.close()
            elif worker.process.poll() is None:
                worker.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE_S
        for worker in self.workers.values():
            try:
                worker.process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()


def run_local(
    tasks: Iterable[Task], study: Path, *, jobs: int | None = None, retries: int = 1
) -> Iterator[Event]:
    """Do tasks in `jobs` processes; by default one for each GPU, or one.

    Process n gets GPU n modulo their number; without GPUs all share the cores. A process that
    dies costs its task one of `retries`; the others go on.
    """
    gpus = visible_gpus()
    local = _Local(study, jobs or max(len(gpus), 1), gpus, retries)
    waiting, tries = deque(tasks), dict[str, int]()
    try:
        while waiting or any(worker.task for worker in local.workers.values()):
            for number in range(local.jobs):
                worker = local.workers.get(number)
                if waiting and (worker is None or worker.task is None):
                    task = waiting.popleft()
                    local.give(number, task)
                    yield Started(task)
            try:
                number, process, line = local.said.get(timeout=TICK_S)
            except queue.Empty:
                yield Tick()
                continue
            worker = local.workers.get(number)
            if worker is None or worker.process is not process or worker.task is None:
                continue
            ended, worker.task = worker.task, None
            if line is not None:
                result = Result.from_json(line)
                if result.unclean:
                    del local.workers[number]  # It leaves by itself; the next task gets another.
                yield Ended(ended, result)
                continue
            reason = _how_it_died(process.returncode)
            tries[ended.run] = tries.get(ended.run, 0) + 1
            if tries[ended.run] <= retries:
                waiting.appendleft(ended)
                yield Retried(ended, reason)
            else:
                yield Ended(ended, Result("failed", reason))
    finally:
        local.stop()


def _how_it_died(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"its process was killed by {signal.Signals(-code).name}{hint}"


def worker_environment(number: int, jobs: int, gpus: list[str]) -> dict[str, str]:
    """A GPU in turn, and a fair share of the cores."""
    env = dict(os.environ)
    if gpus:
        env["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
    share = max(1, cores() // jobs)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        env.setdefault(name, str(share))
    return env


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """The GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    if not torch.cuda.is_available():
        return []
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    if told:
        return [name.strip() for name in told.split(",") if name.strip()]
    return [str(number) for number in range(torch.cuda.device_count())]
