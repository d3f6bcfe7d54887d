"""The connection to a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, chdir, contextmanager
from typing import Any

from segcal.core.checks import require
from segcal.core.files import scratch_folder


@contextmanager
def ray_cluster(address: str | None = None, jobs: int | None = None) -> Iterator[Any]:
    """The module `ray`, connected; a connection that is made here is closed in the end.

    Args:
        address: of the cluster; None joins the one this machine is part of, or starts Ray here;
            "local" always starts Ray here.
        jobs: tasks at a time, of one CPU each; for "local".
    """
    ray: Any = require("ray")
    with ExitStack() as stack:
        if not ray.is_initialized():
            # Ray puts the working folder on the path of its workers, before the standard library.
            folder = stack.enter_context(scratch_folder())
            stack.callback(ray.shutdown)
            with chdir(folder):
                _connect(ray, address, jobs)
        yield ray


def gpu_share(resources: Mapping[str, float], jobs: int) -> dict[str, float]:
    """The resources of one of `jobs` tasks that share the GPUs of a cluster.

    Example:
        >>> gpu_share({"CPU": 16.0, "GPU": 2.0}, jobs=8)
        {'num_gpus': 0.25}
        >>> gpu_share({"CPU": 4.0}, jobs=8)
        {}
    """
    gpus = int(resources.get("GPU", 0))
    return {"num_gpus": min(1.0, gpus / jobs)} if gpus else {}


def _connect(ray: Any, address: str | None, jobs: int | None) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address in (None, "local"):
        options["include_dashboard"] = False
    if address == "local" and jobs is not None:
        # Each task needs one CPU of Ray; a machine may run more tasks than it has cores.
        options["num_cpus"] = max(jobs, os.cpu_count() or 1)
    try:
        ray.init(address=address, **options)
    except (ConnectionError, ValueError) as error:
        reason = " ".join(str(error).split())
        problem = f"--address {address}: no Ray cluster answers there ({reason})"
        raise ValueError(problem) from error
