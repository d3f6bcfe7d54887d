"""Cross-entropy and its two pixel-wise relatives: the focal loss and the entropy penalty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from segcal.core.checks import check_number
from segcal.losses.base import PenalisedLoss, SegmentationLoss, Weights, as_weights, kernel_recipe
from segcal.losses.pixels import IGNORE_INDEX, Pixels, check_reductions, reduce_classes

if TYPE_CHECKING:
    from segcal.losses.kernels import Recipe


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    class_weights: Weights = None,
    ignore_index: int = IGNORE_INDEX,
    reduction: str = "mean",
) -> Tensor:
    r"""Cross-entropy, :math:`-\sum_k w_k y^k \log s^k`, s the softmax of the logits.

    For labels this is `torch.nn.functional.cross_entropy`, except that a batch whose pixels are
    all ignored gives 0 and not NaN. For soft targets with class weights the mean divides by the
    summed weight of the targets, as it does for labels; torch divides by the number of pixels.

    Args: see `SegmentationLoss`.

    Example:
        >>> import torch
        >>> logits = torch.tensor([2.0, 0.0]).view(1, 2, 1, 1)
        >>> cross_entropy(logits, torch.zeros(1, 1, 1, dtype=torch.int64))
        tensor(0.1269)
    """
    check_reductions(reduction)
    pixels = Pixels(logits, target, ignore_index, as_weights(class_weights))
    return pixels.reduce(ce_map(pixels), reduction, weighted=True)


def focal(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 3.0,
    class_weights: Weights = None,
    ignore_index: int = IGNORE_INDEX,
    reduction: str = "mean",
) -> Tensor:
    r"""Focal loss (Lin et al., 2017), :math:`-(1-s^y)^\gamma \log s^y`; γ = 0 is cross-entropy.

    A sure, correct pixel counts less, so the network has less reason to be surer still. Soft
    targets sum the same expression over classes, weighted by the target.

    Args: `gamma` ≥ 0 sets how fast sure pixels fade; the others: see `SegmentationLoss`.
    """
    check_reductions(reduction)
    check_number("gamma", gamma, low=0)
    pixels = Pixels(logits, target, ignore_index, as_weights(class_weights))
    return pixels.reduce(focal_map(pixels, gamma), reduction, weighted=True)


def entropy_penalty(
    logits: Tensor,
    target: Tensor,
    *,
    class_reduction: str = "mean",
    ignore_index: int = IGNORE_INDEX,
    reduction: str = "mean",
) -> Tensor:
    r"""The negative entropy of the softmax, :math:`\sum_k s^k \log s^k` (never above 0).

    The target only says which pixels count.

    Args: `class_reduction` "sum" is the entropy; "mean" divides it by K, which is what the
        paper's weight of 0.1 was tuned for. The others: see `SegmentationLoss`.
    """
    check_reductions(reduction, class_reduction)
    pixels = Pixels(logits, target, ignore_index)
    return pixels.reduce(entropy_map(pixels, class_reduction), reduction)


def ce_map(pixels: Pixels) -> Tensor:
    """Cross-entropy of every pixel."""
    return pixels.nll(pixels.log_probs)


def focal_map(pixels: Pixels, gamma: float) -> Tensor:
    """Focal loss of every pixel."""
    if gamma == 0:
        return ce_map(pixels)
    if pixels.labels is None:
        return pixels.nll(_unsure(-pixels.log_probs, gamma) * pixels.log_probs)
    ce = pixels.nll(pixels.log_probs, weighted=False)
    loss = _unsure(ce, gamma) * ce
    return loss if pixels.class_weights is None else loss * pixels.target_weight()


def _unsure(nll: Tensor, gamma: float) -> Tensor:
    """(1 − s)^γ from −log s. The floor keeps the gradient finite where s is exactly 1."""
    return (-(-nll).expm1()).clamp_min(1e-12).pow(gamma)


def entropy_map(pixels: Pixels, class_reduction: str) -> Tensor:
    """Negative entropy of every pixel."""
    log_probs = pixels.log_probs
    return pixels.silence(reduce_classes(log_probs.exp() * log_probs, class_reduction))


class CrossEntropyLoss(SegmentationLoss):
    """`cross_entropy` as a module."""

    parts = ("ce",)

    def _recipe(self, axes: int) -> Recipe:
        return kernel_recipe("ce")

    def _terms(self, pixels: Pixels) -> dict[str, Tensor]:
        return {"ce": pixels.reduce(ce_map(pixels), self.reduction, weighted=True)}


class FocalLoss(SegmentationLoss):
    """`focal` as a module. The paper searched γ in {1, 2, 3} and used 3."""

    parts = ("focal",)

    def __init__(self, gamma: float = 3.0, **options: Any) -> None:
        super().__init__(**options)
        self.gamma = check_number("gamma", gamma, low=0)

    def _recipe(self, axes: int) -> Recipe:
        return kernel_recipe("focal" if self.gamma else "ce", parameter=self.gamma)

    def _terms(self, pixels: Pixels) -> dict[str, Tensor]:
        per_pixel = focal_map(pixels, self.gamma)
        return {"focal": pixels.reduce(per_pixel, self.reduction, weighted=True)}


class ECPLoss(PenalisedLoss):
    r"""Explicit confidence penalty (Pereyra et al., 2017): CE − λ·H(s).

    Every pixel is pushed towards the uniform distribution, wherever it lies.

    Args:
        penalty_weight: λ; 0 is cross-entropy. The paper searched {0.1, 0.2, 0.3} and used 0.1.
        class_reduction: see `entropy_penalty`.
        options: `ignore_index`, `class_weights`, `reduction` of `SegmentationLoss`.
    """

    def __init__(
        self, penalty_weight: float = 0.1, *, class_reduction: str = "mean", **options: Any
    ) -> None:
        super().__init__(penalty_weight, class_reduction, **options)

    def _recipe(self, axes: int) -> Recipe:
        return self._penalised_recipe("ecp")

    def _penalty_map(self, pixels: Pixels) -> Tensor:
        return entropy_map(pixels, self.class_reduction)
