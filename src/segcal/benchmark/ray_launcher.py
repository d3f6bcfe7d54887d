"""The Ray launcher: tasks on a cluster whose nodes share the folder of the study."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from segcal.benchmark.local_launcher import TICK_S, Observer
from segcal.benchmark.tasks import Result, Task, run_task
from segcal.core.ray_cluster import gpu_share, ray_cluster


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
        address: see `ray_cluster`.
    """
    from segcal.training import Interrupted

    with ray_cluster(address, jobs) as ray:
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


def _fetch(ray: Any, reference: Any) -> Result:
    try:
        result: Result = ray.get(reference)
    except ray.exceptions.RayError as error:
        text = str(error).strip().splitlines() or [type(error).__name__]
        return Result("failed", f"Ray gave up ({text[0]})")
    return result


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
    return {"num_cpus": max(1, cpus // slots), **gpu_share(resources, slots)}, slots
