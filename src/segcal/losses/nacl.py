"""Neighbor-aware calibration: logits are drawn to the class proportions around the pixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Unpack, get_args

import torch
from torch import Tensor

from segcal.core.checks import check_choice
from segcal.losses.base import PenalizedLoss, PenaltyOptions
from segcal.losses.pixels import Pixels
from segcal.losses.priors import Border, PriorFunction, make_prior

Penalty = Literal["l1", "l2"]
Constrain = Literal["logits", "softmax"]


class NACLLoss(PenalizedLoss):
    r"""Neighbor-aware calibration loss (Murugesan et al., MICCAI 2023).

    .. math:: \mathcal{L} = -\log s^y + \frac{λ}{K} \sum_k |τ_k - l_k|

    s is the softmax of the logits l, y the true class, and τ are the class proportions in a patch
    around the pixel. The penalty bounds the logits (inside a structure sʸ settles at 1 − λ/K) and
    draws them to the local class mixture at a boundary.

    Args:
        penalty_weight: λ; 0 is cross-entropy. The paper used 0.1.
        prior: τ: "mean" (as in the paper), "gaussian", "max", "min", "median", "mode", another
            registered name, an import path `package.module:MyPrior`, a `Prior` or a function. For
            a soft target it is "mean" or "gaussian".
        patch_size: odd; one int, or one per axis, such as (1, 3, 3) for thick slices.
        penalty: "l1", the absolute value of τ − l, or "l2", its square.
        constrain: what τ is compared with, the "logits" l or the "softmax" s.
        border: "replicate", "background" (as in the authors' code) or "valid"; see `Prior`.
        sigma: width of the "gaussian" prior, in pixels.
        class_reduction, ignore_index, class_weights, reduction, fused: see `PenalizedLoss`.

    Example:
        >>> logits = torch.randn(2, 4, 32, 32, requires_grad=True)
        >>> target = torch.randint(4, (2, 32, 32))
        >>> NACLLoss()(logits, target).backward()
    """

    def __init__(
        self,
        penalty_weight: float = 0.1,
        prior: str | PriorFunction = "mean",
        patch_size: int | Sequence[int] = 3,
        penalty: Penalty = "l1",
        constrain: Constrain = "logits",
        border: Border = "replicate",
        sigma: float = 1.0,
        **common: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(penalty_weight, **common)
        check_choice("penalty", penalty, get_args(Penalty))
        check_choice("constrain", constrain, get_args(Constrain))
        if constrain == "logits" and self.activation == "sigmoid":
            raise ValueError(
                "Expected argument `constrain` to be 'softmax' for sigmoid heads (regions), whose "
                "logits have no class proportions to be compared with; set constrain=softmax."
            )
        self.prior = make_prior(prior, patch_size, sigma, border)
        self.penalty = penalty
        self.constrain = constrain

    def pixel_penalty(self, pixels: Pixels) -> Tensor:
        tau = pixels.prior(self.prior)
        values = pixels.logits if self.constrain == "logits" else pixels.log_probs.exp()
        if self.penalty == "l2":
            return self.reduce_classes((tau - values).square())
        if torch.compiler.is_compiling():
            # The compiler saves the memory itself; that of torch 2.11 mistook the sign kept below.
            return self.reduce_classes((tau - values).abs())
        share = 1 / pixels.num_classes if self.class_reduction == "mean" else 1.0
        total: Tensor = _AbsoluteGap.apply(values, tau, share)  # type: ignore[no-untyped-call]
        return total


class _AbsoluteGap(torch.autograd.Function):
    """share · Σ_k |τ_k − v_k|, (B, *S). The backward pass needs one byte per value: the sign."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, tau: Tensor, share: float) -> Tensor:
        gap = torch.sub(tau, values, out=tau)  # τ is a new tensor and is not used again
        ctx.share = share
        ctx.save_for_backward(gap.sgn().to(torch.int8))
        return gap.abs_().sum(1).mul_(share)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (sign,) = ctx.saved_tensors
        return sign * grad.unsqueeze(1).mul(-ctx.share), None, None
