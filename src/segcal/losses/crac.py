"""Class- and region-adaptive constraints: NACL's distance with multipliers that validation sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from segcal.core.checks import check_number
from segcal.losses.base import PenalizedLoss, PenaltyOptions
from segcal.losses.pixels import Pixels
from segcal.losses.priors import Border, PriorFunction, make_prior

# After every 10 validations ρ grows where the mean of h is above 0.9 of its last value.
EVERY, DECREASE, GROWTH = 10, 0.9, 1.2


class CRaCLoss(PenalizedLoss):
    r"""Class and region-adaptive constraints (Murugesan et al., 2024), a baseline.

    .. math:: \mathcal{L} = -\log s^y + \frac{1}{K}\sum_k \left(λ_k h_k + \frac{ρ_k}{2} h_k^2\right)

    s is the softmax of the logits l, y the true class. h_k = |τ_k − l_k| in patches that contain
    several classes and |m τ_k − l_k| in uniform ones; τ are the class proportions of the patch. The
    sum is the Powell-Hestenes-Rockafellar penalty ((λ + ρh)² − λ²)/2ρ, as h and λ are not negative.

    Every class has one λ and one ρ for mixed and one for uniform patches. They are buffers, part of
    `state_dict`, and `segcal.training` updates them after each validation: λ becomes the mean of
    λ + ρh over the validation pixels, so it can only grow; ρ grows where h does not fall.

    Args:
        penalty_weight: weight of the whole penalty; 0 is cross-entropy.
        prior, patch_size, border: see `NACLLoss`.
        uniform_scale: m of the formula.
        multiplier, rho: initial λ and ρ.
        class_reduction, ignore_index, class_weights, reduction, fused: see `PenalizedLoss`.

    Example:
        >>> logits = torch.zeros(1, 2, 4, 4)
        >>> loss = CRaCLoss(uniform_scale=3.0)
        >>> loss.terms(logits, torch.zeros(1, 4, 4, dtype=torch.int64))["penalty"]
        tensor(2.2500)
    """

    multipliers: Tensor  # λ, (K, 2): mixed, uniform
    rhos: Tensor
    last: Tensor  # the mean of h when ρ was last considered
    validations: Tensor

    def __init__(
        self,
        penalty_weight: float = 1.0,
        prior: str | PriorFunction = "mean",
        patch_size: int | Sequence[int] = 3,
        uniform_scale: float = 5.0,
        multiplier: float = 1e-6,
        rho: float = 1.0,
        border: Border = "replicate",
        **common: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(penalty_weight, **common)
        if self.activation == "sigmoid":
            raise ValueError(
                "Expected argument `activation` to be 'softmax' for constrained logits."
            )
        self.prior = make_prior(prior, patch_size, 1.0, border)
        self.uniform_scale = check_number("uniform_scale", uniform_scale, low=0)
        self.multiplier = check_number("multiplier", multiplier, low=0)
        self.rho = check_number("rho", rho, low=0, open_low=True)

    def start(self, num_classes: int, loss: nn.Module | None = None) -> None:
        """Create the multipliers of K classes. The first batch does it where no one else did."""
        self.register_buffer("multipliers", torch.full((num_classes, 2), self.multiplier))
        self.register_buffer("rhos", torch.full((num_classes, 2), self.rho))
        self.register_buffer("last", torch.full((num_classes, 2), torch.inf))
        self.register_buffer("validations", torch.zeros((), dtype=torch.int64))

    def pixel_penalty(self, pixels: Pixels) -> Tensor:
        if "multipliers" not in self._buffers:
            self.start(pixels.num_classes)
            self.to(pixels.logits.device)
        h, uniform = self._distance(pixels)

        def chosen(values: Tensor) -> Tensor:
            mixed, alone = values.to(h.dtype).view(1, -1, *(1,) * (h.ndim - 2), 2).unbind(-1)
            return torch.where(uniform, alone, mixed)

        return self.reduce_classes(
            chosen(self.multipliers) * h + chosen(self.rhos) / 2 * h.square()
        )

    def _distance(self, pixels: Pixels) -> tuple[Tensor, Tensor]:
        """h, (B, K, *S), and where the patch is uniform, (B, 1, *S)."""
        tau = pixels.prior(self.prior)
        uniform = tau.amax(1, keepdim=True) > 1 - 1e-4
        return (tau * torch.where(uniform, self.uniform_scale, 1.0) - pixels.logits).abs(), uniform

    @torch.no_grad()
    def observe(self, logits: Tensor, target: Tensor) -> Tensor:
        """Sums of h and numbers of pixels by class and kind of patch, (2, K, 2), in float64."""
        pixels = Pixels(logits, target, self.ignore_index)
        h, uniform = self._distance(pixels)
        sums = []
        for part in (~uniform, uniform):
            if pixels.counted is not None:
                part = part & pixels.counted.unsqueeze(1)
            total = (h * part).double().transpose(0, 1).flatten(1).sum(1)
            sums.append(torch.stack([total, part.sum().double().expand_as(total)]))
        return torch.stack(sums, -1)

    def update(self, total: Tensor) -> None:
        """New multipliers, from the sums of `observe` over all validation cases."""
        total = total.to(self.rhos.device)
        seen = total[1] > 0
        mean = (total[0] / total[1].clamp_min(1)).to(self.rhos.dtype)
        self.multipliers.add_(torch.where(seen, self.rhos * mean, 0.0))
        self.validations.add_(1)
        if int(self.validations) % EVERY == 0:
            self.rhos.mul_(torch.where(seen & (mean > DECREASE * self.last), GROWTH, 1.0))
            self.last.copy_(torch.where(seen, mean, self.last))
