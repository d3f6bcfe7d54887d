"""Every loss worked by hand on two pixels (2-D) and two voxels (3-D)."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from segcal.losses import LOSSES, DiceLoss, NACLLoss, make_loss

# Pixel A: logits (2, 0), label 0. Pixel B, to its right: logits (0, 1), label 1.
A0 = math.exp(2) / (math.exp(2) + 1)
B1 = math.e / (1 + math.e)
CE_A, CE_B = -math.log(A0), -math.log(B1)
CE = (CE_A + CE_B) / 2


def entropy(p: float) -> float:
    return -p * math.log(p) - (1 - p) * math.log(1 - p)


def svls_value(sigma: float, corners: int) -> float:
    """Own label ½. Replicated in the other axes, B fills the right third of A's patch."""
    a = math.exp(-1 / (2 * sigma**2))
    if corners == 2:  # 3×3: the right column is one edge and two corners
        other = 0.5 * (a + 2 * a**2) / (4 * a + 4 * a**2)
    else:  # 3×3×3: one face, four edges, four corners of 6, 12 and 8
        other = 0.5 * (a + 4 * a**2 + 4 * a**3) / (6 * a + 12 * a**2 + 8 * a**3)
    loss_a = -(1 - other) * math.log(A0) - other * math.log(1 - A0)
    loss_b = -(1 - other) * math.log(B1) - other * math.log(1 - B1)
    return (loss_a + loss_b) / 2


def dice_value(eps: float = 1e-5) -> float:
    class_0 = (2 * A0 + eps) / (A0 + (1 - B1) + 1 + eps)
    class_1 = (2 * B1 + eps) / ((1 - A0) + B1 + 1 + eps)
    return 1 - (class_0 + class_1) / 2


def case(dim: int) -> tuple[Tensor, Tensor]:
    shape = (1,) * (dim - 1) + (2,)
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64).view(1, 2, *shape)
    return logits, torch.tensor([0, 1]).view(1, *shape)


# The prior of class 1 is ⅓ at A and ⅔ at B; |τ − l| is 4/3 + 1/3 at A and 1/3 + 1/3 at B.
HAND: list[tuple[str, dict[str, Any], float]] = [
    ("ce", {}, CE),
    ("ce_dice", {}, CE + dice_value()),
    ("ce_dice", {"dice_weight": 0.5, "smooth": 1.0}, CE + 0.5 * dice_value(1.0)),
    ("focal", {}, ((1 - A0) ** 3 * CE_A + (1 - B1) ** 3 * CE_B) / 2),
    ("focal", {"gamma": 1.0}, ((1 - A0) * CE_A + (1 - B1) * CE_B) / 2),
    ("ecp", {}, CE - 0.1 * (entropy(A0) + entropy(B1)) / 4),
    ("ecp", {"class_reduction": "sum"}, CE - 0.1 * (entropy(A0) + entropy(B1)) / 2),
    ("ecp", {"penalty_weight": 0.3}, CE - 0.3 * (entropy(A0) + entropy(B1)) / 4),
    ("ls", {}, 0.95 * CE + 0.05 * (-math.log(1 - A0) - math.log(1 - B1)) / 2),
    ("ls", {"alpha": 0.3}, 0.85 * CE + 0.15 * (-math.log(1 - A0) - math.log(1 - B1)) / 2),
    ("mbls", {}, CE),
    ("mbls", {"margin": 0.5}, CE + 0.1 * (1.5 + 0.5) / 4),
    ("mbls", {"margin": 0.5, "class_reduction": "sum"}, CE + 0.1 * (1.5 + 0.5) / 2),
    ("mbls", {"margin": 1.0, "penalty_weight": 0.2}, CE + 0.2 * (1.0 + 0.0) / 4),
    ("nacl", {}, CE + 0.1 * (5 / 3 + 2 / 3) / 4),
    ("nacl", {"penalty_weight": 0.5}, CE + 0.5 * (5 / 3 + 2 / 3) / 4),
    ("nacl", {"class_reduction": "sum"}, CE + 0.1 * (5 / 3 + 2 / 3) / 2),
    ("nacl", {"penalty": "l2"}, CE + 0.1 * (16 / 9 + 1 / 9 + 1 / 9 + 1 / 9) / 4),
    ("nacl", {"border": "valid"}, CE + 0.1 * (1.5 + 0.5 + 0.5 + 0.5) / 4),
    ("nacl", {"patch_size": 1}, CE + 0.1 * (1 + 0 + 0 + 0) / 4),
    ("nacl", {"patch_size": 5}, CE + 0.1 * (1.4 + 0.4 + 0.4 + 0.4) / 4),
    (
        "nacl",
        {"constrain": "softmax"},
        CE + 0.1 * (2 * abs(2 / 3 - A0) + 2 * abs(2 / 3 - B1)) / 4,
    ),
    ("nacl", {"prior": "max"}, CE + 0.1 * (2 + 1 + 0 + 0) / 4),
    ("nacl", {"prior": "min"}, CE + 0.1 * (1 + 0 + 1 + 1) / 4),
    ("nacl", {"prior": "median"}, CE + 0.1 * (1 + 0 + 0 + 0) / 4),
    ("nacl", {"prior": "mode"}, CE + 0.1 * (1 + 0 + 0 + 0) / 4),
]


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize(("name", "options", "expected"), HAND)
def test_by_hand(name: str, options: dict[str, Any], expected: float, dim: int) -> None:
    logits, target = case(dim)
    assert make_loss(name, **options)(logits, target).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("dim", "corners"), [(2, 2), (3, 4)])
