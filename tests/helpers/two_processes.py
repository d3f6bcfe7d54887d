"""Metrics in two real processes: what each of them runs (`torchrun two_processes.py FOLDER`).

Rank 0 counts three images and rank 1 one; of MONAI's second round rank 1 gets nothing.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import distributed as dist

METRICS = ("ece", "cece", "ace", "mce", "signed_gap", "brier", "nll")


def sample(images: int = 4, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities (B, K, 12, 10) and labels (B, 1, 12, 10), the same wherever it is called."""
    seed = torch.Generator().manual_seed(3)
    probs = torch.randn(images, classes, 12, 10, generator=seed).mul(2).softmax(1)
    target = torch.randint(classes, (images, 1, 12, 10), generator=seed)
    followed = torch.rand(target.shape, generator=seed) < 0.6
    return probs, torch.where(followed, probs.argmax(1, keepdim=True), target)


def with_torchmetrics(mine: slice) -> dict[str, Any]:
    from segcal.integrations.torchmetrics import CalibrationMetrics

    probs, target = sample()
    metric = CalibrationMetrics(3, METRICS)
    step = metric(probs[mine], target[mine])  # forward: this batch, over all processes
    out = {name: float(value) for name, value in metric.compute().items()}
    out["step_ece"] = float(step["ece"])
    out["voxels"] = int(metric.reliability().count.sum())
    out["own_voxels"] = metric.statistics().bins.voxels  # after compute, each has its own again
    return out


def with_monai(mine: slice) -> dict[str, Any]:
    from segcal.integrations.monai import CalibrationMetric

    probs, target = sample()
    metric = CalibrationMetric(3, METRICS)
    metric(probs[mine], target[mine])
    out = {name: float(value) for name, value in metric.aggregate().items()}
    out["cases_ece"] = float(metric.aggregate("cases")["ece"])
    metric.reset()
    if dist.get_rank() == 0:
        metric(probs, target)
    out["alone_ece"] = float(metric.aggregate()["ece"])
    return out


@cache
def in_two_processes() -> list[dict[str, dict[str, Any]]]:
    """What each of two processes found, by framework; run once for all tests of a session."""
    with TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", "2", __file__, folder),
            ],
            capture_output=True,
            text=True,
            timeout=240,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in (0, 1)]


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mine = slice(0, 3) if rank == 0 else slice(3, 4)
    result = {"torchmetrics": with_torchmetrics(mine), "monai": with_monai(mine)}
    (Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    # All is written. Taking the group down now and then aborts (threads of gloo that still run),
    # which says nothing of what was counted.
    os._exit(0)
