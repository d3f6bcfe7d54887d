"""Average calibration error as a loss: probabilities are compared with labels bin by bin."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from segcal.core.checks import check_choice, check_int, check_number
from segcal.losses.base import Fused, SegmentationLoss, WeightedSum
from segcal.losses.cross_entropy import CrossEntropyLoss
from segcal.losses.dice import DiceLoss
from segcal.losses.pixels import IGNORE_INDEX, Activation, Pixels, Reduction

Binning = Literal["hard", "soft"]
# A soft bin counts as empty below this total weight.
EMPTY = 0.01


class ACELoss(SegmentationLoss):
    r"""Marginal L1 average calibration error (Barfoot et al., MICCAI 2024); to be added to others.

    .. math:: \frac{1}{M}\sum_m \frac{1}{|B_m|} \left| \sum_{p \in B_m} (s_p^k - y_p^k) \right|

    is the error of class k in an image: its probabilities s are put into equal bins B, of which M
    are not empty; y is the one-hot or soft target. The loss is the mean over the classes that occur
    in the label of the image, and over the images. It is not a loss of its own: constant
    probabilities minimize it.

    Args:
        num_bins: the paper used 20.
        binning: "hard": the gradient flows through the mean of s in each bin. "soft": each value
            is shared between the two nearest bin centers in proportion to its distance to the
            other one, so that the gradient flows through the bin weights, too.
        ignore_index: pixels with this label are left out.
        reduction: "mean" or "sum" over the images, or "none": one value per image, (B, 1, 1) or
            (B, 1, 1, 1).
        fused: see `SegmentationLoss`; the kernels know hard bins, with softmax.
        activation: see `SegmentationLoss`; with "sigmoid" the inside of each head is a class.

    Example:
        >>> target = torch.zeros(1, 4, 4, dtype=torch.int64)
        >>> ACELoss()(torch.zeros(1, 2, 4, 4), target)
        tensor(0.5000)
    """

    def __init__(
        self,
        num_bins: int = 20,
        binning: Binning = "hard",
        *,
        ignore_index: int = IGNORE_INDEX,
        reduction: Reduction = "mean",
        fused: Fused = "auto",
        activation: Activation = "softmax",
    ) -> None:
        super().__init__(
            ignore_index=ignore_index, reduction=reduction, fused=fused, activation=activation
        )
        self.num_bins = check_int("num_bins", num_bins, low=1)
        check_choice("binning", binning, get_args(Binning))
        self.binning = binning

    def reduced_terms(self, pixels: Pixels) -> dict[str, Tensor]:
        """The error. It belongs to an image, so it has no terms per pixel."""
        probs, truth, counted = pixels.rows()
        shape = probs.shape[:2]
        probs, truth = probs.flatten(2).flatten(0, 1), truth.flatten(2).flatten(0, 1)
        weight = torch.ones_like(probs)
        if counted is not None:
            weight = counted.expand(*shape, *counted.shape[2:]).reshape(weight.shape).to(weight)
        # Sums of (1, s, y) over the pixels of each bin, of every image and class at once.
        values = torch.stack([weight, weight * probs, weight * truth])
        total, confidence, frequency = self._bin_sums(values, probs)
        filled = ~(total < (EMPTY if self.binning == "soft" else 0.5))  # also where it is NaN
        gap = (confidence - frequency).abs() / torch.where(filled, total, 1.0)
        error = torch.where(filled, gap, 0.0).sum(1) / filled.sum(1).clamp_min(1)
        present = (truth > 0).any(1)
        per_class = torch.where(present, error, 0.0).view(shape)
        return {"ace": pixels.reduce_rows(per_class, present.view(shape), self.reduction)}

    def _bin_sums(self, values: Tensor, probs: Tensor) -> Tensor:
        """Values (3, N, P) summed over the bins of `probs` (N, P): (3, N, num_bins)."""
        bins = self.num_bins
        sums = values.new_zeros(*values.shape[:2], bins)
        if self.binning == "hard":
            index = (probs.detach() * bins).nan_to_num(0).long().clamp(0, bins - 1)
            return sums.scatter_add(2, index.expand_as(values), values)
        position = (probs * bins - 0.5).clamp(0, bins - 1)
        below = position.detach().nan_to_num(0).floor().long()
        share = position - below
        above = (below + 1).clamp_max(bins - 1)
        sums = sums.scatter_add(2, below.expand_as(values), values * (1 - share))
        return sums.scatter_add(2, above.expand_as(values), values * share)


class CEDiceACELoss(WeightedSum):
    """(Cross-entropy + squared Dice + average calibration error) / 3 (Barfoot et al., 2024).

    Args:
        ace_weight: weight of the calibration error; the others have weight 1/3.
        num_bins, binning: see `ACELoss`.
        ignore_index, fused, activation: see `SegmentationLoss`. On CUDA all three parts with hard
            bins run in the same kernels.

    Example:
        >>> logits = torch.randn(2, 4, 32, 32, requires_grad=True)
        >>> CEDiceACELoss(binning="soft")(logits, torch.randint(4, (2, 32, 32))).backward()
    """

    def __init__(
        self,
        ace_weight: float = 1 / 3,
        num_bins: int = 20,
        binning: Binning = "hard",
        *,
        ignore_index: int = IGNORE_INDEX,
        fused: Fused = "auto",
        activation: Activation = "softmax",
    ) -> None:
        super().__init__(
            CrossEntropyLoss(ignore_index=ignore_index, fused=fused, activation=activation),
            DiceLoss("squared", ignore_index=ignore_index, activation=activation),
            ACELoss(
                num_bins, binning, ignore_index=ignore_index, fused=fused, activation=activation
            ),
            weights=[1 / 3, 1 / 3, check_number("ace_weight", ace_weight, low=0)],
        )
        self.ignore_index = ignore_index
