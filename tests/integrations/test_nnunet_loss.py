"""The loss of the nnU-Net trainers, without nnU-Net: labels, ignored labels and regions."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from segcal.integrations.nnunet import TRAINERS, trainer_folder
from segcal.integrations.nnunet.loss import CalibratedLoss, parse_options, pixel_loss
from segcal.losses import LOSSES, CrossEntropyLoss, make_loss

# Options that make each loss cross-entropy.
PLAIN: dict[str, dict[str, Any]] = {
    "nacl": {"penalty_weight": 0.0},
    "svls": {"patch_size": 1},
    "mbls": {"penalty_weight": 0.0},
    "ls": {"alpha": 0.0},
    "ecp": {"penalty_weight": 0.0},
    "focal": {"gamma": 0.0},
}
ON_REGIONS: dict[str, dict[str, Any]] = {name: {} for name in PLAIN} | {
    "nacl": {"constrain": "softmax"},
    "mbls": {"margin": 1.0},
}


class SumDice(nn.Module):
    """Called as nnU-Net's Dice: easy to compute by hand, and it stores its arguments."""

    def forward(self, logits: Tensor, target: Tensor, loss_mask: Tensor | None = None) -> Tensor:
        self.target, self.mask = target, loss_mask
        return -logits.sum() * 1e-3


def loss_for(
    name: str,
    options: dict[str, Any],
    *,
    ignore: int | None = None,
    regions: bool = False,
    weight: float = 1.0,
) -> CalibratedLoss:
    pixel = pixel_loss(name, options, ignore_label=ignore, regions=regions)
    return CalibratedLoss(
        pixel, SumDice(), dice_weight=weight, ignore_label=ignore, regions=regions
    )


def batch(classes: int = 3, high: int | None = None) -> tuple[Tensor, Tensor]:
    logits = torch.randn(2, classes, 6, 6, 4, requires_grad=True)
    target = torch.randint(high or classes, (2, 1, 6, 6, 4)).short()  # as nnU-Net's are
    return logits, target


@pytest.mark.parametrize("name", PLAIN)
def test_labels(name: str) -> None:
    logits, target = batch()
    plain = loss_for(name, PLAIN[name], weight=0)(logits, target)
    expected = nn.functional.cross_entropy(logits, target[:, 0].long())
    torch.testing.assert_close(plain, expected)
    own = loss_for(name, {}, weight=0)(logits, target)
    torch.testing.assert_close(own, make_loss(name)(logits, target))
    assert not torch.isclose(own, expected)
    both = loss_for(name, {}, weight=0.5)(logits, target)
    torch.testing.assert_close(both, own - 0.5e-3 * logits.sum())
    both.backward()
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("name", PLAIN)
def test_ignored_voxels_are_skipped(name: str) -> None:
    logits, target = batch(high=4)
    loss = loss_for(name, {}, ignore=3)
    loss(logits, target).backward()
    dice = loss.dc
    assert isinstance(dice, SumDice)
    assert torch.equal(dice.mask, target != 3)
    assert int(dice.target.max()) == 2
    away = (target == 3).expand_as(logits)
    assert torch.allclose(logits.grad[away], torch.tensor(-1e-3))  # of the Dice of this test alone
    assert not torch.allclose(logits.grad[~away], torch.tensor(-1e-3))
    empty = torch.full_like(target, 3)
    assert loss_for(name, {}, ignore=3, weight=0)(logits, empty).item() == 0


def region_batch(ignore: bool) -> tuple[Tensor, Tensor]:
    logits = torch.randn(2, 3, 6, 6, 4, requires_grad=True)
    whole = torch.rand(2, 1, 6, 6, 4) < 0.6
    core = whole & (torch.rand(whole.shape) < 0.5)
    tip = core & (torch.rand(whole.shape) < 0.5)
    marked = [torch.rand(whole.shape) < 0.2] if ignore else []
    return logits, torch.cat([whole, core, tip, *marked], 1)


