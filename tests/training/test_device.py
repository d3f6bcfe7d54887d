"""The choice of the device and what follows from it; Apple's GPU is only simulated."""

from pathlib import Path

import pytest
import torch

from helpers.runs import settings
from segcal.training.device import choose_accelerator, device_name, processes, resolve


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> object:
    """Make devices available or not."""

    def make(*, cuda: bool, mps: bool) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return make


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_is_cuda_then_mps_then_cpu(devices, cuda: bool, mps: bool, expected: str) -> None:  # type: ignore[no-untyped-def]
    devices(cuda=cuda, mps=mps)
    assert choose_accelerator("auto") == expected
    assert choose_accelerator("cpu") == "cpu"
    for device, available in (("cuda", cuda), ("mps", mps)):
        if available:
            assert choose_accelerator(device) == device
        else:
            with pytest.raises(ValueError, match=f"`device`: {device} is not available"):
                choose_accelerator(device)


def test_precision_follows_the_device(devices) -> None:  # type: ignore[no-untyped-def]
    devices(cuda=True, mps=True)
    data = Path("x")
    assert resolve(settings(data, precision="auto")).precision == "bf16-mixed"
    assert resolve(settings(data, precision="auto", device="mps")).precision == "32"
    assert resolve(settings(data, precision="auto", device="cpu")).precision == "32"
    with pytest.raises(ValueError, match="bf16-mixed is not available on mps"):
        resolve(settings(data, precision="bf16-mixed", device="mps"))


def test_devices_have_names() -> None:
    assert device_name(torch.device("cpu")) == "CPU"
    assert "mps" in device_name(torch.device("mps"))


def test_processes_are_read_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes() == (1, 1)
    monkeypatch.setenv("SLURM_NTASKS", "8")  # a batch script, not yet a job step
    assert processes() == (1, 1)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "2")
    assert processes() == (4, 2)
    monkeypatch.setenv("WORLD_SIZE", "6")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert processes() == (3, 2)
