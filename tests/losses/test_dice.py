"""Soft Dice: by hand, against MONAI, and with ignored images."""

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
from segcal.losses import CEDiceLoss, DiceLoss, make_loss


def dice_value(eps: float = 1e-5) -> float:
    class_0 = (2 * A0 + eps) / (A0 + (1 - B1) + 1 + eps)
    class_1 = (2 * B1 + eps) / ((1 - A0) + B1 + 1 + eps)
    return 1 - (class_0 + class_1) / 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, CE + dice_value()),
        ({"dice_weight": 0.5, "smooth": 1.0}, CE + 0.5 * dice_value(1.0)),
    ],
)
def test_by_hand(options: dict[str, Any], expected: float) -> None:
    check_by_hand("ce_dice", options, expected)


def test_class_weights_by_hand() -> None:
    check_weighted("ce_dice", {"ce": (CE_A + 3 * CE_B) / 4})


@pytest.mark.parametrize(("option", "value"), [("dice_weight", 0.3), ("smooth", 1.0)])
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
