"""The fast path: compiled on any machine, bf16 and CUDA graphs where there is a GPU."""

import json
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from runs import TINY_NET, phantom, same, settings, weights
from segcal.training import Interrupted, TrainingError, train
from segcal.training.job import Job

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return phantom(tmp_path_factory.mktemp("set") / "data", dims=2, cases=20, size=32)


@pytest.mark.slow
def test_compiled_is_the_same_training(data: Path, tmp_path: Path) -> None:
    """14 slices in fours: whole batches are compiled, the rest of two and validation are not."""
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
def test_the_whole_fast_path_learns(data: Path, tmp_path: Path, loss: str) -> None:
    """bf16, channels_last, CUDA graphs, fused loss and Adam, resident data, EMA and clipping."""
    config = settings(
        data, loss={"name": loss}, precision="auto", compile="on", epochs=60, validate_every=30,
        model={"options": {"filters": [16, 32, 64, 64], "pools": [2, 2, 2]}},
        optimiser={"lr": 3e-3}, ema=0.9, clip=10.0,
    )  # fmt: skip
    train(config, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert rows[-1]["losses"]["loss"] < 0.6 * rows[0]["losses"]["loss"]
    assert rows[-1]["val"]["dsc_by_label"]["1"] > 0.5


@on_gpu
def test_a_gpu_in_fp32_resumes_to_the_same_bits(data: Path, tmp_path: Path) -> None:
    config = settings(data, epochs=3, ema=0.9, model={**TINY_NET})
    train(config, tmp_path / "whole")
    place, count = Job.place, iter(range(1000))

    def place_and_signal(job: Job, batch: Any, step: int) -> Any:
        if next(count) == 5:
            signal.raise_signal(signal.SIGTERM)
        return place(job, batch, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job, "place", place_and_signal)
        with suppress(Interrupted):
            train(config, tmp_path / "run")
    train(config, tmp_path / "run", resume=True)
    assert same(weights(tmp_path / "run" / "last.pt"), weights(tmp_path / "whole" / "last.pt"))


@on_gpu
def test_out_of_gpu_memory_names_the_setting(data: Path, tmp_path: Path) -> None:
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(64 * 2**20 / total)
    try:
        with pytest.raises(TrainingError, match=r"out of memory.*`batch_size` \(4\)"):
            train(settings(data, model={"name": "unet", "options": {}}), tmp_path / "run")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
