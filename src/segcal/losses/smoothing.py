"""Losses that soften the label: uniformly (LS) or by the labels around it (SVLS)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from segcal.core.checks import check_number
from segcal.losses.base import Fused, SegmentationLoss, Weights, as_weights
from segcal.losses.pixels import (
    IGNORE_INDEX,
    Pixels,
    Reduction,
    along_classes,
    check_reductions,
)
from segcal.losses.priors import Border, Prior


def label_smoothing(
    logits: Tensor,
    target: Tensor,
    *,
    alpha: float = 0.1,
    class_weights: Weights = None,
    ignore_index: int = IGNORE_INDEX,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Label smoothing (Szegedy et al., CVPR 2016).

    .. math:: -(1-α) \sum_k w_k y^k \log s^k - \frac{α}{K} \sum_k w_k \log s^k

    s is the softmax of the logits, y the one-hot or soft target, w the class weights. The label
    gives the share α of its weight to all K classes equally. Equal to `label_smoothing` of
    `torch.nn.functional.cross_entropy`.

    Args:
        alpha: α in [0, 1]; 0 is cross-entropy.
        class_weights, ignore_index, reduction: see `SegmentationLoss`.

    Example:
        >>> import torch
        >>> logits = torch.tensor([2.0, 0.0]).view(1, 2, 1, 1)
        >>> label_smoothing(logits, torch.zeros(1, 1, 1, dtype=torch.int64))
        tensor(0.2269)
    """
    check_reductions(reduction)
    check_number("alpha", alpha, low=0, high=1)
    pixels = Pixels(logits, target, ignore_index, as_weights(class_weights))
    return pixels.reduce(smoothing_map(pixels, alpha), reduction, weighted=True)


def svls(
    logits: Tensor,
    target: Tensor,
    *,
    sigma: float = 2.0,
    patch_size: int | Sequence[int] = 3,
    border: Border = "replicate",
    class_weights: Weights = None,
    ignore_index: int = IGNORE_INDEX,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Spatially varying label smoothing (Islam and Glocker, IPMI 2021).

    .. math:: -\sum_k w_k τ_k \log s^k

    s is the softmax of the logits, w the class weights, τ the "gaussian" `Prior`: half of it is
    the pixel's own label and half those of its neighbors (more than half its own where some
    neighbors do not count). Labels are softened at boundaries and nowhere else. Up to a constant
    the loss is half of CE + KL(τ'‖s), τ' the share of the neighbors.

    Args:
        sigma, patch_size, border: settings of `Prior`; a patch size of 1 is cross-entropy.
        class_weights, ignore_index, reduction: see `SegmentationLoss`.

    Example:
        >>> import torch
        >>> edge = torch.tensor([[[0, 0, 1], [0, 0, 1], [0, 0, 1]]])
        >>> svls(torch.zeros(1, 2, 3, 3), edge)
        tensor(0.6931)
    """
    check_reductions(reduction)
    prior = Prior("gaussian", patch_size, sigma, border)
    pixels = Pixels(logits, target, ignore_index, as_weights(class_weights))
    return pixels.reduce(svls_map(pixels, prior), reduction, weighted=True)


def smoothing_map(pixels: Pixels, alpha: float) -> Tensor:
    """Label-smoothed cross-entropy of every pixel."""
    ce = pixels.nll(pixels.log_probs)
    if alpha == 0:
        return ce
    uniform = -along_classes(pixels.log_probs, pixels.class_weights).mean(1)
    return (1 - alpha) * ce + alpha * uniform


def svls_map(pixels: Pixels, prior: Prior) -> Tensor:
    """Cross-entropy of every pixel with its SVLS-smoothed label."""
    weighted = along_classes(pixels.log_probs, pixels.class_weights)
    return -(pixels.prior(prior) * weighted).sum(1)


class LabelSmoothingLoss(SegmentationLoss):
    """Label smoothing as a module; see `label_smoothing`.

    Args:
        alpha: α; 0 is cross-entropy. The paper searched {0.1, 0.2, 0.3} and used 0.1.
        ignore_index, class_weights, reduction, fused: see `SegmentationLoss`.
    """

    weighted_terms = ("ls",)

    def __init__(
        self,
        alpha: float = 0.1,
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
        self.alpha = check_number("alpha", alpha, low=0, high=1)

    def pixel_terms(self, pixels: Pixels) -> dict[str, Tensor]:
        return {"ls": smoothing_map(pixels, self.alpha)}


class SVLSLoss(SegmentationLoss):
    """Spatially varying label smoothing as a module; see `svls`.

    Args:
        sigma: width of the Gaussian in pixels. The paper searched {0.5, 1, 2} and used 2.
        patch_size: odd; one int, or one per axis. The paper used 3.
        border: see `Prior`.
        ignore_index, class_weights, reduction, fused: see `SegmentationLoss`.
    """

    weighted_terms = ("svls",)

    def __init__(
        self,
        sigma: float = 2.0,
        patch_size: int | Sequence[int] = 3,
        *,
        border: Border = "replicate",
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
        self.prior = Prior("gaussian", patch_size, sigma, border)

    def pixel_terms(self, pixels: Pixels) -> dict[str, Tensor]:
        return {"svls": svls_map(pixels, self.prior)}
