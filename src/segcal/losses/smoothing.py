"""Losses that soften the label: uniformly (LS) or by the labels around it (SVLS)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from segcal.core.checks import check_number, per_axis
from segcal.losses.base import SegmentationLoss, Weights, as_weights, kernel_recipe
from segcal.losses.cross_entropy import ce_map
from segcal.losses.pixels import IGNORE_INDEX, Pixels, along_classes, check_reductions
from segcal.losses.priors import check_prior

if TYPE_CHECKING:
    from segcal.losses.kernels import Recipe


def label_smoothing(
    logits: Tensor,
    target: Tensor,
    *,
    alpha: float = 0.1,
    class_weights: Weights = None,
    ignore_index: int = IGNORE_INDEX,
    reduction: str = "mean",
) -> Tensor:
    r"""Label smoothing (Szegedy et al., 2016).

    .. math:: -(1-\alpha) \sum_k w_k y^k \log s^k - \frac{\alpha}{K} \sum_k w_k \log s^k

    The label gives α of its weight to all K classes alike. It equals torch's `label_smoothing`.

    Args: `alpha` in [0, 1]; 0 is cross-entropy. The others: see `SegmentationLoss`.
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
    border: str = "replicate",
    class_weights: Weights = None,
    ignore_index: int = IGNORE_INDEX,
    reduction: str = "mean",
) -> Tensor:
    r"""Spatially varying label smoothing (Islam and Glocker, 2021).

    .. math:: -\sum_k w_k τ_k \log s^k

    τ is the "gaussian" `neighbourhood_prior`: half of it is the pixel's own label, half those of
    its neighbours (more than half its own where some do not vote), so labels soften at boundaries
    and nowhere else. Up to a constant it is half of CE + KL(τ'‖s), τ' the neighbours' share.

    Args: `sigma`, `patch_size`, `border`: see `neighbourhood_prior`; a patch of 1 is
        cross-entropy. The others: see `SegmentationLoss`.
    """
    check_reductions(reduction)
    check_prior("gaussian", patch_size, sigma, border)
    pixels = Pixels(logits, target, ignore_index, as_weights(class_weights))
    per_pixel = svls_map(pixels, sigma, patch_size, border)
    return pixels.reduce(per_pixel, reduction, weighted=True)


def smoothing_map(pixels: Pixels, alpha: float) -> Tensor:
    """Label-smoothed cross-entropy of every pixel."""
    ce = ce_map(pixels)
    if alpha == 0:
        return ce
    uniform = -along_classes(pixels.log_probs, pixels.class_weights).mean(1)
    return (1 - alpha) * ce + alpha * pixels.silence(uniform)


def svls_map(pixels: Pixels, sigma: float, patch_size: int | Sequence[int], border: str) -> Tensor:
    """Cross-entropy of every pixel with its SVLS-smoothed label."""
    smoothed = pixels.prior("gaussian", patch_size, sigma, border)
    weighted = along_classes(pixels.log_probs, pixels.class_weights)
    return pixels.silence(-(smoothed * weighted).sum(1))


class LabelSmoothingLoss(SegmentationLoss):
    """`label_smoothing` as a module. The paper searched α in {0.1, 0.2, 0.3} and used 0.1."""

    parts = ("ls",)

    def __init__(self, alpha: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
        self.alpha = check_number("alpha", alpha, low=0, high=1)

    def _recipe(self, axes: int) -> Recipe:
        return kernel_recipe("ls" if self.alpha else "ce", parameter=self.alpha)

    def _terms(self, pixels: Pixels) -> dict[str, Tensor]:
        per_pixel = smoothing_map(pixels, self.alpha)
        return {"ls": pixels.reduce(per_pixel, self.reduction, weighted=True)}


class SVLSLoss(SegmentationLoss):
    """`svls` as a module. The paper used 3×3 and searched σ in {0.5, 1, 2}, taking 2."""

    parts = ("svls",)

    def __init__(
        self,
        sigma: float = 2.0,
        patch_size: int | Sequence[int] = 3,
        *,
        border: str = "replicate",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_prior("gaussian", patch_size, sigma, border)
        self.sigma = sigma
        self.patch_size = patch_size
        self.border = border

    def _recipe(self, axes: int) -> Recipe:
        return kernel_recipe(
            "svls",
            prior="gaussian",
            patch=per_axis("patch_size", self.patch_size, axes),
            sigma=self.sigma,
            border=self.border,
        )

    def _terms(self, pixels: Pixels) -> dict[str, Tensor]:
        per_pixel = svls_map(pixels, self.sigma, self.patch_size, self.border)
        return {"svls": pixels.reduce(per_pixel, self.reduction, weighted=True)}
