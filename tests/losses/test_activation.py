"""Sigmoid heads: K problems of two classes."""

from typing import Any

import monai.losses
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.fused_checks import DEVICE
from helpers.loss_samples import NAMES
from segcal.losses import (
    ACELoss,
    CrossEntropyLoss,
    DiceLoss,
    FocalLoss,
    LabelSmoothingLoss,
    NACLLoss,
    make_loss,
)

OPTIONS: dict[str, dict[str, Any]] = {"nacl": {"constrain": "softmax"}}


@pytest.fixture(params=[(2, 3, 6, 5), (2, 1, 4, 5, 3)], ids=["2d", "3d"])
def heads(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor]:
    logits = 2 * torch.randn(request.param, dtype=torch.float64)
    return logits, torch.randint(2, request.param)


def test_cross_entropy_is_that_of_torch(heads: tuple[Tensor, Tensor]) -> None:
    logits, target = heads
    loss = CrossEntropyLoss(activation="sigmoid")
    expected = F.binary_cross_entropy_with_logits(logits, target.double())
    torch.testing.assert_close(loss(logits, target), expected)
    torch.testing.assert_close(loss(logits, target.bool()), expected)
    soft = torch.rand_like(logits)
    expected = F.binary_cross_entropy_with_logits(logits, soft)
    torch.testing.assert_close(loss(logits, soft), expected)
    loss.reduction = "none"
    expected = F.binary_cross_entropy_with_logits(logits, soft, reduction="none")
    torch.testing.assert_close(loss(logits, soft), expected)


def test_label_smoothing_and_focal(heads: tuple[Tensor, Tensor]) -> None:
    logits, target = heads
    smooth = 0.8 * target.double() + 0.1
    expected = F.binary_cross_entropy_with_logits(logits, smooth)
    found = LabelSmoothingLoss(0.2, activation="sigmoid")(logits, target)
    torch.testing.assert_close(found, expected)
    sure = torch.where(target == 1, logits, -logits).sigmoid()
    expected = ((1 - sure) ** 2 * -sure.log()).mean()
    found = FocalLoss(2.0, activation="sigmoid")(logits, target)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("over", ["image", "batch"])
@pytest.mark.parametrize("form", ["linear", "squared"])
def test_dice_is_that_of_monai(heads: tuple[Tensor, Tensor], form: Any, over: Any) -> None:
    logits, target = heads
    theirs = monai.losses.DiceLoss(
        sigmoid=True, squared_pred=form == "squared", batch=over == "batch"
    )
    expected = theirs(logits, target.double())
    torch.testing.assert_close(DiceLoss(form, over, activation="sigmoid")(logits, target), expected)


def test_ignored_pixels_count_in_no_head() -> None:
    logits, target = torch.randn(2, 3, 4, 4), torch.randint(2, (2, 3, 4, 4))
    kept = torch.rand(2, 3, 4, 4) < 0.6
    target[~kept] = -100
    loss = CrossEntropyLoss(activation="sigmoid")
    expected = F.binary_cross_entropy_with_logits(logits[kept], target[kept].float())
    torch.testing.assert_close(loss(logits, target), expected)
    target[0, 1] = -100  # a head without pixels
    other = DiceLoss(activation="sigmoid", reduction="none")(logits, target)
    assert other.shape == (2, 3, 1, 1)
    assert other[0, 1] == 0
    mean = DiceLoss(activation="sigmoid")(logits, target)
    torch.testing.assert_close(mean, other.sum() / 5)


@pytest.mark.parametrize("name", [*NAMES, "ml1_ace", "ce_dice_ace"])
def test_every_loss_has_gradients_and_ignores(name: str) -> None:
    logits = torch.randn(2, 2, 4, 3, dtype=torch.float64)
    target = torch.randint(2, logits.shape)
    target[:, 0, :2] = -100
    loss = make_loss(name, activation="sigmoid", **OPTIONS.get(name, {}))
    value = loss(logits.requires_grad_(), target)
    assert torch.isfinite(value)
    assert value.ndim == 0
    if "proper" not in name:
        assert torch.autograd.gradcheck(lambda x: loss(x, target), logits)
    changed = logits.detach().clone()
    changed[:, 0, :2] += 1
    torch.testing.assert_close(loss(changed, target), value.detach())


def test_heads_are_independent() -> None:
    logits, target = torch.randn(1, 2, 4, 4), torch.randint(2, (1, 2, 4, 4))
    for loss in (
        CrossEntropyLoss(activation="sigmoid"),
        DiceLoss("proper", activation="sigmoid"),
        NACLLoss(constrain="softmax", activation="sigmoid"),
    ):
        alone = [loss(logits[:, k : k + 1], target[:, k : k + 1]) for k in range(2)]
        torch.testing.assert_close(loss(logits, target), sum(alone) / 2)
    target[:, 0] = 0  # no inside: this head does not count in the calibration error
    ace = ACELoss(activation="sigmoid")
    torch.testing.assert_close(ace(logits, target), ace(logits[:, 1:], target[:, 1:]))


def test_class_weights_are_those_of_outside_and_inside() -> None:
    logits, target = torch.randn(1, 2, 4, 4), torch.randint(2, (1, 2, 4, 4))
    each = F.binary_cross_entropy_with_logits(logits, target.float(), reduction="none")
    weight = 1 + 2.0 * target
    found = CrossEntropyLoss(activation="sigmoid", class_weights=[1.0, 3.0])(logits, target)
    torch.testing.assert_close(found, (weight * each).sum() / weight.sum())


def test_kernels() -> None:
    pytest.importorskip("triton")
    logits, target = torch.randn(2, 3, 4, 6).to(DEVICE), torch.randint(2, (2, 3, 4, 6)).to(DEVICE)
    for reduction in ("mean", "none"):
        found = [
            make_loss("svls", activation="sigmoid", reduction=reduction, fused=fused)
            for fused in (True, False)
        ]
        values = [loss(logits, target) for loss in found]
        torch.testing.assert_close(*values)
    assert values[0].shape == logits.shape


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="`activation` to be one of 'softmax', 'sigmoid'"):
        CrossEntropyLoss(activation="tanh")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`constrain` to be 'softmax'"):
        NACLLoss(activation="sigmoid")
    with pytest.raises(ValueError, match="`target` to have the shape of the logits"):
        CrossEntropyLoss(activation="sigmoid")(torch.randn(1, 2, 4, 4), torch.zeros(1, 4, 4))
    loss = CrossEntropyLoss(activation="sigmoid")
    with pytest.raises(ValueError, match="labels 0 to 1"):
        loss(torch.randn(1, 2, 4, 4), torch.full((1, 2, 4, 4), 2))
