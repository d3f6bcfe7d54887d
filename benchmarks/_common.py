"""What every benchmark needs: where it ran, how long it took, and a file that says so."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any


def environment(packages: Sequence[str] = ("numpy", "torch")) -> dict[str, Any]:
    """CPU or GPU name, cores, versions and commit: what a reader needs to judge a number."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "gpu": gpu,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
        "commit": _commit(),
    }


def time_median(fn: Callable[[], object], repeats: int = 7, warmup: int = 1) -> dict[str, float]:
    """Median, minimum and maximum wall time of `fn` in seconds, after `warmup` runs.

    On CUDA, `fn` has to synchronise itself.
    """
    for _ in range(warmup):
        fn()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        fn()
        times.append(time.perf_counter() - start)
    return {"median_s": median(times), "min_s": min(times), "max_s": max(times)}


def write_results(path: Path, payload: dict[str, Any]) -> None:
    """Write JSON whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_text(json.dumps(payload, indent=2) + "\n")
    draft.replace(path)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    here = Path(__file__).parent
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True
    )
    return done.stdout.strip() or None
