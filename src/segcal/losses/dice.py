"""Soft Dice, alone and with cross-entropy."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from segcal.core.checks import check_number
from segcal.losses.base import CommonOptions, SegmentationLoss
from segcal.losses.pixels import IGNORE_INDEX, Pixels, Reduction


class DiceLoss(SegmentationLoss):
    r"""Soft Dice loss of the softmax over all classes, computed per image; to be added to others.

    .. math:: 1 - \frac{1}{K}\sum_k \frac{2\sum_p s_p^k y_p^k + ε}{\sum_p s_p^k + \sum_p y_p^k + ε}

    s is the softmax of the logits and y the one-hot or soft target at the pixels p of the image.

    Args:
        smooth: ε; a class that is neither present nor predicted counts as correct.
        ignore_index: pixels with this label are left out. An image that is ignored as a whole has
            Dice loss 0 and does not count in the mean.
        reduction: "mean" or "sum" over the images of the batch, or "none": one value per image,
            (B, 1, 1) or (B, 1, 1, 1), which broadcasts to the (B, *S) of other losses.

    Example:
        >>> target = torch.zeros(1, 4, 4, dtype=torch.int64)
        >>> DiceLoss()(torch.zeros(1, 2, 4, 4), target)
        tensor(0.6667)
    """

    def __init__(
        self,
        smooth: float = 1e-5,
        *,
        ignore_index: int = IGNORE_INDEX,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(ignore_index=ignore_index, reduction=reduction)
        self.smooth = check_number("smooth", smooth, low=0, open_low=True)

    def terms(self, logits: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The Dice loss. It is a ratio over an image, so it has no terms per pixel."""
        pixels = Pixels(logits, target, self.ignore_index)
        return {"dice": _soft_dice(pixels, self.smooth, self.reduction)}


class CEDiceLoss(SegmentationLoss):
    r"""Cross-entropy + λ · soft Dice, the most common loss in medical image segmentation.

    .. math:: \mathcal{L} = -\log s^y + λ (1 - \mathrm{Dice}(s, y))

    s is the softmax of the logits, y the true class; for the second part see `DiceLoss`.

    Args:
        dice_weight: λ; 0 is cross-entropy. The paper used 1.
        smooth: see `DiceLoss`.
        ignore_index, class_weights, reduction, fused: see `SegmentationLoss`. The class weights
            apply to the cross-entropy. With "none", every pixel that counts carries the Dice loss
            of its image.

    Example:
        >>> logits = torch.randn(2, 4, 32, 32, requires_grad=True)
        >>> CEDiceLoss()(logits, torch.randint(4, (2, 32, 32))).backward()
    """

    def __init__(
        self, dice_weight: float = 1.0, smooth: float = 1e-5, **common: Unpack[CommonOptions]
    ) -> None:
        super().__init__(**common)
        self.dice_weight = check_number("dice_weight", dice_weight, low=0)
        self.smooth = check_number("smooth", smooth, low=0, open_low=True)

    def terms(self, logits: Tensor, target: Tensor) -> dict[str, Tensor]:
        pixels = Pixels(logits, target, self.ignore_index, self.class_weights)
        ce = pixels.reduce(pixels.nll(pixels.log_probs), self.reduction, weighted=True)
        if self.dice_weight == 0:
            return {"ce": ce, "dice": torch.zeros_like(ce)}
        dice = _soft_dice(pixels, self.smooth, self.reduction)
        if self.reduction == "none":
            dice = pixels.masked(dice.expand_as(ce))
        return {"ce": ce, "dice": self.dice_weight * dice}


def _soft_dice(pixels: Pixels, smooth: float, reduction: Reduction) -> Tensor:
    """Soft Dice loss, reduced over the images in which at least one pixel counts."""
    probs = pixels.log_probs.exp()
    truth = pixels.one_hot()
    space = tuple(range(2, probs.ndim))
    if pixels.counted is not None:
        probs = probs.masked_fill(~pixels.counted.unsqueeze(1), 0)
    overlap = (probs * truth).sum(space)
    sizes = probs.sum(space) + truth.sum(space)
    per_image = 1 - ((2 * overlap + smooth) / (sizes + smooth)).mean(1)
    if pixels.invalid is not None:
        per_image = per_image.masked_fill(pixels.invalid.flatten(1).any(1), float("nan"))
    if reduction == "none":
        return per_image.view(-1, *(1,) * len(space))
    if reduction == "sum":
        return per_image.sum()
    if pixels.counted is None:
        return per_image.mean()
    return per_image.sum() / pixels.counted.flatten(1).any(1).sum().clamp_min(1)
