"""Where and how exactly a run computes: processes, device, precision, determinism."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning_fabric import Fabric

from segcal.config import TrainConfig


def resolve(config: TrainConfig) -> TrainConfig:
    """The config with the whole path of the data, and what precision "auto" means here."""
    data = config.data.model_copy(update={"path": os.path.abspath(config.data.path)})
    config = config.model_copy(update={"data": data})
    if config.precision != "auto":
        return config
    half = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return config.model_copy(update={"precision": "bf16-mixed" if half else "32"})


def make_fabric(config: TrainConfig) -> Fabric:
    """Fabric for this process: alone, or one of those that torchrun or srun started."""
    per_node, nodes = processes()
    # It tells what the config says already, and about tensor cores that precision 32 is not to use.
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    fabric = Fabric(
        accelerator="cuda" if torch.cuda.is_available() else "cpu",
        devices=per_node,
        num_nodes=nodes,
        strategy="ddp" if per_node * nodes > 1 else "auto",
        precision="bf16-mixed" if config.precision == "bf16-mixed" else "32-true",
    )
    fabric.launch()
    return fabric


def processes() -> tuple[int, int]:
    """(processes on each node, nodes), from the variables of torchrun or of a SLURM job step."""
    env = os.environ
    if "LOCAL_WORLD_SIZE" in env and "WORLD_SIZE" in env:
        local = int(env["LOCAL_WORLD_SIZE"])
        return local, int(env["WORLD_SIZE"]) // local
    # Set by srun, not by sbatch: a batch script that starts one process is one process.
    tasks = int(env.get("SLURM_STEP_NUM_TASKS", 1))
    if tasks > 1:
        nodes = int(env.get("SLURM_STEP_NUM_NODES", 1))
        return tasks // nodes, nodes
    return 1, 1


@contextmanager
def numerics(config: TrainConfig) -> Iterator[None]:
    """Set torch's global switches for one run, and put them back."""
    exact = config.precision == "32"
    deterministic = config.deterministic == "on" or (config.deterministic == "auto" and exact)
    if deterministic:
        # cuBLAS reads this when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before: list[tuple[Any, str, Any]] = [
        (owner, name, getattr(owner, name))
        for owner, name in (
            (cudnn, "allow_tf32"), (matmul, "allow_tf32"), (cudnn, "benchmark"),
        )
    ]  # fmt: skip
    was = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        cudnn.allow_tf32 = matmul.allow_tf32 = not exact
        cudnn.benchmark = not deterministic
        if torch.cuda.is_available():  # on a CPU nothing would change but the time to start
            torch.use_deterministic_algorithms(deterministic, warn_only=True)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
        if torch.cuda.is_available():
            torch.use_deterministic_algorithms(was, warn_only=warned)


def describe(fabric: Fabric) -> dict[str, Any]:
    """The device in words, and how many processes share the work."""
    name = torch.cuda.get_device_name(fabric.device) if fabric.device.type == "cuda" else "CPU"
    return {"device": name, "processes": fabric.world_size}


def gather(fabric: Fabric, mine: Any) -> list[Any]:
    """What every process has, in rank order, to every process."""
    if fabric.world_size == 1:
        return [mine]
    everyone: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(everyone, mine)
    return everyone
