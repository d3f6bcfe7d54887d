"""Cross-entropy, the focal loss, and cross-entropy with an entropy penalty."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from segcal.core.checks import check_number
from segcal.losses.base import CommonOptions, PenalizedLoss, SegmentationLoss
from segcal.losses.pixels import Pixels


class CrossEntropyLoss(SegmentationLoss):
    r"""Cross-entropy.

    .. math:: -\sum_k w_k y^k \log s^k

    s is the softmax of the logits, y the one-hot or soft target, w the class weights.

    For labels this is `torch.nn.CrossEntropyLoss`, except that a batch whose pixels are all ignored
    gives 0 instead of NaN. For soft targets with class weights the mean divides by the summed
    weight of the targets, as it does for labels; torch divides by the number of pixels.

    Args:
        ignore_index, class_weights, reduction, fused: see `SegmentationLoss`.

    Example:
        >>> import torch
        >>> logits = torch.tensor([2.0, 0.0]).view(1, 2, 1, 1)
        >>> CrossEntropyLoss()(logits, torch.zeros(1, 1, 1, dtype=torch.int64))
        tensor(0.1269)
    """

    weighted_terms = ("ce",)

    def pixel_terms(self, pixels: Pixels) -> dict[str, Tensor]:
        return {"ce": pixels.nll(pixels.log_probs)}


class FocalLoss(SegmentationLoss):
    r"""Focal loss (Lin et al., ICCV 2017).

    .. math:: -\sum_k w_k y^k (1 - s^k)^γ \log s^k

    s is the softmax of the logits, y the one-hot or soft target, w the class weights. A confident,
    correct pixel counts less, so the network gains less from becoming more confident.

    Args:
        gamma: γ ≥ 0; how fast the weight of confident pixels falls. 0 is cross-entropy. The paper
            searched {1, 2, 3} and used 3.
        ignore_index, class_weights, reduction, fused: see `SegmentationLoss`.

    Example:
        >>> import torch
        >>> logits = torch.tensor([2.0, 0.0]).view(1, 2, 1, 1)
        >>> FocalLoss(gamma=1.0)(logits, torch.zeros(1, 1, 1, dtype=torch.int64))
        tensor(0.0151)
    """

    weighted_terms = ("focal",)

    def __init__(self, gamma: float = 3.0, **common: Unpack[CommonOptions]) -> None:
        super().__init__(**common)
        self.gamma = check_number("gamma", gamma, low=0)

    def pixel_terms(self, pixels: Pixels) -> dict[str, Tensor]:
        if self.gamma == 0:
            return {"focal": pixels.nll(pixels.log_probs)}
        if pixels.labels is None:
            return {"focal": pixels.nll(self._uncertainty(-pixels.log_probs) * pixels.log_probs)}
        ce = pixels.nll(pixels.log_probs, weighted=False)
        focal = self._uncertainty(ce) * ce
        return {"focal": focal if pixels.class_weights is None else focal * pixels.target_weight()}

    def _uncertainty(self, nll: Tensor) -> Tensor:
        """(1 − s)^γ from −log s. The floor keeps the gradient finite where s is exactly 1."""
        return (-(-nll).expm1()).clamp_min(1e-12).pow(self.gamma)


class ECPLoss(PenalizedLoss):
    r"""Explicit confidence penalty (Pereyra et al., ICLR workshop 2017).

    .. math:: \mathcal{L} = -\log s^y + \frac{λ}{K} \sum_k s^k \log s^k

    s is the softmax of the logits, y the true class. The penalty is the negative entropy. Every
    pixel is pushed towards the uniform distribution, wherever it lies.

    Args:
        penalty_weight: λ; 0 is cross-entropy. The paper searched {0.1, 0.2, 0.3} and used 0.1.
        class_reduction, ignore_index, class_weights, reduction, fused: see `PenalizedLoss`.

    Example:
        >>> import torch
        >>> logits = torch.randn(2, 4, 32, 32, requires_grad=True)
        >>> ECPLoss()(logits, torch.randint(4, (2, 32, 32))).backward()
    """

    def pixel_penalty(self, pixels: Pixels) -> Tensor:
        return self.reduce_classes(pixels.log_probs.exp() * pixels.log_probs)