@pytest.mark.parametrize("ignore", [None, 9])
@pytest.mark.parametrize("name", ON_REGIONS)
def test_each_region_is_a_sigmoid(name: str, ignore: int | None) -> None:
    logits, target = region_batch(ignore is not None)
    plain = loss_for(name, PLAIN[name] | ON_REGIONS[name], ignore=ignore, regions=True, weight=0)
    each = nn.functional.binary_cross_entropy_with_logits(
        logits, target[:, :3].float(), reduction="none"
    )
    counts = torch.ones_like(each) if ignore is None else (~target[:, 3:]).expand_as(each).float()
    expected = (each * counts).sum() / counts.sum()
    torch.testing.assert_close(plain(logits, target), expected)
    loss = loss_for(name, ON_REGIONS[name], ignore=ignore, regions=True)
    value = loss(logits, target)
    assert not torch.isclose(value + 1e-3 * logits.sum(), expected)
    value.backward()
    assert torch.isfinite(logits.grad).all()
    dice = loss.dc
    assert isinstance(dice, SumDice)
    assert dice.target.shape == logits.shape
    assert (dice.mask is None) == (ignore is None)


def test_neighbors_come_from_the_same_image_and_region() -> None:
    """SVLS of one head of one image does not change with the other heads and images."""
    logits, target = region_batch(False)
    loss = loss_for("svls", {}, regions=True, weight=0)
    alone = [loss(logits[b : b + 1, r : r + 1], target[b : b + 1, r : r + 1])
             for b in range(2) for r in range(3)]  # fmt: skip
    torch.testing.assert_close(loss(logits, target), torch.stack(alone).mean())


def test_nacl_on_the_logits_of_regions_is_rejected_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"constrain=softmax"):
        pixel_loss("nacl", {}, ignore_label=None, regions=True)


def test_compiled_in_one_graph() -> None:
    logits, target = batch(high=4)
    loss = loss_for("nacl", {}, ignore=3)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits, target), loss(logits, target))


def test_half_precision_logits() -> None:
    logits, target = batch()
    half = loss_for("nacl", {}, weight=0)(logits.half(), target)
    torch.testing.assert_close(half, loss_for("nacl", {}, weight=0)(logits.half().float(), target))
    assert half.dtype == torch.float32


def test_options_from_the_environment() -> None:
    assert parse_options("") == {}
    assert parse_options(" gamma=2  border=valid ") == {"gamma": 2, "border": "valid"}
    for wrong in ("gamma", "gamma=", "=2"):
        with pytest.raises(ValueError, match="SEGCAL_NNUNET_OPTIONS"):
            parse_options(wrong)
    with pytest.raises(ValueError, match="Did you mean 'penalty_weight'"):
        pixel_loss("nacl", {"penalty_wight": 1}, ignore_label=None, regions=False)


def test_the_command_prints_the_folder_of_trainers() -> None:
    def output(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "segcal", "nnunet", "trainers", *arguments],
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        return done.stdout

    assert output() == f"{trainer_folder()}\n"
    assert [file.name for file in trainer_folder().glob("*.py")] == ["segcal_nnunet_trainers.py"]
    assert [line.split()[0] for line in output("--list").splitlines()] == list(TRAINERS)
    assert {text.split()[0] for text in TRAINERS.values()} <= set(LOSSES)


def test_two_classes_equal_a_sigmoid() -> None:
    """The pair (0, l) is the sigmoid of l: cross-entropy is binary cross-entropy."""
    logits = torch.randn(1, 1, 4, 4)
    pairs = torch.cat([torch.zeros_like(logits), logits], 1)
    target = torch.ones(1, 4, 4, dtype=torch.int64)
    expected = nn.functional.binary_cross_entropy_with_logits(logits, torch.ones_like(logits))
    torch.testing.assert_close(CrossEntropyLoss()(pairs, target), expected)
