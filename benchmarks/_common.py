"""What every benchmark needs: where it ran, how long it took, and a file that says so."""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from segcal.core.provenance import git_commit

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    "segcal", "torch", "triton", "numpy", "scipy", "monai", "MedPy", "torchmetrics", "blosc2",
    "nnunetv2", "nibabel", "netcal", "rankseg", "scikit-learn",
)  # fmt: skip


def environment() -> dict[str, Any]:
    """Device, versions and commit: what a reader needs to judge a number."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "commit": git_commit() or "unknown",
        "date": time.strftime("%Y-%m-%d"),
    }


def time_once(run: Callable[[], object], device: str = "cpu") -> float:
    """Seconds of one run; on a GPU between two events."""
    if device == "cpu":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    run()
    after.record()
    torch.cuda.synchronize()
    return 1e-3 * before.elapsed_time(after)


def time_median(
    run: Callable[[], object], repeats: int = 7, warmup: int = 1, device: str = "cpu"
) -> dict[str, float]:
    """Median and quartiles of `repeats` runs in seconds, after `warmup` untimed ones."""
    for _ in range(warmup):
        run()
    return summary([time_once(run, device) for _ in range(repeats)])


def summary(seconds: list[float]) -> dict[str, float]:
    """Median and quartiles of times."""
    low, middle, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
    return {"median_s": middle, "q1_s": low, "q3_s": high}


def write_results(path: Path, payload: dict[str, Any]) -> None:
    """Write JSON whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_text(json.dumps(payload, indent=1) + "\n")
    draft.replace(path)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "CPU")


def _version(package: str) -> str | None:
    """Of what is installed, or of what was imported from a folder."""
    try:
        return version(package)
    except PackageNotFoundError:
        return getattr(sys.modules.get(package), "__version__", None)
