"""What every benchmark needs: where it ran, medians, and a file that is written whole."""

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def environment(*packages: str) -> dict[str, Any]:
    """Device, versions and commit, to be kept beside the numbers."""
    found = {"python": platform.python_version()}
    for package in ("torch", "numpy", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "versions": found,
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def time_median(
    run: Callable[[], object], repeats: int = 9, warmup: int = 2, device: str = "cpu"
) -> dict[str, float]:
    """Median and spread (quartiles) of `run` in milliseconds."""
    for _ in range(warmup):
        run()
    times = [time_once(run, device) for _ in range(repeats)]
    low, middle, high = statistics.quantiles(times, n=4)
    return {"median_ms": middle, "low_ms": low, "high_ms": high}


def write_results(path: Path, payload: dict[str, Any]) -> None:
    """Write JSON whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".tmp")
    half.write_text(json.dumps(payload, indent=1) + "\n")
    half.replace(path)


def time_once(run: Callable[[], object], device: str) -> float:
    """Milliseconds of one run; on a GPU between two events."""
    if device == "cpu":
        start = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - start)
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    run()
    after.record()
    torch.cuda.synchronize()
    return before.elapsed_time(after)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "unknown")


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    return done.stdout.strip() or os.environ.get("SEGCAL_COMMIT", "unknown")
