"""Neighbour-aware calibration: logits are drawn to what the labels around the pixel say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from segcal.core.checks import check_choice, per_axis
from segcal.losses.base import PenalisedLoss
from segcal.losses.pixels import IGNORE_INDEX, Pixels, check_reductions, reduce_classes
from segcal.losses.priors import check_prior

if TYPE_CHECKING:
    from segcal.losses.kernels import Recipe

PENALTIES = ("l1", "l2")
SPACES = ("logits", "softmax")


def neighbour_penalty(
    logits: Tensor,
    target: Tensor,
    *,
    prior: str = "mean",
    patch_size: int | Sequence[int] = 3,
    sigma: float = 1.0,
    border: str = "replicate",
    penalty: str = "l1",
    constrain: str = "logits",
    class_reduction: str = "mean",
    ignore_index: int = IGNORE_INDEX,
    reduction: str = "mean",
) -> Tensor:
    r"""How far the logits are from the neighbourhood prior, :math:`\sum_k P(τ_k - l_k)`.

    Args:
        prior, patch_size, sigma, border: τ; see `neighbourhood_prior`. For a soft target the
            prior is "mean" or "gaussian".
        penalty: P. "l1" is the absolute value; "l2" the square.
        constrain: what τ is compared with, the "logits" l or the "softmax" s.
        class_reduction: "sum" is the formula as printed in the paper; "mean" divides it by K,
            which is what its weight λ = 0.1 was tuned for.
        ignore_index, reduction: see `SegmentationLoss`.

    Example:
        >>> import torch
        >>> flat = torch.zeros(1, 5, 5, dtype=torch.int64)  # class 0 everywhere: τ = (1, 0)
        >>> neighbour_penalty(torch.zeros(1, 2, 5, 5), flat)
        tensor(0.5000)
    """
    check_reductions(reduction, class_reduction)
    check_neighbour(prior, patch_size, sigma, border, penalty, constrain)
    pixels = Pixels(logits, target, ignore_index)
    per_pixel = neighbour_map(
        pixels, prior, patch_size, sigma, border, penalty, constrain, class_reduction
    )
    return pixels.reduce(per_pixel, reduction)


def check_neighbour(
    prior: str,
    patch_size: int | Sequence[int],
    sigma: float,
    border: str,
    penalty: str,
    constrain: str,
) -> None:
    check_prior(prior, patch_size, sigma, border)
    check_choice("penalty", penalty, PENALTIES)
    check_choice("constrain", constrain, SPACES)


def neighbour_map(
    pixels: Pixels,
    prior: str,
    patch_size: int | Sequence[int],
    sigma: float,
    border: str,
    penalty: str,
    constrain: str,
    class_reduction: str,
) -> Tensor:
    """Neighbour penalty of every pixel."""
    tau = pixels.prior(prior, patch_size, sigma, border)
    values = pixels.logits if constrain == "logits" else pixels.log_probs.exp()
    if penalty == "l1" and torch.compiler.is_compiling():
        # A compiler saves memory by itself; that of torch 2.11 mistook the sign kept below.
        return pixels.silence(reduce_classes((tau - values).abs(), class_reduction))
    if penalty == "l1":
        share = 1 / pixels.num_classes if class_reduction == "mean" else 1.0
        total: Tensor = _AbsoluteGap.apply(values, tau, share)  # type: ignore[no-untyped-call]
        return pixels.silence(total)
    return pixels.silence(reduce_classes((tau - values).square(), class_reduction))


class _AbsoluteGap(torch.autograd.Function):
    """share · Σ_k |τ_k − v_k|, (B, *S). Its gradient needs one byte per value: the sign."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, tau: Tensor, share: float) -> Tensor:
        gap = torch.sub(tau, values, out=tau)  # τ was made for this and is not used again
        ctx.share = share
        ctx.save_for_backward(gap.sgn().to(torch.int8))
        return gap.abs_().sum(1).mul_(share)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (sign,) = ctx.saved_tensors
        return sign * grad.unsqueeze(1).mul(-ctx.share), None, None


class NACLLoss(PenalisedLoss):
    r"""Neighbour-aware calibration loss (Murugesan et al., MICCAI 2023).

    .. math:: \mathcal{L} = -\log s^y + λ \sum_k |τ_k - l_k|

    τ are the class proportions in a patch around the pixel. The penalty bounds the logits (inside
    a structure sʸ settles at 1 − λ/K) and at a boundary draws them to the local class mixture.

    Args:
        penalty_weight: λ; 0 is cross-entropy. The paper used 0.1, with `class_reduction="mean"`.
        prior: "mean" (the paper's table), "gaussian", "max", "min", "median" or "mode".
        patch_size: odd; one int or one per axis, such as (1, 3, 3) for thick slices.
        penalty: "l1" (linear) or "l2" (quadratic).
        constrain: "logits" or "softmax".
        border: "replicate", "background" (as the authors' code pads) or "valid".
        sigma: width of the "gaussian" prior, in pixels.
        class_reduction: see `neighbour_penalty`.
        options: `ignore_index`, `class_weights`, `reduction` of `SegmentationLoss`.

    Example:
        >>> import torch
        >>> logits = torch.randn(2, 4, 32, 32, requires_grad=True)
        >>> target = torch.randint(4, (2, 32, 32))
        >>> NACLLoss()(logits, target).backward()
    """

    def __init__(
        self,
        penalty_weight: float = 0.1,
        prior: str = "mean",
        patch_size: int | Sequence[int] = 3,
        penalty: str = "l1",
        constrain: str = "logits",
        border: str = "replicate",
        sigma: float = 1.0,
        *,
        class_reduction: str = "mean",
        **options: Any,
    ) -> None:
        super().__init__(penalty_weight, class_reduction, **options)
        check_neighbour(prior, patch_size, sigma, border, penalty, constrain)
        self.prior = prior
        self.patch_size = patch_size
        self.penalty = penalty
        self.constrain = constrain
        self.border = border
        self.sigma = sigma

    def _recipe(self, axes: int) -> Recipe:
        return self._penalised_recipe(
            "nacl",
            prior=self.prior,
            patch=per_axis("patch_size", self.patch_size, axes),
            sigma=self.sigma,
            border=self.border,
            square=self.penalty == "l2",
            softmax=self.constrain == "softmax",
        )

    def _penalty_map(self, pixels: Pixels) -> Tensor:
        return neighbour_map(
            pixels,
            self.prior,
            self.patch_size,
            self.sigma,
            self.border,
            self.penalty,
            self.constrain,
            self.class_reduction,
        )
