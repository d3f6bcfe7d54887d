"""Inputs for the tests of the losses: random batches, and two pixels computed by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from segcal.losses import make_loss

NAMES = [
    "ce", "ce_dice", "ce_squared_dice", "ce_proper_dice", "focal", "ecp", "ls", "svls", "mbls",
    "nacl",
]  # fmt: skip
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in NAMES),
    ("ce_squared_dice", {"over": "batch"}),
    ("ce_proper_dice", {"over": "batch", "smooth": 1.0}),
    ("focal", {"gamma": 0.5}),
    ("mbls", {"margin": 0.5}),
    ("nacl", {"penalty": "l2"}),
    ("nacl", {"constrain": "softmax"}),
    ("nacl", {"prior": "gaussian", "border": "valid"}),
    ("nacl", {"prior": "median", "class_reduction": "sum"}),
    ("svls", {"border": "background", "patch_size": 5}),
]

# Pixel A: logits (2, 0), label 0. Pixel B, to its right: logits (0, 1), label 1.
A0 = math.exp(2) / (math.exp(2) + 1)
B1 = math.e / (1 + math.e)
CE_A, CE_B = -math.log(A0), -math.log(B1)
CE = (CE_A + CE_B) / 2


def random_batch(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Logits of this shape, and labels."""
    logits = 2 * torch.randn(shape, dtype=dtype)
    return logits, torch.randint(shape[1], (shape[0], *shape[2:]))


def two_pixels(dim: int) -> tuple[Tensor, Tensor]:
    """The pixels A and B in 2-D or 3-D."""
    shape = (1,) * (dim - 1) + (2,)
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64).view(1, 2, *shape)
    return logits, torch.tensor([0, 1]).view(1, *shape)


def check_by_hand(name: str, options: dict[str, Any], expected: float) -> None:
    """The loss of the two pixels is `expected`, in 2-D and in 3-D."""
    for dim in (2, 3):
        value = make_loss(name, **options)(*two_pixels(dim)).item()
        assert value == pytest.approx(expected, rel=1e-12), dim


def check_parameter(name: str, option: str, value: Any, **base: Any) -> None:
    """Changing this option changes the loss."""
    logits, target = random_batch(2, 3, 8, 8)
    before = make_loss(name, **base)(logits, target)
    after = make_loss(name, **{**base, option: value})(logits, target)
    assert after.item() != pytest.approx(before.item(), rel=1e-6)


def check_weighted(name: str, expected: dict[str, float]) -> None:
    """The terms of the two pixels with class weights (1, 3); terms not named do not change."""
    logits, target = two_pixels(2)
    plain = make_loss(name).terms(logits, target)
    found = make_loss(name, class_weights=[1.0, 3.0]).terms(logits, target)
    for term, value in found.items():
        assert value.item() == pytest.approx(expected.get(term, plain[term].item())), term
