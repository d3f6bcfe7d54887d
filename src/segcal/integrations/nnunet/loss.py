"""nnU-Net's loss with its cross-entropy replaced by one of segcal's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from segcal.losses import make_loss

IGNORED = -100


class CalibratedLoss(nn.Module):
    """pixel loss + weight · Dice, called as nnU-Net calls its loss: `loss(logits, target)`.

    With labels the target is (B, 1, *S). With regions each of the R heads is a separate sigmoid,
    the target is (B, R, *S), 0 or 1, and where `ignore_label` is set one more channel marks the
    ignored voxels.

    Args:
        pixel: a loss that maps (logits, target) to a scalar; for regions one with activation
            "sigmoid" and the ignored label −100. It may contain a Dice loss of its own.
        dice: nnU-Net's Dice, `dice(logits, target, loss_mask=mask)`; lower is better.
        dice_weight: weight of Dice; 0 omits it.
        ignore_label: label of voxels that both parts skip.
        regions: whether the heads are regions.
    """

    def __init__(
        self,
        pixel: nn.Module,
        dice: nn.Module,
        *,
        dice_weight: float = 1.0,
        ignore_label: int | None = None,
        regions: bool = False,
    ) -> None:
        super().__init__()
        self.pixel = pixel
        self.dc = dice  # the attribute name of nnU-Net's own losses
        self.dice_weight, self.ignore_label, self.regions = dice_weight, ignore_label, regions

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        mask = self._mask(target)
        if self.regions:
            truth = target if mask is None else target[:, :-1]
            labels = truth.long()
            labels = labels if mask is None else labels.masked_fill(~mask, IGNORED)
            loss = self._without_autocast(logits, labels)
        else:
            truth = target if mask is None else torch.where(mask, target, 0)
            loss = self._without_autocast(logits, target)
        if self.dice_weight == 0:
            return loss
        dice: Tensor = self.dc(logits, truth, loss_mask=mask)
        return loss + self.dice_weight * dice

    def _mask(self, target: Tensor) -> Tensor | None:
        """(B, 1, *S), True where a voxel is used; None where all are."""
        if self.ignore_label is None:
            return None
        return target[:, -1:] == 0 if self.regions else target != self.ignore_label

    def _without_autocast(self, logits: Tensor, target: Tensor) -> Tensor:
        """Compute in float32: float16 would round the priors, which are fractions of a patch."""
        autocast_off = torch.autocast("cuda", enabled=False) if logits.is_cuda else nullcontext()
        with autocast_off:
            value: Tensor = self.pixel(logits, target)
        return value


def pixel_loss(
    name: str, options: Mapping[str, Any], *, ignore_label: int | None, regions: bool
) -> nn.Module:
    """The loss of that name; a ValueError if it has no form for regions."""
    ignore = IGNORED if regions or ignore_label is None else ignore_label
    heads: dict[str, Any] = {"activation": "sigmoid"} if regions else {}
    return make_loss(name, ignore_index=ignore, **heads, **options)


def parse_options(text: str) -> dict[str, Any]:
    """Options as in `penalty_weight=0.2 prior=gaussian patch_size=[1,3,3]`.

    Example:
        >>> parse_options("penalty_weight=0.2 prior=gaussian patch_size=[1,3,3]")
        {'penalty_weight': 0.2, 'prior': 'gaussian', 'patch_size': [1, 3, 3]}
    """
    options: dict[str, Any] = {}
    for part in text.split():
        name, equals, value = part.partition("=")
        if not (name and equals and value):
            raise ValueError(
                f"SEGCAL_NNUNET_OPTIONS contains {part!r}; write name=value, separated by spaces"
            )
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options
