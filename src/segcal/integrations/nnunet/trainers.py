"""Trainers for `nnUNetv2_train -tr NAME`: nnU-Net with a calibrated loss instead of cross-entropy.

Everything else is nnU-Net's: Dice (batch Dice, DDP, torch.compile), deep supervision, ignore label,
schedule and augmentation.

To set an option permanently, define a subclass; its results have a separate folder:

    class nnUNetTrainerNACLThick(nnUNetTrainerNACL):
        loss_options = {"penalty_weight": 0.2, "patch_size": (1, 3, 3)}

To try an option: `SEGCAL_NNUNET_OPTIONS="penalty_weight=0.2" nnUNetv2_train …` (same folder).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from segcal.core.checks import check_number, require
from segcal.integrations.nnunet import TRAINERS
from segcal.integrations.nnunet.loss import CalibratedLoss, parse_options, pixel_loss
from segcal.losses import DiceForm, DiceLoss, DiceOver, WeightedSum

require("nnunetv2")
from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper  # noqa: E402
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer  # noqa: E402


class SegcalTrainer(nnUNetTrainer):
    """nnU-Net with another pixel loss instead of cross-entropy.

    Attributes:
        loss_name: a name in `segcal.losses.LOSSES`, or an import path.
        loss_options: options that differ from the loss's defaults.
        dice_weight: weight of Dice.
        dice_form: None is nnU-Net's Dice; otherwise a form of `segcal.losses.DiceLoss`, over all
            classes, and in DDP over the batch of each process.
    """

    loss_name: ClassVar[str] = "ce"
    loss_options: ClassVar[Mapping[str, Any]] = {}
    dice_weight: ClassVar[float] = 1.0
    dice_form: ClassVar[DiceForm | None] = None

    def _build_loss(self) -> nn.Module:
        chosen = parse_options(os.environ.get("SEGCAL_NNUNET_OPTIONS", ""))
        options = {**self.loss_options, **chosen}
        weight = check_number("dice_weight", options.pop("dice_weight", self.dice_weight), low=0)
        form: DiceForm | None = options.pop("dice_form", self.dice_form)
        labels = self.label_manager
        heads: dict[str, Any] = {"ignore_label": labels.ignore_label, "regions": labels.has_regions}
        pixel: Any = pixel_loss(self.loss_name, options, **heads)
        about = f"{self.loss_name} + {weight:g} · {f'{form} ' if form else ''}Dice, {pixel}"
        if form is not None:
            over: DiceOver = "batch" if self.configuration_manager.batch_dice else "image"
            shared = {"ignore_index": pixel.ignore_index, "activation": pixel.activation}
            dice = DiceLoss(form, over, **shared)
            pixel, weight = WeightedSum(pixel, dice, weights=[1.0, weight]), 0.0
        built: nn.Module = super()._build_loss()
        deep = isinstance(built, DeepSupervisionWrapper)
        own: Any = built.loss if deep else built
        loss = CalibratedLoss(pixel, own.dc, dice_weight=weight, **heads)
        self.print_to_log_file(f"segcal: {about}")
        if not deep:
            return loss
        built.loss = loss
        return built


class nnUNetTrainerNACL(SegcalTrainer):
    """Neighbor-aware calibration loss + Dice."""

    loss_name = "nacl"


class nnUNetTrainerSVLS(SegcalTrainer):
    """Spatially varying label smoothing + Dice."""

    loss_name = "svls"


class nnUNetTrainerMbLS(SegcalTrainer):
    """Margin-based label smoothing + Dice."""

    loss_name = "mbls"


class nnUNetTrainerLS(SegcalTrainer):
    """Label smoothing + Dice."""

    loss_name = "ls"


class nnUNetTrainerECP(SegcalTrainer):
    """Explicit confidence penalty + Dice."""

    loss_name = "ecp"


class nnUNetTrainerFocal(SegcalTrainer):
    """Focal loss + Dice."""

    loss_name = "focal"


class nnUNetTrainerProperDice(SegcalTrainer):
    """Cross-entropy + Dice of the form "proper", which does not make a network over-confident."""

    loss_name = "ce"
    dice_form = "proper"


class nnUNetTrainerNACLProperDice(SegcalTrainer):
    """Neighbor-aware calibration loss + Dice of the form "proper"."""

    loss_name = "nacl"
    dice_form = "proper"


class nnUNetTrainerACE(SegcalTrainer):
    """(Cross-entropy + squared Dice + average calibration error) / 3."""

    loss_name = "ce_dice_ace"
    dice_weight = 0.0


__all__ = ["SegcalTrainer", *TRAINERS]
