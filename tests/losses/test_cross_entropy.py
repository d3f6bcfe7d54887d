"""Cross-entropy, focal loss and entropy penalty: by hand, and against torch and MONAI."""

import math
from typing import Any

import monai.losses
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
)
from segcal.losses import CrossEntropyLoss, FocalLoss


def entropy(p: float) -> float:
    return -p * math.log(p) - (1 - p) * math.log(1 - p)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("ce", {}, CE),
        ("focal", {}, ((1 - A0) ** 3 * CE_A + (1 - B1) ** 3 * CE_B) / 2),
        ("focal", {"gamma": 1.0}, ((1 - A0) * CE_A + (1 - B1) * CE_B) / 2),
        ("ecp", {}, CE - 0.1 * (entropy(A0) + entropy(B1)) / 4),
        ("ecp", {"class_reduction": "sum"}, CE - 0.1 * (entropy(A0) + entropy(B1)) / 2),
        ("ecp", {"penalty_weight": 0.3}, CE - 0.3 * (entropy(A0) + entropy(B1)) / 4),
    ],
)
def test_by_hand(name: str, options: dict[str, Any], expected: float) -> None:
    check_by_hand(name, options, expected)


def test_class_weights_by_hand() -> None:
    """Weights (1, 3): the mean divides by 4; the penalty does not change."""
    check_weighted("ce", {"ce": (CE_A + 3 * CE_B) / 4})
    check_weighted("ecp", {"ce": (CE_A + 3 * CE_B) / 4})
    check_weighted("focal", {"focal": ((1 - A0) ** 3 * CE_A + 3 * (1 - B1) ** 3 * CE_B) / 4})


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [("focal", "gamma", 2.0), ("ecp", "penalty_weight", 0.2), ("ecp", "class_reduction", "sum")],
)
def test_every_parameter_changes_the_result(name: str, option: str, value: Any) -> None:
    check_parameter(name, option, value)


def test_torch_soft_targets(batch: tuple[Tensor, Tensor]) -> None:
    logits, _ = batch
    soft = torch.randn_like(logits).softmax(1)
    torch.testing.assert_close(CrossEntropyLoss()(logits, soft), F.cross_entropy(logits, soft))
    weights = torch.rand(logits.shape[1], dtype=torch.float64)
    # With class weights torch divides by the number of pixels. segcal divides by the weight of the
    # targets, as both do for labels.
    pixels = soft[:, 0].numel()
    weight = (soft * weights.view(1, -1, *(1,) * (soft.ndim - 2))).sum()
    expected = F.cross_entropy(logits, soft, weights) * pixels / weight
    found = CrossEntropyLoss(class_weights=weights)(logits, soft)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 3.0])
def test_monai_focal(batch: tuple[Tensor, Tensor], gamma: float) -> None:
    logits, target = batch
    theirs = monai.losses.FocalLoss(gamma=gamma, use_softmax=True, to_onehot_y=True)
    expected = theirs(logits, target.unsqueeze(1))
    # MONAI averages over pixels and classes; the formula sums over classes.
    found = FocalLoss(gamma)(logits, target)
    torch.testing.assert_close(found, (expected * logits.shape[1]).to(found.dtype))
