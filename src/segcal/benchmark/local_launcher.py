"""The local launcher: tasks in processes of this machine; and the events that launchers yield."""

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

# How often a launcher without news yields a Tick, and how long a worker may take to save.
TICK_S = 0.5
_STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Started:
    """A task has started."""

    task: Task


@dataclass(frozen=True)
class Ended:
    """A task is done or has failed."""

    task: Task
    result: Result


@dataclass(frozen=True)
class Retried:
    """The process of a task died; the task is retried from its last checkpoint."""

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
class _Workers:
    """Processes that do one task after another: torch is imported once in each.

    `messages` holds (number, process, line of output); the line is None when the process ended.
    """

    study: Path
    jobs: int
    gpus: list[str]
    running: dict[int, _Worker] = field(default_factory=dict)
    messages: queue.Queue[tuple[int, subprocess.Popen[str], str | None]] = field(
        default_factory=queue.Queue
    )

    def assign(self, number: int, task: Task) -> None:
        """Send a task to worker `number`, which is started if it does not run."""
        worker = self.running.get(number)
        if worker is None or worker.process.poll() is not None:
            worker = self.running[number] = self._start(number)
        assert worker.process.stdin is not None
        worker.task = task
        try:
            worker.process.stdin.write(task.to_json() + "\n")
            worker.process.stdin.flush()
        except OSError:
            pass  # It died just now: `_listen` reports it.

    def _start(self, number: int) -> _Worker:
        # A new session (on Windows: group) keeps Ctrl-C away from workers; `stop` stops them.
        new_group = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
        process = subprocess.Popen(
            [sys.executable, "-m", "segcal.benchmark.worker", str(self.study), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=worker_environment(number, self.jobs, self.gpus),
            start_new_session=True,
            creationflags=new_group,
        )
        threading.Thread(target=self._listen, args=(number, process), daemon=True).start()
        return _Worker(process)

    def _listen(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.messages.put((number, process, line))
        process.wait()
        self.messages.put((number, process, None))

    def stop(self) -> None:
        """Ask all workers to save and end; kill those that do not within a minute."""
        for worker in self.running.values():
            if worker.task is None and worker.process.stdin is not None:
                worker.process.stdin.close()
            elif worker.process.poll() is None:
                worker.process.terminate()
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for worker in self.running.values():
            try:
                worker.process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()


def run_local(
    tasks: Iterable[Task], study: Path, *, jobs: int | None = None, retries: int = 1
) -> Iterator[Event]:
    """Run tasks in `jobs` processes; by default one per GPU, or one.

    Process n gets GPU n modulo their number; without GPUs all share the cores. If a process dies,
    its task is retried up to `retries` times; the other tasks continue.
    """
    gpus = visible_gpus()
    workers = _Workers(study, jobs or max(len(gpus), 1), gpus)
    waiting, failures = deque(tasks), dict[str, int]()
    try:
        while waiting or any(worker.task for worker in workers.running.values()):
            for number in range(workers.jobs):
                worker = workers.running.get(number)
                if waiting and (worker is None or worker.task is None):
                    task = waiting.popleft()
                    workers.assign(number, task)
                    yield Started(task)
            try:
                number, process, line = workers.messages.get(timeout=TICK_S)
            except queue.Empty:
                yield Tick()
                continue
            worker = workers.running.get(number)
            if worker is None or worker.process is not process or worker.task is None:
                continue
            ended, worker.task = worker.task, None
            if line is not None:
                result = Result.from_json(line)
                if result.unclean:
                    del workers.running[number]  # It ends by itself; the next task gets another.
                yield Ended(ended, result)
                continue
            reason = _cause_of_death(process.returncode)
            failures[ended.run] = failures.get(ended.run, 0) + 1
            if failures[ended.run] <= retries:
                waiting.appendleft(ended)
                yield Retried(ended, reason)
            else:
                yield Ended(ended, Result("failed", reason))
    finally:
        workers.stop()


def _cause_of_death(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"its process was killed by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}"


def worker_environment(number: int, jobs: int, gpus: list[str]) -> dict[str, str]:
    """One of the GPUs, and an equal share of the cores."""
    env = dict(os.environ)
    if gpus:
        env["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
    share = max(1, cores() // jobs)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        env.setdefault(name, str(share))
    return env


def cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as in CUDA_VISIBLE_DEVICES."""
    import torch

    if not torch.cuda.is_available():
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return [name.strip() for name in visible.split(",") if name.strip()]
    return [str(number) for number in range(torch.cuda.device_count())]
