"""Small prepared sets, and `segcal train` as a real process."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from segcal.config import TrainConfig, check_config
from segcal.data import PhantomSource, prepare

SRC = Path(__file__).parents[2] / "src"
TINY_NET: dict[str, Any] = {"options": {"filters": [4, 8], "pools": [2]}}


def phantom(folder: Path, **spec: int) -> Path:
    """Prepare a phantom set below `folder`, in this process."""
    prepare(PhantomSource(**spec), folder, dtype="uint8", workers=1)
    return folder


def settings(data: Path, /, **changes: Any) -> TrainConfig:
    """A config with a tiny network, for four slices at a time."""
    base: dict[str, Any] = {
        "data": {"path": str(data)},
        "model": TINY_NET,
        "batch_size": 4,
        "epochs": 2,
        "precision": "32",
    }
    for section, content in changes.items():
        merge = isinstance(content, dict) and isinstance(base.get(section), dict)
        base[section] = {**base[section], **content} if merge else content
    return check_config(base)


def environment() -> dict[str, str]:
    """One thread each: the two cores of a small machine are shared, and sums keep their order."""
    return {
        **os.environ,
        "PYTHONPATH": f"{SRC}{os.pathsep}{SRC.parent / 'tests'}",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def start(*arguments: object, launcher: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
    """`segcal …` as a process of its own."""
    command = [sys.executable, *launcher, "-m", "segcal", *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: "subprocess.Popen[str]", timeout_s: float = 240) -> tuple[int, str]:
    """(exit code, everything it printed)."""
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out + err


def weights(path: Path) -> dict[str, torch.Tensor]:
    content = torch.load(path, weights_only=True)
    found: dict[str, torch.Tensor] = content["model"]
    return found


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Equal to the last bit."""
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
