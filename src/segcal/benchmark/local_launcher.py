"""The local launcher: tasks in processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from segcal.benchmark.tasks import Result, Task
from segcal.core.processes import child_command

# How often a launcher without news calls `tick`, and how long a worker may take to save.
TICK_S = 0.5
_STOP_TIMEOUT_S = 60.0


class Observer(Protocol):
    """What a launcher calls when something happens to a task."""

    def started(self, task: Task) -> None: ...
    def ended(self, task: Task, result: Result) -> None: ...
    def retried(self, task: Task, reason: str) -> None: ...
    def tick(self) -> None: ...


class _Worker:
    """A process that does one task after another: torch is imported once in each."""

    def __init__(self, study: Path, environment: dict[str, str]) -> None:
        self.study, self.environment = study, environment
        self.process: subprocess.Popen[str] | None = None
        self.busy = False

    def start(self) -> None:
        """Start the process if it does not run; in the main thread, with which it is to end."""
        if self.process is not None and self.process.poll() is None:
            return
        # A new session (on Windows: group) keeps Ctrl-C away from workers; `stop` stops them.
        self.process = subprocess.Popen(
            child_command("segcal.benchmark.worker", str(self.study)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=self.environment,
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )

    def run(self, task: Task) -> Result | str:
        """The result of a task, or why the process died."""
        process = self.process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):  # It died just now: there is no line to read.
            process.stdin.write(json.dumps(task.model_dump(mode="json")) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            return _cause_of_death(process.wait())
        result = Result(**json.loads(line))
        if result.unclean:
            process.kill()
            process.wait()
        return result


def _stop(workers: list[_Worker]) -> None:
    """Ask all workers to save and end; kill those that do not within a minute."""
    running = [(w, w.process) for w in workers if w.process is not None]
    for worker, process in running:
        if worker.busy:
            process.terminate()
        elif process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    try:
        for _, process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0.1))
    finally:
        for _, process in running:
            process.kill()
            process.wait()


def run_local(
    tasks: Iterable[Task],
    study: Path,
    observer: Observer,
    *,
    jobs: int | None = None,
    retries: int = 1,
) -> None:
    """Run tasks in `jobs` processes; by default one per GPU, or one.

    Process n gets GPU n modulo their number; without GPUs all share the cores. If a process dies,
    its task is retried up to `retries` times; the other tasks continue.
    """
    gpus = visible_gpus()
    jobs = jobs or max(len(gpus), 1)
    workers = [_Worker(study, worker_environment(n, jobs, gpus)) for n in range(jobs)]
    waiting, failures = deque(tasks), dict[str, int]()
    running: dict[Future[Result | str], tuple[_Worker, Task]] = {}
    with ThreadPoolExecutor(jobs) as threads:
        try:
            while waiting or running:
                for worker in workers:
                    if waiting and not worker.busy:
                        task = waiting.popleft()
                        worker.start()
                        worker.busy = True
                        running[threads.submit(worker.run, task)] = worker, task
                        observer.started(task)
                ended, _ = wait(running, TICK_S, FIRST_COMPLETED)
                for future in ended:
                    worker, task = running.pop(future)
                    worker.busy = False
                    outcome = future.result()
                    if isinstance(outcome, Result):
                        observer.ended(task, outcome)
                        continue
                    failures[task.run] = failures.get(task.run, 0) + 1
                    if failures[task.run] <= retries:
                        waiting.appendleft(task)
                        observer.retried(task, outcome)
                    else:
                        observer.ended(task, Result("failed", outcome))
                if not ended:
                    observer.tick()
        finally:
            _stop(workers)


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
