"""Neighbor-aware calibration: logits are drawn to the class proportions around the pixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from segcal.core.checks import check_choice
from segcal.losses.base import Fused, PenalizedLoss, Weights
from segcal.losses.pixels import (
    IGNORE_INDEX,
    ClassReduction,
    Pixels,
    Reduction,
    check_reductions,
    reduce_classes,
)
from segcal.losses.priors import Border, PriorFunction, make_prior

Penalty = Literal["l1", "l2"]
Constrain = Literal["logits", "softmax"]


def neighbor_penalty(
    logits: Tensor,
    target: Tensor,
    *,
    prior: str | PriorFunction = "mean",
    patch_size: int | Sequence[int] = 3,
    sigma: float = 1.0,
    border: Border = "replicate",
    penalty: Penalty = "l1",
    constrain: Constrain = "logits",
    class_reduction: ClassReduction = "mean",
    ignore_index: int = IGNORE_INDEX,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""The distance of the logits from the neighborhood prior.

    .. math:: \frac{1}{K} \sum_k P(τ_k - l_k)

    l are the logits, τ is the prior, P the absolute value or the square.

    Args:
        prior, patch_size, sigma, border: τ; see `make_prior` and `Prior`. For a soft target the
            prior is "mean" or "gaussian".
        penalty: P: "l1" is the absolute value, "l2" the square.
        constrain: what τ is compared with, the "logits" l or the "softmax" s.
        class_reduction: "mean" is the formula above, for which the paper's λ = 0.1 was tuned;
            "sum" omits 1/K, as the formula printed in the paper does.
        ignore_index, reduction: see `SegmentationLoss`.

    Example:
        >>> flat = torch.zeros(1, 5, 5, dtype=torch.int64)  # class 0 everywhere: τ = (1, 0)
        >>> neighbor_penalty(torch.zeros(1, 2, 5, 5), flat)
        tensor(0.5000)
    """
    check_reductions(reduction, class_reduction)
    _check_distance(penalty, constrain)
    compute = make_prior(prior, patch_size, sigma, border)
    pixels = Pixels(logits, target, ignore_index)
    per_pixel = neighbor_map(pixels, compute, penalty, constrain, class_reduction)
    return pixels.reduce(per_pixel, reduction)


def neighbor_map(
    pixels: Pixels,
    prior: PriorFunction,
    penalty: Penalty,
    constrain: Constrain,
    class_reduction: ClassReduction,
) -> Tensor:
    """Neighbor penalty of every pixel."""
    tau = pixels.prior(prior)
    values = pixels.logits if constrain == "logits" else pixels.log_probs.exp()
    if penalty == "l2":
        return reduce_classes((tau - values).square(), class_reduction)
    if torch.compiler.is_compiling():
        # The compiler saves the memory itself; that of torch 2.11 mistook the sign kept below.
        return reduce_classes((tau - values).abs(), class_reduction)
    share = 1 / pixels.num_classes if class_reduction == "mean" else 1.0
    total: Tensor = _AbsoluteGap.apply(values, tau, share)  # type: ignore[no-untyped-call]
    return total


def _check_distance(penalty: str, constrain: str) -> None:
    check_choice("penalty", penalty, get_args(Penalty))
    check_choice("constrain", constrain, get_args(Constrain))


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


class NACLLoss(PenalizedLoss):
    r"""Neighbor-aware calibration loss (Murugesan et al., MICCAI 2023).

    .. math:: \mathcal{L} = -\log s^y + \frac{λ}{K} \sum_k |τ_k - l_k|

    s is the softmax of the logits l, y the true class, and τ are the class proportions in a patch
    around the pixel. The penalty bounds the logits (inside a structure sʸ settles at 1 − λ/K) and
    draws them to the local class mixture at a boundary.

    Args:
        penalty_weight: λ; 0 is cross-entropy. The paper used 0.1.
        prior: τ: "mean" (as in the paper), "gaussian", "max", "min", "median", "mode", another
            registered name, an import path `package.module:MyPrior`, a `Prior` or a function.
        patch_size: odd; one int, or one per axis, such as (1, 3, 3) for thick slices.
        penalty: "l1" (linear) or "l2" (quadratic).
        constrain: "logits" or "softmax".
        border: "replicate", "background" (as in the authors' code) or "valid"; see `Prior`.
        sigma: width of the "gaussian" prior, in pixels.
        class_reduction: see `neighbor_penalty`.
        ignore_index, class_weights, reduction, fused: see `SegmentationLoss`.

    Shape: see `SegmentationLoss`.

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
        _check_distance(penalty, constrain)
        self.prior = make_prior(prior, patch_size, sigma, border)
        self.penalty = penalty
        self.constrain = constrain

    def pixel_penalty(self, pixels: Pixels) -> Tensor:
        return neighbor_map(pixels, self.prior, self.penalty, self.constrain, self.class_reduction)
