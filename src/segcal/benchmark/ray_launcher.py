"""The Ray launcher: tasks on a cluster whose nodes share the folder of the study."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from contextlib import chdir
from pathlib import Path
from typing import Any

from segcal.benchmark.local_launcher import TICK_S, Observer
from segcal.benchmark.tasks import Result, Task, run_task
from segcal.core.checks import require


def run_ray(
    tasks: Iterable[Task],
    study: Path,
    observer: Observer,
    *,
    jobs: int | None = None,
    retries: int = 1,
    address: str | None = None,
) -> None:
    """Run tasks on Ray; a task whose worker dies is retried from its last checkpoint.

    Args:
        tasks, study: the folder and the prepared sets must have the same path on every node.
        jobs: tasks at a time; by default one per GPU of the cluster, or per core. More tasks than
            GPUs share them.
        retries: how often a task is retried.
        address: of the cluster; None joins the one this machine is part of, or starts Ray here;
            "local" always starts Ray here.
    """
    from segcal.training import Interrupted

    ray: Any = require("ray")
    started_here = not ray.is_initialized()
    if started_here:
        _connect(ray, address, jobs, study)
    try:
        share, slots = _share(ray.cluster_resources(), jobs)
        # A preempted node gets SIGTERM first, which interrupts its training.
        remote = ray.remote(max_retries=retries, retry_exceptions=[Interrupted], **share)(run_task)
        waiting, running = deque(tasks), dict[Any, Task]()
        while waiting or running:
            while waiting and len(running) < slots:
                task = waiting.popleft()
                running[remote.remote(task, study)] = task
                observer.started(task)
            ready, _ = ray.wait(list(running), num_returns=1, timeout=TICK_S)
            for reference in ready:
                observer.ended(running.pop(reference), _fetch(ray, reference))
            if not ready:
                observer.tick()
    finally:
        if started_here:
            ray.shutdown()


def _fetch(ray: Any, reference: Any) -> Result:
    try:
        result: Result = ray.get(reference)
    except ray.exceptions.RayError as error:
        text = str(error).strip().splitlines() or [type(error).__name__]
        return Result("failed", f"Ray gave up ({text[0]})")
    return result


def _connect(ray: Any, address: str | None, jobs: int | None, study: Path) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address in (None, "local"):
        options["include_dashboard"] = False
    if address == "local" and jobs is not None:
        # Each task needs one CPU of Ray; a machine may run more tasks than it has cores.
        options["num_cpus"] = max(jobs, os.cpu_count() or 1)
    try:
        # Ray puts the working folder on the path of its workers, before the standard library.
        with chdir(study):
            ray.init(address=address, **options)
    except (ConnectionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"--address {address}: no Ray cluster answers there ({reason})") from error


def _share(resources: dict[str, float], jobs: int | None) -> tuple[dict[str, float], int]:
    """The resources of a task, and how many tasks run at a time.

    Example:
        >>> _share({"CPU": 16.0, "GPU": 2.0}, jobs=8)
        ({'num_cpus': 2, 'num_gpus': 0.25}, 8)
        >>> _share({"CPU": 4.0}, jobs=None)
        ({'num_cpus': 1}, 4)
    """
    cpus, gpus = int(resources.get("CPU", 1)), int(resources.get("GPU", 0))
    slots = jobs or gpus or max(cpus, 1)
    share: dict[str, float] = {"num_cpus": max(1, cpus // slots)}
    if gpus:
        share["num_gpus"] = min(1.0, gpus / slots)
    return share, slots
