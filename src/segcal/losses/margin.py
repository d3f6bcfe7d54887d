"""Margin-based label smoothing: logits may differ by a margin; beyond it they are pulled back."""

from __future__ import annotations

from torch import Tensor

from segcal.core.checks import check_number
from segcal.losses.base import Fused, PenalizedLoss, Weights
from segcal.losses.pixels import (
    IGNORE_INDEX,
    ClassReduction,
    Pixels,
    Reduction,
    check_reductions,
    reduce_classes,
)


def margin_penalty(
    logits: Tensor,
    target: Tensor,
    *,
    margin: float = 5.0,
    class_reduction: ClassReduction = "mean",
    ignore_index: int = IGNORE_INDEX,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""The distance by which logits lie more than a margin below the largest logit.

    .. math:: \frac{1}{K} \sum_k \max(0, \max_j l_j - l_k - m)

    l are the logits and m is the margin. The target only determines which pixels count.

    Args:
        margin: m ≥ 0.
        class_reduction: "mean" is the formula above, for which the paper's weight of 0.1 was
            tuned; "sum" omits 1/K.
        ignore_index, reduction: see `SegmentationLoss`.

    Example:
        >>> import torch
        >>> logits = torch.tensor([8.0, 0.0]).view(1, 2, 1, 1)
        >>> margin_penalty(logits, torch.zeros(1, 1, 1, dtype=torch.int64))
        tensor(1.5000)
    """
    check_reductions(reduction, class_reduction)
    check_number("margin", margin, low=0)
    pixels = Pixels(logits, target, ignore_index)
    return pixels.reduce(margin_map(pixels, margin, class_reduction), reduction)


def margin_map(pixels: Pixels, margin: float, class_reduction: ClassReduction) -> Tensor:
    """Margin penalty of every pixel."""
    below = pixels.logits.amax(1, keepdim=True) - pixels.logits
    return reduce_classes((below - margin).relu(), class_reduction)


class MbLSLoss(PenalizedLoss):
    r"""Margin-based label smoothing (Liu et al., CVPR 2022).

    .. math:: \mathcal{L} = -\log s^y + \frac{λ}{K} \sum_k \max(0, \max_j l_j - l_k - m)

    s is the softmax of the logits l, y the true class. Where the largest logit exceeds all others
    by less than the margin m, this is cross-entropy.

    Args:
        margin: m. The paper searched {3, 5, 10} and used 5.
        penalty_weight: λ; 0 is cross-entropy. The paper used 0.1.
        class_reduction: see `margin_penalty`.
        ignore_index, class_weights, reduction, fused: see `SegmentationLoss`.

    Shape: see `SegmentationLoss`.

    Example:
        >>> import torch
        >>> logits = torch.randn(2, 4, 32, 32, requires_grad=True)
        >>> MbLSLoss(margin=3.0)(logits, torch.randint(4, (2, 32, 32))).backward()
    """

    def __init__(
        self,
        margin: float = 5.0,
        penalty_weight: float = 0.1,
        *,
        class_reduction: ClassReduction = "mean",
        ignore_index: int = IGNORE_INDEX,
        class_weights: Weights = None,
        reduction: Reduction = "mean",
        fused: Fused = "auto",
    ) -> None:
        super().__init__(
            penalty_weight,
            class_reduction=class_reduction,
            ignore_index=ignore_index,
            class_weights=class_weights,
            reduction=reduction,
            fused=fused,
        )
        self.margin = check_number("margin", margin, low=0)

    def pixel_penalty(self, pixels: Pixels) -> Tensor:
        return margin_map(pixels, self.margin, self.class_reduction)
