"""Label smoothing and SVLS: by hand, in their limits, and against torch and the paper."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.loss_samples import (
    A0,
    B1,
    CE,
    CE_A,
    CE_B,
    check_by_hand,
    check_parameter,
    check_weighted,
    two_pixels,
)
from segcal.losses import (
    CrossEntropyLoss,
    LabelSmoothingLoss,
    SVLSLoss,
    make_loss,
    neighborhood_prior,
)


def neighbor_share(sigma: float, corners: int) -> float:
    """The share of the other label. Replicated in the other axes, B fills a third of A's patch."""
    a = math.exp(-1 / (2 * sigma**2))
    if corners == 2:  # 3×3: the right column is one edge and two corners
        return 0.5 * (a + 2 * a**2) / (4 * a + 4 * a**2)
    # 3×3×3: one face, four edges, four corners of 6, 12 and 8
    return 0.5 * (a + 4 * a**2 + 4 * a**3) / (6 * a + 12 * a**2 + 8 * a**3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 0.95 * CE + 0.05 * (-math.log(1 - A0) - math.log(1 - B1)) / 2),
        ({"alpha": 0.3}, 0.85 * CE + 0.15 * (-math.log(1 - A0) - math.log(1 - B1)) / 2),
    ],
)
def test_label_smoothing_by_hand(options: dict[str, Any], expected: float) -> None:
    check_by_hand("ls", options, expected)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("dim", "corners"), [(2, 2), (3, 4)])
def test_svls_by_hand(dim: int, corners: int, sigma: float) -> None:
    other = neighbor_share(sigma, corners)
    loss_a = -(1 - other) * math.log(A0) - other * math.log(1 - A0)
    loss_b = -(1 - other) * math.log(B1) - other * math.log(1 - B1)
    loss = make_loss("svls", sigma=sigma)(*two_pixels(dim))
    assert loss.item() == pytest.approx((loss_a + loss_b) / 2, rel=1e-12)


def test_class_weights_by_hand() -> None:
    """Weights (1, 3); the mean divides by 4."""
    smooth_a = 0.05 * (CE_A - 3 * math.log(1 - A0))
    smooth_b = 0.05 * (3 * CE_B - math.log(1 - B1))
    check_weighted("ls", {"ls": (0.9 * CE_A + smooth_a + 2.7 * CE_B + smooth_b) / 4})
    other = neighbor_share(2.0, 2)
    loss_a = (1 - other) * CE_A - 3 * other * math.log(1 - A0)
    loss_b = 3 * (1 - other) * CE_B - other * math.log(1 - B1)
    check_weighted("svls", {"svls": (loss_a + loss_b) / 4})


def test_ignored_neighbors_do_not_soften_the_label() -> None:
    logits, target = two_pixels(2)
    target[0, 0, 1] = -100
    assert make_loss("svls")(logits, target).item() == pytest.approx(CE_A)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("ls", "alpha", 0.2),
        ("svls", "sigma", 1.0),
        ("svls", "patch_size", 5),
        ("svls", "border", "valid"),
    ],
)
def test_every_parameter_changes_the_result(name: str, option: str, value: Any) -> None:
    check_parameter(name, option, value)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.3, 1.0])
def test_torch_label_smoothing_and_cross_entropy(
    batch: tuple[Tensor, Tensor], alpha: float, weighted: bool, reduction: Any
) -> None:
    logits, target = batch
    target[:, :2] = -100
    weights = torch.rand(logits.shape[1], dtype=torch.float64) if weighted else None
    expected = F.cross_entropy(logits, target, weights, label_smoothing=alpha, reduction=reduction)
    found = LabelSmoothingLoss(alpha, class_weights=weights, reduction=reduction)(logits, target)
    # Class weights are stored in float32.
    torch.testing.assert_close(found, expected, rtol=1e-6 if weighted else 1e-12, atol=0)
    if alpha == 0:
        found = CrossEntropyLoss(class_weights=weights, reduction=reduction)(logits, target)
        torch.testing.assert_close(found, expected, rtol=1e-6 if weighted else 1e-12, atol=0)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_paper_identity_of_svls(batch: tuple[Tensor, Tensor], sigma: float) -> None:
    """Eq. 5: SVLS = CE + KL(τ'‖s) up to constants, so twice its gradient is that of the two.

    τ' is the share of the neighbors without the center; SVLS gives ½ to each.
    """
    logits, target = batch
    logits.requires_grad_()
    classes = logits.shape[1]
    (svls_grad,) = torch.autograd.grad(SVLSLoss(sigma=sigma)(logits, target), logits)

    own = F.one_hot(target, classes).movedim(-1, 1)
    tau = neighborhood_prior(target, classes, "gaussian", sigma=sigma, dtype=logits.dtype)
    neighbors = (2 * tau - own).clamp_min(0)
    kl = (torch.xlogy(neighbors, neighbors) - neighbors * logits.log_softmax(1)).sum(1).mean()
    (two_grad,) = torch.autograd.grad(F.cross_entropy(logits, target) + kl, logits)
    torch.testing.assert_close(2 * svls_grad, two_grad, rtol=1e-9, atol=1e-12)
