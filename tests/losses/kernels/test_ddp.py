"""The fused losses with DistributedDataParallel: two real processes, gradients averaged."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels need Triton")

WORKER = """
import os, sys, torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from segcal.losses import NACLLoss

distributed.init_process_group("gloo")
rank = distributed.get_rank()
device = "cuda" if torch.cuda.is_available() else "cpu"
grads = {}
for fused in (True, False):
    torch.manual_seed(0)
    network = DistributedDataParallel(nn.Conv2d(1, 3, 3, padding=1).to(device))
    torch.manual_seed(1 + rank)  # each process has its own images
    image = torch.randn(2, 1, 8, 10).to(device)
    target = torch.randint(3, (2, 8, 10)).to(device)
    NACLLoss(fused=fused)(network(image), target).backward()
    grads[fused] = [p.grad.cpu() for p in network.parameters()]
torch.save((image.cpu(), grads), sys.argv[1] + f"/{rank}.pt")
distributed.destroy_process_group()
"""


def test_two_processes_average_the_gradient_of_the_kernels(tmp_path: Path) -> None:
    import torch

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    workers = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in range(2)
    ]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
    results = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    assert not torch.equal(results[0][0], results[1][0])
    for _, grads in results:
        for fused, plain, other in zip(grads[True], grads[False], results[0][1][True], strict=True):
            torch.testing.assert_close(fused, plain)
            assert torch.equal(fused, other)
