"""Soft Dice: by hand, against MONAI, its minimizers, and with ignored images."""

import warnings
from typing import Any

import monai.losses
import pytest
import torch
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
    random_batch,
    two_pixels,
)
from segcal.losses import CEDiceLoss, DiceLoss, WeightedSum, make_loss


def dice_value(eps: float = 1e-5) -> float:
    class_0 = (2 * A0 + eps) / (A0 + (1 - B1) + 1 + eps)
    class_1 = (2 * B1 + eps) / ((1 - A0) + B1 + 1 + eps)
    return 1 - (class_0 + class_1) / 2


def squares_value(form: str, eps: float) -> float:
    """Class 0 has s = (A0, 1 − B1) and y = (1, 0); class 1 has s = (1 − A0, B1) and y = (0, 1)."""
    total = 0.0
    for s, y in (((A0, 1 - B1), (1, 0)), ((1 - A0, B1), (0, 1))):
        gap = sum((a - b) ** 2 for a, b in zip(s, y, strict=True))
        size = sum(a**2 for a in s) + (1 if form == "squared" else sum(s))
        total += gap / (size + eps) / 2
    return total


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, CE + dice_value()),
        ({"dice_weight": 0.5, "smooth": 1.0}, CE + 0.5 * dice_value(1.0)),
        ({"form": "squared"}, CE + squares_value("squared", 1e-5)),
        ({"form": "squared", "smooth": 1.0}, CE + squares_value("squared", 1.0)),
        ({"form": "proper"}, CE + squares_value("proper", 200.0)),
        ({"form": "proper", "smooth": 1.0}, CE + squares_value("proper", 1.0)),
    ],
)
def test_by_hand(options: dict[str, Any], expected: float) -> None:
    check_by_hand("ce_dice", options, expected)


def test_the_names_are_the_forms() -> None:
    check_by_hand("ce_squared_dice", {}, CE + squares_value("squared", 1e-5))
    check_by_hand("ce_proper_dice", {"dice_weight": 0.5}, CE + squares_value("proper", 200.0) / 2)


def test_class_weights_by_hand() -> None:
    check_weighted("ce_dice", {"ce": (CE_A + 3 * CE_B) / 4})


@pytest.mark.parametrize(
    ("option", "value"),
    [("dice_weight", 0.3), ("smooth", 1.0), ("form", "squared"), ("form", "proper"),
     ("over", "batch")],
)  # fmt: skip
def test_every_parameter_changes_the_result(option: str, value: float) -> None:
    check_parameter("ce_dice", option, value)


def test_dice_is_summed_over_images() -> None:
    total = make_loss("ce_dice", reduction="sum").terms(*two_pixels(2))
    assert total["dice"].item() == pytest.approx(dice_value())


def test_ignored_pixels_are_left_out() -> None:
    logits, target = two_pixels(2)
    target[0, 0, 1] = -100
    dice = 1 - ((2 * A0 + 1e-5) / (A0 + 1 + 1e-5) + 1e-5 / (1 - A0 + 1e-5)) / 2
    assert DiceLoss()(logits, target).item() == pytest.approx(dice)


def test_an_image_ignored_as_a_whole_does_not_count() -> None:
    logits, target = random_batch(2, 3, 8, 8)
    alone = DiceLoss()(logits[:1], target[:1])
    target[1] = -100
    torch.testing.assert_close(DiceLoss()(logits, target), alone)
    per_image = DiceLoss(reduction="none")(logits, target)
    assert per_image.shape == (2, 1, 1)
    assert per_image[1].item() == 0


def test_monai_dice(batch: tuple[Tensor, Tensor]) -> None:
    logits, target = batch
    theirs = monai.losses.DiceLoss(softmax=True, to_onehot_y=True)
    expected = theirs(logits, target.unsqueeze(1))
    torch.testing.assert_close(DiceLoss()(logits, target), expected.to(logits.dtype))


def test_monai_dice_and_cross_entropy(batch: tuple[Tensor, Tensor]) -> None:
    logits, target = batch
    theirs = monai.losses.DiceCELoss(softmax=True, to_onehot_y=True, lambda_dice=0.7)
    expected = theirs(logits.float(), target.unsqueeze(1))
    torch.testing.assert_close(CEDiceLoss(0.7)(logits.float(), target), expected)


@pytest.mark.parametrize("form", ["linear", "squared"])
@pytest.mark.parametrize("over", ["image", "batch"])
def test_monai_forms(batch: tuple[Tensor, Tensor], form: Any, over: Any) -> None:
    logits, target = batch
    theirs = monai.losses.DiceLoss(
        softmax=True, to_onehot_y=True, squared_pred=form == "squared", batch=over == "batch"
    )
    expected = theirs(logits, target.unsqueeze(1))
    torch.testing.assert_close(DiceLoss(form, over)(logits, target), expected.to(logits.dtype))


