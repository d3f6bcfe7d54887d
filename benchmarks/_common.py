"""What every benchmark needs: where it ran, how long it took, and a file that says so."""

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


def environment() -> dict[str, Any]:
    """Device, versions and commit."""
    import torch

    root = Path(__file__).parent
    git = ["git", "-C", str(root)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "status", "--porcelain", "src"], capture_output=True, text=True)
    versions = {}
    for name in ("segcal", "torch", "numpy", "scipy", "blosc2", "nibabel", "monai"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if cuda else _cpu_name(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "commit": commit.stdout.strip() + ("+changes" if changed.stdout.strip() else ""),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "CPU")


def time_median(fn: Callable[[], object], repeats: int, warmup: int = 1) -> dict[str, float]:
    """Median and quartiles of `repeats` timed calls, in seconds."""
    for _ in range(warmup):
        fn()
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        fn()
        taken.append(time.perf_counter() - begin)
    quartiles = statistics.quantiles(taken, n=4) if repeats > 1 else [taken[0]] * 3
    return {"median_s": statistics.median(taken), "q1_s": quartiles[0], "q3_s": quartiles[2]}


def write_results(path: Path, payload: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(payload, indent=1) + "\n")
    partial.replace(path)
