"""State that validation updates: its numbers, its effect in training, and resuming."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.runs import phantom, same, settings, weights
from segcal.losses import NACLLoss
from segcal.models import read_checkpoint
from segcal.training import ErrorDriven, ValidationCallback, train
from segcal.training.callbacks import Observations, start_callbacks

LOSSES: dict[str, dict[str, Any]] = {
    "crac": {"name": "crac"},
    "error_driven": {
        "name": "nacl",
        "schedule": {"name": "error_driven", "options": {"rate": 0.5}},
    },
}


def batch() -> tuple[Tensor, Tensor]:
    logits, target = 3 * torch.randn(2, 3, 9, 8), torch.randint(3, (2, 9, 8))
    target[0, :2] = -100
    return logits, target


def test_the_weights_follow_the_gap_of_each_stratum() -> None:
    logits, target = batch()
    loss = NACLLoss(0.1)
    schedule = ErrorDriven(start=0.2, rate=0.5, distances=(1,))
    (callback,) = start_callbacks(loss, schedule, num_classes=3)
    assert isinstance(callback, ValidationCallback)
    strata = schedule.strata.index(logits)
    confidence, predicted = logits.softmax(1).max(1)
    expected = []
    for stratum in range(6):
        here = (strata == stratum) & (target != -100)
        gap = confidence[here].mean() - (predicted == target)[here].float().mean()
        expected.append(0.2 + 0.5 * gap.item() if here.any() else 0.2)
    observed = Observations([callback])
    for one in range(2):  # additive over batches; two processes, one without cases
        observed.add(logits[one : one + 1], target[one : one + 1])
    observed.update(lambda sums: [sums, [None]])
    assert loss.strata is not None
    assert loss.strata.weights.tolist() == pytest.approx([max(0.0, x) for x in expected], rel=1e-5)
    assert schedule(7) == pytest.approx(sum(loss.strata.weights.tolist()) / 6)


def test_the_fixed_point_is_a_gap_of_zero_and_weights_are_not_negative() -> None:
    schedule = ErrorDriven(start=0.1, rate=1.0)
    start_callbacks(NACLLoss(), schedule, num_classes=2)
    # 10 pixels each: confidence 8, and 8, 9 or 5 correct ones; the rest does not occur.
    total = torch.tensor([[10.0] * 3 + [0] * 3, [8.0] * 3 + [0] * 3, [8.0, 9.0, 5.0, 0, 0, 0]])
    schedule.update(total)
    assert schedule.strata.weights.tolist() == pytest.approx([0.1, 0.0, 0.4, 0.1, 0.1, 0.1])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return phantom(tmp_path_factory.mktemp("set") / "data", dims=2, cases=10, size=32)


@pytest.mark.parametrize("name", LOSSES)
def test_a_resumed_run_has_the_same_state(data: Path, tmp_path: Path, name: str) -> None:
    config = settings(data, loss=LOSSES[name], epochs=3)
    train(config, tmp_path / "whole")
    train(config, tmp_path / "parts", epochs=1)
    first = read_checkpoint(tmp_path / "parts" / "last.pt")["callbacks"]
    train(config, tmp_path / "parts", resume=True)
    whole, parts = (read_checkpoint(tmp_path / run / "last.pt") for run in ("whole", "parts"))
    assert same(whole["callbacks"][0], parts["callbacks"][0])
    assert not same(whole["callbacks"][0], first[0])
    assert same(weights(tmp_path / "whole" / "last.pt"), weights(tmp_path / "parts" / "last.pt"))


def test_volumes_are_observed_in_the_dimension_of_the_network(tmp_path: Path) -> None:
    data = phantom(tmp_path / "data", dims=3, cases=10, size=32, slices=8)
    section = {"path": str(data), "mode": "3d", "patch_size": [8, 32, 32], "per_case": 1}
    config = settings(data, data=section, loss=LOSSES["error_driven"], epochs=1)
    train(config, tmp_path / "run")
    (state,) = read_checkpoint(tmp_path / "run" / "last.pt")["callbacks"]
    assert state["weights"].numel() % 3 == 0
    assert (state["weights"] != 0.1).any()


def test_a_schedule_needs_a_penalty(data: Path, tmp_path: Path) -> None:
    loss = {"name": "ce", "schedule": {"name": "error_driven"}}
    with pytest.raises(ValueError, match="penalty weight"):
        train(settings(data, loss=loss), tmp_path / "run")
