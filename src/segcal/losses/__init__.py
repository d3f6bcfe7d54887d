"""Losses that keep a segmentation network's confidence honest, and those they are compared with.

Every module is a `SegmentationLoss`: `loss(logits, target)` is a tensor, `loss.terms(...)` its
named parts. The functions are the formulas themselves.
"""

from inspect import signature
from typing import Any

from segcal.core.checks import check_choice
from segcal.losses.base import (
    PenalisedLoss,
    SegmentationLoss,
    WeightedSum,
    add_up,
    loss_terms,
)
from segcal.losses.cross_entropy import (
    CrossEntropyLoss,
    ECPLoss,
    FocalLoss,
    cross_entropy,
    entropy_penalty,
    focal,
)
from segcal.losses.dice import CEDiceLoss, DiceLoss, soft_dice
from segcal.losses.margin import MbLSLoss, margin_penalty
from segcal.losses.nacl import NACLLoss, neighbour_penalty
from segcal.losses.smoothing import LabelSmoothingLoss, SVLSLoss, label_smoothing, svls

LOSSES: dict[str, type[SegmentationLoss]] = {
    "ce": CrossEntropyLoss,
    "ce_dice": CEDiceLoss,
    "focal": FocalLoss,
    "ecp": ECPLoss,
    "ls": LabelSmoothingLoss,
    "svls": SVLSLoss,
    "mbls": MbLSLoss,
    "nacl": NACLLoss,
}


def make_loss(name: str, **options: Any) -> SegmentationLoss:
    """The loss of that name in `LOSSES`, with these options.

    Example:
        >>> make_loss("mbls", margin=3.0).margin
        3.0
    """
    check_choice("name", name, LOSSES)
    allowed = {
        parameter
        for kind in (LOSSES[name], PenalisedLoss, SegmentationLoss)
        for parameter in signature(kind).parameters
        if issubclass(LOSSES[name], kind) and parameter != "options"
    }
    for option in options:
        check_choice(f"option of {name}", option, sorted(allowed))
    return LOSSES[name](**options)


__all__ = [
    "LOSSES",
    "CEDiceLoss",
    "CrossEntropyLoss",
    "DiceLoss",
    "ECPLoss",
    "FocalLoss",
    "LabelSmoothingLoss",
    "MbLSLoss",
    "NACLLoss",
    "SVLSLoss",
    "SegmentationLoss",
    "WeightedSum",
    "add_up",
    "cross_entropy",
    "entropy_penalty",
    "focal",
    "label_smoothing",
    "loss_terms",
    "make_loss",
    "margin_penalty",
    "neighbour_penalty",
    "soft_dice",
    "svls",
]
