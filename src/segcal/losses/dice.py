"""Soft Dice, alone and with cross-entropy."""

from typing import Any

import torch
from torch import Tensor

from segcal.core.checks import check_number
from segcal.losses.base import SegmentationLoss
from segcal.losses.cross_entropy import ce_map
from segcal.losses.pixels import IGNORE_INDEX, Pixels, check_reductions


def soft_dice(
    logits: Tensor,
    target: Tensor,
    *,
    smooth: float = 1e-5,
    ignore_index: int = IGNORE_INDEX,
    reduction: str = "mean",
) -> Tensor:
    r"""Soft Dice loss over the softmax, all classes, each image by itself.

    .. math:: 1 - \frac{1}{K}\sum_k \frac{2\sum_p s_p^k y_p^k + ε}{\sum_p s_p^k + \sum_p y_p^k + ε}

    Args:
        smooth: ε; what a class that is neither there nor predicted scores (as correct).
        reduction: "mean" or "sum" over the images of the batch, or "none": one value per image,
            (B, 1, 1) or (B, 1, 1, 1), which adds to the (B, *S) of other losses (on ignored
            pixels too).
        ignore_index: pixels left out. An image that is ignored as a whole has Dice loss 0 and
            does not count in the mean.
    """
    check_reductions(reduction)
    check_number("smooth", smooth, low=0, open_low=True)
    pixels = Pixels(logits, target, ignore_index)
    return reduce_images(pixels, dice_per_image(pixels, smooth), reduction)


def dice_per_image(pixels: Pixels, smooth: float) -> Tensor:
    """Soft Dice loss of every image, (B, 1, 1) or (B, 1, 1, 1); 0 where all of it is ignored."""
    probs = pixels.log_probs.exp()
    truth = pixels.one_hot()
    space = tuple(range(2, probs.ndim))
    if pixels.counted is not None:
        probs = probs.masked_fill(~pixels.counted.unsqueeze(1), 0)
    overlap = (probs * truth).sum(space)
    sizes = probs.sum(space) + truth.sum(space)
    loss = 1 - ((2 * overlap + smooth) / (sizes + smooth)).mean(1)
    if pixels.strange is not None:
        loss = loss.masked_fill(pixels.strange.flatten(1).any(1), float("nan"))
    return loss.view(-1, *(1,) * len(space))


def reduce_images(pixels: Pixels, per_image: Tensor, reduction: str) -> Tensor:
    """Reduce over the images that have a pixel that counts."""
    if reduction == "none":
        return per_image
    if reduction == "sum":
        return per_image.sum()
    if pixels.counted is None:
        return per_image.mean()
    return per_image.sum() / pixels.counted.flatten(1).any(1).sum().clamp_min(1)


class DiceLoss(SegmentationLoss):
    """`soft_dice` as a module, to be added to other losses; it takes no class weights."""

    def __init__(
        self, smooth: float = 1e-5, *, ignore_index: int = IGNORE_INDEX, reduction: str = "mean"
    ) -> None:
        super().__init__(ignore_index=ignore_index, reduction=reduction)
        self.smooth = check_number("smooth", smooth, low=0, open_low=True)

    def _terms(self, pixels: Pixels) -> dict[str, Tensor]:
        return {"dice": reduce_images(pixels, dice_per_image(pixels, self.smooth), self.reduction)}


class CEDiceLoss(SegmentationLoss):
    """Cross-entropy + λ · soft Dice, the usual loss of the field.

    Args:
        dice_weight: λ; 0 is cross-entropy. The paper used 1.
        smooth: see `soft_dice`.
        options: `ignore_index`, `class_weights` (for the cross-entropy), `reduction` of
            `SegmentationLoss`. With "none" every pixel that counts carries its image's Dice loss.
    """

    def __init__(self, dice_weight: float = 1.0, smooth: float = 1e-5, **options: Any) -> None:
        super().__init__(**options)
        self.dice_weight = check_number("dice_weight", dice_weight, low=0)
        self.smooth = check_number("smooth", smooth, low=0, open_low=True)

    def _terms(self, pixels: Pixels) -> dict[str, Tensor]:
        ce = pixels.reduce(ce_map(pixels), self.reduction, weighted=True)
        if self.dice_weight == 0:
            return {"ce": ce, "dice": torch.zeros_like(ce)}
        dice = reduce_images(pixels, dice_per_image(pixels, self.smooth), self.reduction)
        if self.reduction == "none":
            dice = pixels.silence(dice.expand_as(ce))
        return {"ce": ce, "dice": self.dice_weight * dice}
