"""Cross-entropy, the focal loss, and cross-entropy with an entropy penalty."""

from __future__ import annotations

from torch import Tensor

from segcal.core.checks import check_number
from segcal.losses.base import Fused, PenalizedLoss, SegmentationLoss, Weights, as_weights
from segcal.losses.pixels import (
    IGNORE_INDEX,
    ClassReduction,
    Pixels,
    Reduction,
    check_reductions,
    reduce_classes,
)


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    class_weights: Weights = None,
    ignore_index: int = IGNORE_INDEX,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Cross-entropy.

    .. math:: -\sum_k w_k y^k \log s^k

    s is the softmax of the logits, y the one-hot or soft target, w the class weights.

    For labels this is `torch.nn.functional.cross_entropy`, except that a batch whose pixels are
    all ignored gives 0 instead of NaN. For soft targets with class weights the mean divides by the
    summed weight of the targets, as it does for labels; torch divides by the number of pixels.

    Args:
        class_weights, ignore_index, reduction: see `SegmentationLoss`.

    Example:
        >>> import torch
        >>> logits = torch.tensor([2.0, 0.0]).view(1, 2, 1, 1)
        >>> cross_entropy(logits, torch.zeros(1, 1, 1, dtype=torch.int64))
        tensor(0.1269)
    """
    check_reductions(reduction)
    pixels = Pixels(logits, target, ignore_index, as_weights(class_weights))
    return pixels.reduce(pixels.nll(pixels.log_probs), reduction, weighted=True)


def focal(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 3.0,
    class_weights: Weights = None,
    ignore_index: int = IGNORE_INDEX,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Focal loss (Lin et al., ICCV 2017).

    .. math:: -\sum_k w_k y^k (1 - s^k)^γ \log s^k

    s is the softmax of the logits, y the one-hot or soft target, w the class weights. A confident,
    correct pixel counts less, so the network gains less from becoming more confident.

    Args:
        gamma: γ ≥ 0; how fast the weight of confident pixels falls. 0 is cross-entropy.
        class_weights, ignore_index, reduction: see `SegmentationLoss`.

    Example:
        >>> import torch
        >>> logits = torch.tensor([2.0, 0.0]).view(1, 2, 1, 1)
        >>> focal(logits, torch.zeros(1, 1, 1, dtype=torch.int64), gamma=1.0)
        tensor(0.0151)
    """
    check_reductions(reduction)
    check_number("gamma", gamma, low=0)
    pixels = Pixels(logits, target, ignore_index, as_weights(class_weights))
    return pixels.reduce(focal_map(pixels, gamma), reduction, weighted=True)


def entropy_penalty(
    logits: Tensor,
    target: Tensor,
    *,
    class_reduction: ClassReduction = "mean",
    ignore_index: int = IGNORE_INDEX,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""The negative entropy of the softmax s, which is never above 0.

    .. math:: \frac{1}{K} \sum_k s^k \log s^k

    The target only determines which pixels count.

    Args:
        class_reduction: "mean" is the formula above, for which the paper's weight of 0.1 was
            tuned; "sum" omits 1/K.
        ignore_index, reduction: see `SegmentationLoss`.

    Example:
        >>> import torch
        >>> target = torch.zeros(1, 1, 1, dtype=torch.int64)
        >>> entropy_penalty(torch.zeros(1, 2, 1, 1), target, class_reduction="sum")
        tensor(-0.6931)
    """
    check_reductions(reduction, class_reduction)
    pixels = Pixels(logits, target, ignore_index)
    return pixels.reduce(entropy_map(pixels, class_reduction), reduction)


def focal_map(pixels: Pixels, gamma: float) -> Tensor:
    """Focal loss of every pixel."""
    if gamma == 0:
        return pixels.nll(pixels.log_probs)
    if pixels.labels is None:
        return pixels.nll(_uncertainty(-pixels.log_probs, gamma) * pixels.log_probs)
    ce = pixels.nll(pixels.log_probs, weighted=False)
    loss = _uncertainty(ce, gamma) * ce
    return loss if pixels.class_weights is None else loss * pixels.target_weight()


def _uncertainty(nll: Tensor, gamma: float) -> Tensor:
    """(1 − s)^γ from −log s. The floor keeps the gradient finite where s is exactly 1."""
    return (-(-nll).expm1()).clamp_min(1e-12).pow(gamma)


def entropy_map(pixels: Pixels, class_reduction: ClassReduction) -> Tensor:
    """Negative entropy of every pixel."""
    return reduce_classes(pixels.log_probs.exp() * pixels.log_probs, class_reduction)


class CrossEntropyLoss(SegmentationLoss):
    """Cross-entropy as a module; see `cross_entropy` and `SegmentationLoss`."""

    weighted_terms = ("ce",)

    def pixel_terms(self, pixels: Pixels) -> dict[str, Tensor]:
        return {"ce": pixels.nll(pixels.log_probs)}


class FocalLoss(SegmentationLoss):
    """The focal loss as a module; see `focal`.

    Args:
        gamma: γ; 0 is cross-entropy. The paper searched {1, 2, 3} and used 3.
        ignore_index, class_weights, reduction, fused: see `SegmentationLoss`.
    """

    weighted_terms = ("focal",)

    def __init__(
        self,
        gamma: float = 3.0,
        *,
        ignore_index: int = IGNORE_INDEX,
        class_weights: Weights = None,
        reduction: Reduction = "mean",
        fused: Fused = "auto",
    ) -> None:
        super().__init__(
            ignore_index=ignore_index,
            class_weights=class_weights,
            reduction=reduction,
            fused=fused,
        )
        self.gamma = check_number("gamma", gamma, low=0)

    def pixel_terms(self, pixels: Pixels) -> dict[str, Tensor]:
        return {"focal": focal_map(pixels, self.gamma)}


class ECPLoss(PenalizedLoss):
    r"""Explicit confidence penalty (Pereyra et al., ICLR workshop 2017).

    .. math:: \mathcal{L} = -\log s^y + \frac{λ}{K} \sum_k s^k \log s^k

    s is the softmax of the logits, y the true class. Every pixel is pushed towards the uniform
    distribution, wherever it lies.

    Args:
        penalty_weight: λ; 0 is cross-entropy. The paper searched {0.1, 0.2, 0.3} and used 0.1.
        class_reduction: see `entropy_penalty`.
        ignore_index, class_weights, reduction, fused: see `SegmentationLoss`.

    Shape: see `SegmentationLoss`.

    Example:
        >>> import torch
        >>> logits = torch.randn(2, 4, 32, 32, requires_grad=True)
        >>> ECPLoss()(logits, torch.randint(4, (2, 32, 32))).backward()
    """

    def pixel_penalty(self, pixels: Pixels) -> Tensor:
        return entropy_map(pixels, self.class_reduction)
