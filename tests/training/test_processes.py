"""Two processes (torchrun) give the result of one."""

import json
from pathlib import Path

import torch

from helpers.runs import finish, phantom, settings, start, weights
from segcal.config import to_yaml
from segcal.models import read_checkpoint
from segcal.training import train

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def test_two_processes_give_the_result_of_one(tmp_path: Path) -> None:
    # 14 of 20 cases are for training: batches of 4, 4, 4 and 2, so no slice is used twice.
    data = phantom(tmp_path / "data", dims=2, cases=20, size=32)
    config = settings(
        data,
        loss={"dice_weight": 1.0, "dice_form": "proper", "schedule": {"name": "error_driven"}},
        augment=[{"name": "RandGaussianNoised", "options": {"prob": 0.5}}],
    )
    (tmp_path / "c.yaml").write_text(to_yaml(config))
    out = tmp_path / "two"
    process = start("train", "--config", tmp_path / "c.yaml", "--out", out, launcher=TORCHRUN)
    train(config, tmp_path / "one")
    code, output = finish(process)
    assert code == 0, output
    assert json.loads((out / "run.json").read_text())["processes"] == 2
    one, two = weights(tmp_path / "one" / "last.pt"), weights(out / "last.pt")
    start_of = weights(tmp_path / "one" / "last.prev.pt")
    assert not all(torch.equal(one[key], start_of[key]) for key in one)
    for key in one:
        torch.testing.assert_close(two[key], one[key], rtol=1e-3, atol=1e-5)
    states = [read_checkpoint(run / "last.pt")["callbacks"][0] for run in (tmp_path / "one", out)]
    torch.testing.assert_close(*states, rtol=1e-3, atol=1e-5)
    logs = [(run / "log.jsonl").read_text().splitlines() for run in (tmp_path / "one", out)]
    for mine, theirs in zip(*logs, strict=True):
        first, second = json.loads(mine), json.loads(theirs)
        for name, value in first["losses"].items():
            assert abs(second["losses"][name] - value) < 1e-4
        assert abs(second["val"]["dsc"] - first["val"]["dsc"]) < 1e-3
        assert second["val"]["cases"] == first["val"]["cases"]
    # An odd batch size cannot be divided by two.
    config = settings(data, batch_size=5)
    (tmp_path / "c.yaml").write_text(to_yaml(config))
    refused = start(
        "train", "--config", tmp_path / "c.yaml", "--out", tmp_path / "x", launcher=TORCHRUN
    )
    code, output = finish(refused)
    assert code != 0
    assert "`batch_size` to be divisible by the 2 processes" in output
    assert not (tmp_path / "x").exists()
