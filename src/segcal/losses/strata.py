"""Penalty weights by stratum: predicted class and distance to the predicted surface."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segcal.core.checks import check_int, check_number


class StratumWeights(nn.Module):
    """A penalty weight λ for each predicted class and each band around the predicted surfaces.

    Set as `strata` of a loss with a penalty, it replaces `penalty_weight`: the penalty of a pixel
    is multiplied by the λ of its stratum.

    Args:
        num_classes: the number of classes, K.
        distances: bounds of the bands in pixels. A pixel is within distance d of a surface if the
            (2d + 1)-wide window around it contains another predicted class. (1, 3) gives three
            bands: 1 pixel, 2 to 3 pixels, and the rest.
        weight: the initial λ of all strata.

    Example:
        >>> strata = StratumWeights(2, distances=(1,))
        >>> logits = torch.tensor([0.0, 0.0, 0.0, 5.0]).view(1, 1, 1, 4)
        >>> strata.index(torch.cat([1 - logits, logits], 1))
        tensor([[[1, 1, 0, 2]]])
    """

    weights: Tensor

    def __init__(
        self, num_classes: int, distances: Sequence[int] = (1, 3), weight: float = 0.1
    ) -> None:
        super().__init__()
        self.distances = tuple(sorted(check_int("distances", d, low=1) for d in distances))
        weight = check_number("weight", weight, low=0)
        size = num_classes * (len(self.distances) + 1)
        self.register_buffer("weights", torch.full((size,), weight))

    @torch.no_grad()
    def index(self, logits: Tensor) -> Tensor:
        """The stratum of every pixel, (B, *S): class · number of bands + band."""
        predicted = logits.argmax(1)
        pool = F.max_pool2d if predicted.ndim == 3 else F.max_pool3d
        values = torch.stack([predicted, -predicted], 1).to(torch.float32)
        band = torch.zeros_like(predicted)
        for distance in self.distances:
            window = pool(values, 2 * distance + 1, stride=1, padding=distance)
            band += window.sum(1) == 0  # the largest label is the smallest
        return predicted * (len(self.distances) + 1) + band

    def forward(self, logits: Tensor) -> Tensor:
        """λ of every pixel, (B, *S)."""
        return self.weights[self.index(logits)].to(logits.dtype)
