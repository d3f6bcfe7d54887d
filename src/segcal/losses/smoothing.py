"""Losses that soften the label: uniformly (LS) or by the labels around it (SVLS)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor

from segcal.core.checks import check_number
from segcal.losses.base import CommonOptions, SegmentationLoss
from segcal.losses.pixels import Pixels, along_classes
from segcal.losses.priors import Border, Prior


class LabelSmoothingLoss(SegmentationLoss):
    r"""Label smoothing (Szegedy et al., CVPR 2016).

    .. math:: -(1-α) \sum_k w_k y^k \log s^k - \frac{α}{K} \sum_k w_k \log s^k

    s is the softmax of the logits, y the one-hot or soft target, w the class weights. The label
    gives the share α of its weight to all K classes equally. Equal to `label_smoothing` of
    `torch.nn.CrossEntropyLoss`.

    Args:
        alpha: α in [0, 1]; 0 is cross-entropy. The paper searched {0.1, 0.2, 0.3} and used 0.1.
        ignore_index, class_weights, reduction, fused: see `SegmentationLoss`.

    Example:
        >>> import torch
        >>> logits = torch.tensor([2.0, 0.0]).view(1, 2, 1, 1)
        >>> LabelSmoothingLoss()(logits, torch.zeros(1, 1, 1, dtype=torch.int64))
        tensor(0.2269)
    """

    weighted_terms = ("ls",)

    def __init__(self, alpha: float = 0.1, **common: Unpack[CommonOptions]) -> None:
        super().__init__(**common)
        self.alpha = check_number("alpha", alpha, low=0, high=1)

    def pixel_terms(self, pixels: Pixels) -> dict[str, Tensor]:
        ce = pixels.nll(pixels.log_probs)
        if self.alpha == 0:
            return {"ls": ce}
        uniform = -along_classes(pixels.log_probs, pixels.class_weights).mean(1)
        return {"ls": (1 - self.alpha) * ce + self.alpha * uniform}


class SVLSLoss(SegmentationLoss):
    r"""Spatially varying label smoothing (Islam and Glocker, IPMI 2021).

    .. math:: -\sum_k w_k τ_k \log s^k

    s is the softmax of the logits, w the class weights, τ the "gaussian" `Prior`: half of it is
    the pixel's own label and half those of its neighbors (more than half its own where some
    neighbors do not count). Labels are softened at boundaries and nowhere else. Up to a constant
    the loss is half of CE + KL(τ'‖s), τ' the share of the neighbors.

    Args:
        sigma: width of the Gaussian in pixels. The paper searched {0.5, 1, 2} and used 2.
        patch_size: odd; one int, or one per axis; 1 is cross-entropy. The paper used 3.
        border: see `Prior`.
        ignore_index, class_weights, reduction, fused: see `SegmentationLoss`.

    Example:
        >>> import torch
        >>> edge = torch.tensor([[[0, 0, 1], [0, 0, 1], [0, 0, 1]]])
        >>> SVLSLoss()(torch.zeros(1, 2, 3, 3), edge)
        tensor(0.6931)
    """

    weighted_terms = ("svls",)

    def __init__(
        self,
        sigma: float = 2.0,
        patch_size: int | Sequence[int] = 3,
        *,
        border: Border = "replicate",
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        self.prior = Prior("gaussian", patch_size, sigma, border)

    def pixel_terms(self, pixels: Pixels) -> dict[str, Tensor]:
        tau = pixels.prior(self.prior)  # first: it needs much memory, and the softmax comes later
        return {"svls": -(tau * along_classes(pixels.log_probs, pixels.class_weights)).sum(1)}
