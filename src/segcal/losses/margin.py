"""Margin-based label smoothing: logits may differ by a margin; beyond it they are pulled back."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from segcal.core.checks import check_number
from segcal.losses.base import PenalizedLoss, PenaltyOptions
from segcal.losses.pixels import Pixels


class MbLSLoss(PenalizedLoss):
    r"""Margin-based label smoothing (Liu et al., CVPR 2022).

    .. math:: \mathcal{L} = -\log s^y + \frac{λ}{K} \sum_k \max(0, \max_j l_j - l_k - m)

    s is the softmax of the logits l, y the true class. Where the largest logit exceeds all others
    by less than the margin m, this is cross-entropy.

    Args:
        margin: m ≥ 0. The paper searched {3, 5, 10} and used 5.
        penalty_weight: λ; 0 is cross-entropy. The paper used 0.1.
        class_reduction, ignore_index, class_weights, reduction, fused: see `PenalizedLoss`.

    Example:
        >>> import torch
        >>> logits = torch.tensor([8.0, 0.0]).view(1, 2, 1, 1)
        >>> MbLSLoss().terms(logits, torch.zeros(1, 1, 1, dtype=torch.int64))["penalty"]
        tensor(0.1500)
    """

    def __init__(
        self, margin: float = 5.0, penalty_weight: float = 0.1, **common: Unpack[PenaltyOptions]
    ) -> None:
        super().__init__(penalty_weight, **common)
        self.margin = check_number("margin", margin, low=0)

    def pixel_penalty(self, pixels: Pixels) -> Tensor:
        below = pixels.logits.amax(1, keepdim=True) - pixels.logits
        return self.reduce_classes((below - self.margin).relu())
