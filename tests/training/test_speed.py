"""Speed options: compiling on any machine; bf16 and CUDA graphs on a GPU."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.runs import TINY_NET, phantom, same, settings, weights
from segcal.config import to_yaml
from segcal.training import Interrupted, TrainingError, train
from segcal.training.state import TrainingState

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return phantom(tmp_path_factory.mktemp("set") / "data", dims=2, cases=20, size=32)


@pytest.mark.slow
def test_compiling_does_not_change_the_result(data: Path, tmp_path: Path) -> None:
    """14 slices in batches of 4: the last batch of 2 and validation are not compiled."""
    results = []
    for switch in ("on", "off"):
        train(settings(data, compile=switch), tmp_path / switch)
        assert json.loads((tmp_path / switch / "run.json").read_text())["compiled"] == (
            switch == "on"
        )
        results.append(weights(tmp_path / switch / "last.pt"))
    for key in results[0]:
        torch.testing.assert_close(results[0][key], results[1][key], rtol=1e-3, atol=1e-4)


@on_gpu
@pytest.mark.slow
@pytest.mark.parametrize("loss", ["nacl", "ce_dice"])
def test_all_speed_options_together_learn(data: Path, tmp_path: Path, loss: str) -> None:
    """bf16, channels_last, CUDA graphs, fused loss and Adam, resident data, EMA and clipping."""
    config = settings(
        data, loss={"name": loss}, precision="auto", compile="on", epochs=60, validate_every=30,
        model={"options": {"filters": [16, 32, 64, 64], "pools": [2, 2, 2]}},
        optimizer={"lr": 3e-3}, ema=0.9, clip=10.0,
    )  # fmt: skip
    train(config, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert rows[-1]["losses"]["loss"] < 0.6 * rows[0]["losses"]["loss"]
    assert rows[-1]["val"]["dsc_by_label"]["1"] > 0.5


def curve(run: Path) -> list[float]:
    rows = (run / "log.jsonl").read_text().splitlines()
    return [json.loads(row)["losses"]["loss"] for row in rows]


@on_gpu
@pytest.mark.parametrize("loss", ["nacl", "ce_dice"])
def test_a_cuda_graph_does_not_change_the_result(data: Path, tmp_path: Path, loss: str) -> None:
    """With changing learning rate and penalty, clipping, EMA, dropout and an incomplete batch."""
    schedule = {"name": "linear", "options": {"start": 0.0, "end": 0.3, "epochs": 3}}
    for switch in ("on", "off"):
        config = settings(
            data, epochs=6, cuda_graph=switch, clip=1.0, ema=0.9,
            loss={"name": loss, "schedule": schedule if loss == "nacl" else None},
            optimizer={"lr": 1e-3, "milestones": [2, 4]},
            model={"name": "monai.BasicUNet", "divisible_by": 16,
                   "options": {"features": [8, 8, 8, 8, 8, 8], "dropout": 0.2}},
        )  # fmt: skip
        train(config, tmp_path / switch)
    assert curve(tmp_path / "on") == pytest.approx(curve(tmp_path / "off"), rel=1e-3)
    ours, theirs = (weights(tmp_path / switch / "last.pt") for switch in ("on", "off"))
    for key in theirs:
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-2, atol=1e-3)


class ReadsFromGPU(torch.nn.Module):
    """A network that reads a value from the GPU, after dropout."""

    def __init__(self, in_channels: int, out_channels: int, **ignored: Any) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(in_channels, out_channels, kernel_size=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        image = torch.nn.functional.dropout(image, 0.1, self.training)
        return self.conv(image) * (2.0 if image.mean().item() > 0 else 1.0)


@on_gpu
def test_a_step_that_cannot_be_captured_is_not_captured(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for switch in ("auto", "off"):
        config = settings(
            data, epochs=3, cuda_graph=switch, model={"name": f"{__name__}:ReadsFromGPU"}
        )
        train(config, tmp_path / switch)
        assert ("cannot be captured as a CUDA graph" in capfd.readouterr().err) == (
            switch == "auto"
        )
    # Where a graph is possible, the learning rate is a tensor in fp32; otherwise a number.
    torch.testing.assert_close(
        weights(tmp_path / "auto" / "last.pt"), weights(tmp_path / "off" / "last.pt")
    )
    config = settings(data, epochs=3, cuda_graph="on", model={"name": f"{__name__}:ReadsFromGPU"})
    with pytest.raises(TrainingError, match="set `cuda_graph` to auto"):
        train(config, tmp_path / "on")


@on_gpu
def test_without_memory_for_a_graph_there_is_none(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("segcal.training.cuda_graph.MEMORY_SHARE", 1e-9)
    train(settings(data, epochs=3), tmp_path / "run")
    assert "too little memory for a graph" in capfd.readouterr().err


@on_gpu
def test_a_run_started_on_a_cpu_is_resumed_on_a_gpu(data: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(to_yaml(settings(data, epochs=1)))
    command = [sys.executable, "-m", "segcal", "train", "--config", str(config)]
    without = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([*command, "--out", str(tmp_path / "run")], check=True, env=without)
    assert train(settings(data, epochs=4), tmp_path / "run", resume=True).epochs == 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_cuda_graph_needs_a_gpu(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`cuda_graph`: on needs a single process"):
        train(settings(data, cuda_graph="on"), tmp_path / "run")


@on_gpu
def test_resuming_on_a_gpu_in_fp32_is_bit_identical(data: Path, tmp_path: Path) -> None:
    config = settings(data, epochs=3, ema=0.9, model={**TINY_NET})
    train(config, tmp_path / "whole")
    place, count = TrainingState.place, iter(range(1000))

    def place_and_signal(state: TrainingState, batch: Any, step: int) -> Any:
        if next(count) == 5:
            signal.raise_signal(signal.SIGTERM)
        return place(state, batch, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingState, "place", place_and_signal)
        with suppress(Interrupted):
            train(config, tmp_path / "run")
    train(config, tmp_path / "run", resume=True)
    assert same(weights(tmp_path / "run" / "last.pt"), weights(tmp_path / "whole" / "last.pt"))


@on_gpu
def test_out_of_gpu_memory_names_the_setting_to_lower(data: Path, tmp_path: Path) -> None:
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(64 * 2**20 / total)
    try:
        with pytest.raises(TrainingError, match=r"out of memory.*`batch_size` \(4\)"):
            train(settings(data, model={"name": "unet", "options": {}}), tmp_path / "run")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
