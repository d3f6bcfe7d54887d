"""Margin-based label smoothing: logits may differ by a margin; beyond it they are pulled back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from segcal.core.checks import check_number
from segcal.losses.base import PenalisedLoss
from segcal.losses.pixels import IGNORE_INDEX, Pixels, check_reductions, reduce_classes

if TYPE_CHECKING:
    from segcal.losses.kernels import Recipe


def margin_penalty(
    logits: Tensor,
    target: Tensor,
    *,
    margin: float = 5.0,
    class_reduction: str = "mean",
    ignore_index: int = IGNORE_INDEX,
    reduction: str = "mean",
) -> Tensor:
    r"""How far logits lie more than a margin m below the largest.

    .. math:: \sum_k \max(0, \max_j l_j - l_k - m)

    The target only says which pixels count.

    Args: `margin` ≥ 0; `class_reduction` "mean" divides the sum by K, which is what the paper's
        weight of 0.1 was tuned for. The others: see `SegmentationLoss`.
    """
    check_reductions(reduction, class_reduction)
    check_number("margin", margin, low=0)
    pixels = Pixels(logits, target, ignore_index)
    return pixels.reduce(margin_map(pixels, margin, class_reduction), reduction)


def margin_map(pixels: Pixels, margin: float, class_reduction: str) -> Tensor:
    """Margin penalty of every pixel."""
    below = pixels.logits.amax(1, keepdim=True) - pixels.logits
    return pixels.silence(reduce_classes((below - margin).relu(), class_reduction))


class MbLSLoss(PenalisedLoss):
    r"""Margin-based label smoothing (Liu et al., 2022): CE + λ·`margin_penalty`.

    Where the largest logit is ahead by less than the margin, this is plain cross-entropy.

    Args:
        margin: m. The paper searched {3, 5, 10} and used 5.
        penalty_weight: λ; 0 is cross-entropy. The paper used 0.1.
        class_reduction: see `margin_penalty`.
        options: `ignore_index`, `class_weights`, `reduction` of `SegmentationLoss`.
    """

    def __init__(
        self,
        margin: float = 5.0,
        penalty_weight: float = 0.1,
        *,
        class_reduction: str = "mean",
        **options: Any,
    ) -> None:
        super().__init__(penalty_weight, class_reduction, **options)
        self.margin = check_number("margin", margin, low=0)

    def _recipe(self, axes: int) -> Recipe:
        return self._penalised_recipe("mbls", parameter=self.margin)

    def _penalty_map(self, pixels: Pixels) -> Tensor:
        return margin_map(pixels, self.margin, self.class_reduction)
