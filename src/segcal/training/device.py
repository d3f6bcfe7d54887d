"""Device, precision, determinism and processes of a run."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from segcal.config import TrainConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def resolve(config: TrainConfig) -> TrainConfig:
    """The config with the absolute path of the data, and `precision` auto replaced by a value."""
    data = config.data.model_copy(update={"path": os.path.abspath(config.data.path)})
    accelerator = choose_accelerator(config.device)
    precision = config.precision
    if precision == "auto":
        bf16 = accelerator == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bf16-mixed" if bf16 else "32"
    if precision == "bf16-mixed" and accelerator == "mps":
        raise ValueError("`precision`: bf16-mixed is not available on mps; set it to 32")
    return config.model_copy(update={"data": data, "precision": precision})


def choose_accelerator(device: str) -> str:
    """ "cuda", "mps" or "cpu"; "auto" is the first of them that is available."""
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    available = {"cuda": cuda, "mps": mps, "cpu": True}
    if device == "auto":
        return next(name for name, usable in available.items() if usable)
    if not available[device]:
        raise ValueError(f"`device`: {device} is not available here; set it to auto or cpu")
    return device


def make_fabric(config: TrainConfig) -> Fabric:
    """Fabric for this process: the only one, or one of those that torchrun or srun started."""
    from lightning_fabric import Fabric

    per_node, nodes = processes()
    # Silence messages that repeat the config, or that recommend TF32 where precision is 32.
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    fabric = Fabric(
        accelerator=choose_accelerator(config.device),
        devices=per_node,
        num_nodes=nodes,
        strategy="ddp" if per_node * nodes > 1 else "auto",
        precision="bf16-mixed" if config.precision == "bf16-mixed" else "32-true",
    )
    fabric.launch()
    return fabric


def close_process_group() -> None:
    """Wait for the other processes of the run, then close the connections to them.

    A process that exits while gloo's threads are running is sometimes aborted.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def is_first_process() -> bool:
    """Whether this is the only process, or the first of torchrun or of a SLURM job step."""
    rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID"))
    return processes() == (1, 1) or rank == "0"


def processes() -> tuple[int, int]:
    """(processes per node, nodes), from the environment of torchrun or of a SLURM job step."""
    env = os.environ
    if "LOCAL_WORLD_SIZE" in env and "WORLD_SIZE" in env:
        local = int(env["LOCAL_WORLD_SIZE"])
        return local, int(env["WORLD_SIZE"]) // local
    # Set by srun, not by sbatch: a batch script itself is a single process.
    tasks = int(env.get("SLURM_STEP_NUM_TASKS", 1))
    if tasks > 1:
        nodes = int(env.get("SLURM_STEP_NUM_NODES", 1))
        return tasks // nodes, nodes
    return 1, 1


@contextmanager
def numerics(config: TrainConfig) -> Iterator[None]:
    """Set torch's global switches for one run, and restore them afterwards."""
    exact = config.precision == "32"
    deterministic = config.deterministic == "on" or (config.deterministic == "auto" and exact)
    if deterministic:
        # cuBLAS reads this when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        cudnn.allow_tf32 = matmul.allow_tf32 = not exact
        cudnn.benchmark = not deterministic
        if torch.cuda.is_available():  # on a CPU it would only make the start slower
            torch.use_deterministic_algorithms(deterministic, warn_only=True)
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark = before
        if torch.cuda.is_available():
            torch.use_deterministic_algorithms(was_deterministic, warn_only=warn_only)


def device_name(device: torch.device) -> str:
    """The name of the device, for users."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return "Apple GPU (mps)" if device.type == "mps" else "CPU"


def gather(fabric: Fabric, value: Any) -> list[Any]:
    """The values of all processes in rank order, in every process."""
    if fabric.world_size == 1:
        return [value]
    values: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(values, value)
    return values