@pytest.mark.parametrize("over", ["image", "batch"])
def test_no_gradient_flows_through_the_proper_denominator(
    batch: tuple[Tensor, Tensor], over: Any
) -> None:
    """Value and gradient are those of a Brier score with fixed weights."""
    logits, target = batch
    target[0, 0] = -100
    logits.requires_grad_()
    probs, kept = logits.softmax(1), (target != -100).unsqueeze(1)
    truth = torch.zeros_like(probs).scatter_(1, target.clamp_min(0).unsqueeze(1), 1.0)
    axes = (0, *range(2, logits.ndim)) if over == "batch" else tuple(range(2, logits.ndim))
    sizes = ((probs.square() + probs) * kept).sum(axes).detach() + 7.0
    expected = (((probs - truth).square() * kept).sum(axes) / sizes).mean()
    found = DiceLoss("proper", over, 7.0)(logits, target)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, logits), torch.autograd.grad(expected, logits)
    )


@pytest.mark.parametrize("form", ["squared", "proper"])
def test_the_minimum_is_at_the_soft_label(form: Any) -> None:
    target = torch.randn(2, 3, 6, 6, dtype=torch.float64).softmax(1)
    logits = target.log().requires_grad_()
    loss = DiceLoss(form)(logits, target)
    assert loss.item() == pytest.approx(0, abs=1e-12)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.abs().max() < 1e-12
    assert DiceLoss(form)(logits + 0.1 * torch.randn_like(logits), target) > 1e-6


def test_linear_dice_is_not_minimal_at_the_soft_label() -> None:
    target = torch.tensor([[0.7, 0.3], [0.3, 0.7]]).view(1, 2, 1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        at_label, sharp = (DiceLoss()(scale * target.log(), target) for scale in (1.0, 5.0))
    assert sharp < at_label - 0.01


@pytest.mark.parametrize(
    ("form", "low", "high"),
    [("proper", 0.28, 0.32), ("squared", 0.30, 0.40), ("linear", -0.01, 0.01)],
)
def test_the_minimizer_for_random_labels(form: Any, low: float, high: float) -> None:
    """Pixels are in class 1 with probability 0.3, or surely in class 0 or 1 (a quarter each).

    The probability of the uncertain ones is free. "proper" finds it; "linear" goes to 0 or 1.
    """
    torch.manual_seed(0)
    group = torch.arange(64).view(8, 8) // 16  # 0, 3: sure; 1, 2: uncertain
    chance = torch.tensor([0.0, 0.3, 0.3, 1.0])[group]
    target = (torch.rand(100, 8, 8) < chance).long()
    free = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.Adam([free], lr=0.1)
    loss = DiceLoss(form)
    for _ in range(150):
        optimizer.zero_grad()
        one = free[group].expand(100, 8, 8)
        loss(torch.stack([torch.zeros_like(one), one], 1), target).backward()
        optimizer.step()
    assert low < free.detach().sigmoid()[1].item() < high


def test_only_linear_dice_warns_of_soft_labels_and_once() -> None:
    from segcal.losses.dice import _warn_of_soft_labels

    _warn_of_soft_labels.cache_clear()
    logits = torch.randn(1, 3, 4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for form in ("squared", "proper"):
            DiceLoss(form)(logits, logits.softmax(1))  # type: ignore[arg-type]
        DiceLoss()(logits, logits.argmax(1))
    with pytest.warns(UserWarning, match="proper") as found:
        WeightedSum(DiceLoss(), CEDiceLoss())(logits, logits.softmax(1))
    assert len(found) == 1


@pytest.mark.parametrize("form", ["linear", "squared", "proper"])
def test_over_the_batch(form: Any) -> None:
    """The batch counts as one image of all its pixels, and has one value."""
    logits, target = random_batch(2, 3, 8, 8)
    target[0, :3] = -100
    joined = torch.cat(list(logits), 1).unsqueeze(0), torch.cat(list(target)).unsqueeze(0)
    expected = DiceLoss(form)(*joined)
    for reduction in ("mean", "sum"):
        loss = DiceLoss(form, "batch", reduction=reduction)  # type: ignore[arg-type]
        torch.testing.assert_close(loss(logits, target), expected)
    single = DiceLoss(form, "batch", reduction="none")(logits, target)
    assert single.shape == (1, 1, 1)
    assert DiceLoss(form, "batch")(logits, torch.full_like(target, -100)) == 0
