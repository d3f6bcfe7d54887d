"""A loss and networks as a user would write them, found by import path."""

import torch
from torch import Tensor, nn

from segcal.losses import CrossEntropyLoss


class ThousandfoldLoss(CrossEntropyLoss):
    """A subclass whose `forward` returns something else than its parts."""

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        return 1000 * super().forward(logits, target)


class BrierLoss(nn.Module):
    """A loss that knows nothing about segcal."""

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        one_hot = torch.nn.functional.one_hot(target, logits.shape[1]).movedim(-1, 1)
        return self.weight * (logits.softmax(1) - one_hot).square().sum(1).mean()


class PixelLoss(BrierLoss):
    """It returns one value per pixel."""

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits, target, reduction="none")


class TwoConvs(nn.Module):
    """A 2-D network with argument names of its own choice."""

    def __init__(self, in_channels: int, num_classes: int, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, num_classes, 1)
        )

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.layers(image)
        return logits


def not_a_network(**options: object) -> None:
    raise AssertionError("a function from a file must not be called")
