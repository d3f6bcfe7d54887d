"""Soft Dice in three forms, alone and with cross-entropy."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any, Literal, Unpack, get_args

import torch
from torch import Tensor

from segcal.core.checks import check_choice, check_number
from segcal.losses.base import CommonOptions, SegmentationLoss
from segcal.losses.pixels import IGNORE_INDEX, Activation, Pixels, Reduction

DiceForm = Literal["linear", "squared", "proper"]
DiceOver = Literal["image", "batch"]
SMOOTH: dict[DiceForm, float] = {"linear": 1e-5, "squared": 1e-5, "proper": 200.0}


class DiceLoss(SegmentationLoss):
    r"""Soft Dice loss of the probabilities over all classes; to be added to others.

    ========== ===================================================================================
    form       loss of class k, sums over the pixels of an image or of the batch
    ========== ===================================================================================
    linear     :math:`1 - \frac{2\sum sy + ε}{\sum s + \sum y + ε}` (Milletari et al., 3DV 2016,
               with s and y in the denominator, as nnU-Net and MONAI use it). Minimal at
               probabilities of 0 and 1, also for uncertain or soft labels: over-confident.
    squared    :math:`\frac{\sum (s-y)^2}{\sum s^2 + \sum y^2 + ε}`, which is 1 − Dice with squares
               in the denominator. Minimal at s = y, also for soft y; slightly over-confident if
               labels are random.
    proper     :math:`\frac{\sum (s-y)^2}{\sum s^2 + \sum s + ε}` without gradient through the
               denominator: a Brier score weighted by the inverse volume of the class. Its
               minimizer is the true probability.
    ========== ===================================================================================

    s is the softmax (or sigmoid) of the logits and y the one-hot or soft target. The loss is the
    mean over the classes.

    Args:
        form: see the table. "linear" with soft labels gives a warning.
        over: "image": the mean of the images' losses; "batch": sums over all images of the batch.
        smooth: ε in pixels; None is 1e-5, and 200 for "proper", which without it weights absent
            classes without bound. For large volumes, a few percent of a class's mean volume.
        ignore_index: pixels with this label are left out. An image that is ignored as a whole has
            Dice loss 0 and does not count in the mean.
        reduction: "mean" or "sum" over the images of the batch, or "none": one value per image,
            (B, 1, 1) or (B, 1, 1, 1), which broadcasts to the (B, *S) of other losses.
        activation: see `SegmentationLoss`; with "sigmoid" the inside of each head is a class.

    Example:
        >>> target = torch.zeros(1, 4, 4, dtype=torch.int64)
        >>> DiceLoss()(torch.zeros(1, 2, 4, 4), target)
        tensor(0.6667)
        >>> DiceLoss("squared")(torch.zeros(1, 2, 4, 4), target)
        tensor(0.6000)
    """

    def __init__(
        self,
        form: DiceForm = "linear",
        over: DiceOver = "image",
        smooth: float | None = None,
        *,
        ignore_index: int = IGNORE_INDEX,
        reduction: Reduction = "mean",
        activation: Activation = "softmax",
    ) -> None:
        super().__init__(ignore_index=ignore_index, reduction=reduction, activation=activation)
        self.form, self.over, self.smooth = _checked(form, over, smooth)

    def reduced_terms(self, pixels: Pixels) -> dict[str, Tensor]:
        """It is a ratio over an image, so there are no terms per pixel."""
        return {"dice": _soft_dice(pixels, self.form, self.over, self.smooth, self.reduction)}


class CEDiceLoss(SegmentationLoss):
    r"""Cross-entropy + λ · soft Dice, the most common loss in medical image segmentation.

    .. math:: \mathcal{L} = -\log s^y + λ (1 - \mathrm{Dice}(s, y))

    s is the softmax of the logits, y the true class; for the second part see `DiceLoss`. The class
    weights apply to the cross-entropy. With `reduction="none"`, every pixel that counts carries the
    Dice loss of its image.

    Args:
        dice_weight: λ; 0 is cross-entropy. The paper used 1.
        form, over, smooth: see `DiceLoss`.
        ignore_index, class_weights, reduction, fused, activation: see `SegmentationLoss`.

    Example:
        >>> logits = torch.randn(2, 4, 32, 32, requires_grad=True)
        >>> CEDiceLoss()(logits, torch.randint(4, (2, 32, 32))).backward()
    """

    def __init__(
        self,
        dice_weight: float = 1.0,
        form: DiceForm = "linear",
        over: DiceOver = "image",
        smooth: float | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        self.dice_weight = check_number("dice_weight", dice_weight, low=0)
        self.form, self.over, self.smooth = _checked(form, over, smooth)

    def reduced_terms(self, pixels: Pixels) -> dict[str, Tensor]:
        ce = pixels.reduce(pixels.nll(pixels.log_probs), self.reduction, weighted=True)
        if self.dice_weight == 0:
            return {"ce": ce, "dice": torch.zeros_like(ce)}
        dice = _soft_dice(pixels, self.form, self.over, self.smooth, self.reduction)
        if self.reduction == "none":
            dice = dice.expand_as(ce)
            if pixels.counted is not None:
                dice = dice.masked_fill(~pixels.by_image(pixels.counted), 0)
        return {"ce": ce, "dice": self.dice_weight * dice}


class CESquaredDiceLoss(CEDiceLoss):
    """`CEDiceLoss` with the form "squared" by default."""

    def __init__(
        self, dice_weight: float = 1.0, form: DiceForm = "squared", **options: Any
    ) -> None:
        super().__init__(dice_weight, form, **options)


class CEProperDiceLoss(CEDiceLoss):
    """`CEDiceLoss` with the form "proper" by default: class-balanced, and calibrated."""

    def __init__(self, dice_weight: float = 1.0, form: DiceForm = "proper", **options: Any) -> None:
        super().__init__(dice_weight, form, **options)


def _checked(
    form: DiceForm, over: DiceOver, smooth: float | None
) -> tuple[DiceForm, DiceOver, float]:
    check_choice("form", form, get_args(DiceForm))
    check_choice("over", over, get_args(DiceOver))
    epsilon = SMOOTH[form] if smooth is None else smooth
    return form, over, check_number("smooth", epsilon, low=0, open_low=True)


def _soft_dice(
    pixels: Pixels, form: DiceForm, over: DiceOver, smooth: float, reduction: Reduction
) -> Tensor:
    """Soft Dice loss, reduced over the images in which at least one pixel counts."""
    if form == "linear" and pixels.labels is None and not torch.compiler.is_compiling():
        _warn_of_soft_labels()
    probs, truth, counted = pixels.rows()
    space = tuple(range(2, probs.ndim)) if over == "image" else (0, *range(2, probs.ndim))

    def total(values: Tensor) -> Tensor:
        return values.sum(space).view(-1, probs.shape[1])

    if form == "linear":
        sizes = total(probs) + total(truth)
        per_class = 1 - (2 * total(probs * truth) + smooth) / (sizes + smooth)
    else:
        kept = probs if form == "squared" else probs.detach()
        sizes = total(kept.square()) + total(truth.square() if form == "squared" else kept)
        per_class = total((probs - truth).square()) / (sizes + smooth)
    present = probs.new_ones(per_class.shape, dtype=torch.bool)
    if counted is not None:
        present = counted.flatten(2).any(2)
        present = present if over == "image" else present.any(0, keepdim=True)
    return pixels.reduce_rows(per_class, present, reduction)


@cache
def _warn_of_soft_labels() -> None:
    warnings.warn(
        "Dice of the form 'linear' is not minimal at soft labels and makes a network "
        "over-confident; use the form 'proper' or 'squared'",
        stacklevel=2,
    )