def test_svls_by_hand(dim: int, corners: int, sigma: float) -> None:
    loss = make_loss("svls", sigma=sigma)(*case(dim))
    assert loss.item() == pytest.approx(svls_value(sigma, corners), rel=1e-12)


def test_background_border_by_hand() -> None:
    """Eight of nine pixels are class 0 around A and around B in 2-D; 26 of 27 voxels in 3-D."""
    for dim, ninth in ((2, 1 / 9), (3, 1 / 27)):
        loss = NACLLoss(border="background")(*case(dim))
        gaps = (2 - (1 - ninth)) + ninth + (1 - ninth) + (1 - ninth)
        assert loss.item() == pytest.approx(CE + 0.1 * gaps / 4, rel=1e-12)


def test_gaussian_prior_of_nacl_by_hand() -> None:
    a = math.exp(-1 / (2 * 0.8**2))
    other = 0.5 * (a + 2 * a**2) / (4 * a + 4 * a**2)
    gaps = (2 - (1 - other)) + other + other + (1 - (1 - other))
    loss = NACLLoss(prior="gaussian", sigma=0.8)(*case(2))
    assert loss.item() == pytest.approx(CE + 0.1 * gaps / 4, rel=1e-12)


def test_ignored_pixel_leaves_loss_and_neighbours() -> None:
    """With B ignored, A's patch holds A alone: τ = (1, 0), and only A is averaged."""
    logits, target = case(2)
    target[0, 0, 1] = -100
    assert NACLLoss()(logits, target).item() == pytest.approx(CE_A + 0.1 * (1 + 0) / 2)
    assert make_loss("svls")(logits, target).item() == pytest.approx(CE_A)
    dice = 1 - ((2 * A0 + 1e-5) / (A0 + 1 + 1e-5) + 1e-5 / (1 - A0 + 1e-5)) / 2
    assert DiceLoss()(logits, target).item() == pytest.approx(dice)


@pytest.mark.parametrize("name", LOSSES)
def test_class_weights_by_hand(name: str) -> None:
    """Weights (1, 3): the cross-entropy part is (1·CE_A + 3·CE_B) / 4; penalties stay."""
    logits, target = case(2)
    plain = {key: value.item() for key, value in make_loss(name).terms(logits, target).items()}
    found = make_loss(name, class_weights=[1.0, 3.0]).terms(logits, target)
    weighted = {key: value.item() for key, value in found.items()}
    if "ce" in plain:
        assert weighted["ce"] == pytest.approx((CE_A + 3 * CE_B) / 4)
        assert {k: v for k, v in weighted.items() if k != "ce"} == pytest.approx(
            {k: v for k, v in plain.items() if k != "ce"}
        )
    elif name == "focal":
        expected = ((1 - A0) ** 3 * CE_A + 3 * (1 - B1) ** 3 * CE_B) / 4
        assert weighted["focal"] == pytest.approx(expected)
    elif name == "ls":
        smooth_a = 0.05 * (CE_A - 3 * math.log(1 - A0))
        smooth_b = 0.05 * (3 * CE_B - math.log(1 - B1))
        expected = (0.9 * CE_A + smooth_a + 2.7 * CE_B + smooth_b) / 4
        assert weighted["ls"] == pytest.approx(expected)
    else:
        a = math.exp(-1 / 8)
        o = 0.5 * (a + 2 * a**2) / (4 * a + 4 * a**2)
        loss_a = (1 - o) * CE_A - 3 * o * math.log(1 - A0)
        loss_b = 3 * (1 - o) * CE_B - o * math.log(1 - B1)
        assert weighted["svls"] == pytest.approx((loss_a + loss_b) / 4)


@pytest.mark.parametrize("name", LOSSES)
def test_reductions(name: str) -> None:
    logits, target = case(2)
    per_pixel = make_loss(name, reduction="none")(logits, target)
    assert per_pixel.shape == target.shape
    mean = make_loss(name, reduction="mean")(logits, target)
    torch.testing.assert_close(per_pixel.mean(), mean)
    total = make_loss(name, reduction="sum").terms(logits, target)
    if name == "ce_dice":  # Dice is summed over images, not pixels
        assert total["dice"].item() == pytest.approx(dice_value())
    else:
        torch.testing.assert_close(torch.stack(list(total.values())).sum(), per_pixel.sum())
