"""Runs that learn to segment: 2-D slices with the U-Net, 3-D patches with MONAI."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.runs import phantom, settings
from segcal.models import load_model
from segcal.training import train


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def test_slices_are_learned(tmp_path: Path) -> None:
    data = phantom(tmp_path / "data", dims=2, cases=40, size=48)
    config = settings(
        data,
        model={"options": {"filters": [8, 16, 32, 64], "pools": [2, 2, 2]}},
        loss={"name": "nacl", "dice_weight": 1.0},
        optimizer={"lr": 5e-3, "milestones": [40]},
        epochs=50,
        validate_every=25,
    )
    result = train(config, tmp_path / "run")
    log = rows(tmp_path / "run")
    assert [row["epoch"] for row in log if "val" in row] == [24, 49]
    assert log[-1]["losses"]["loss"] < 0.5 * log[0]["losses"]["loss"]
    parts = log[-1]["losses"]
    assert set(parts) == {"loss", "ce", "penalty", "dice"}
    assert parts["loss"] == pytest.approx(parts["ce"] + parts["penalty"] + parts["dice"])
    # Liver, spleen and kidneys; a lesion of a few pixels needs a longer run.
    organs = [log[-1]["val"]["dsc_by_label"][label] for label in "123"]
    assert sum(organs) / 3 > 0.75
    assert log[-1]["val"]["ece"] < 0.2
    assert result.best_dsc == max(row["val"]["dsc"] for row in log if "val" in row)
    selected = [number for number, row in enumerate(log, start=1) if row.get("selected")]
    assert result.best_epoch == selected[-1]
    assert [row["lr"] for row in log] == pytest.approx([5e-3] * 40 + [5e-4] * 10)


def test_patches_are_learned_with_monai(tmp_path: Path) -> None:
    data = phantom(tmp_path / "data", dims=3, cases=10, size=32, slices=8)
    config = settings(
        data,
        data={"mode": "3d", "patch_size": [8, 32, 32], "per_case": 4},
        model={
            "name": "monai.BasicUNet",
            "options": {"features": [8, 8, 16, 16, 32, 8]},
            "divisible_by": 16,
        },
        loss={"name": "ce_dice"},
        optimizer={"lr": 5e-3, "milestones": [12]},
        epochs=14,
        validate_every=7,
    )
    result = train(config, tmp_path / "run")
    val = rows(tmp_path / "run")[-1]["val"]
    assert sum(val["dsc_by_label"][label] for label in "123") / 3 > 0.7
    model = load_model(tmp_path / "run" / "best.pt")
    assert model(torch.zeros(1, 1, 8, 32, 32)).shape == (1, 5, 8, 32, 32)
    assert result.epochs == 14
