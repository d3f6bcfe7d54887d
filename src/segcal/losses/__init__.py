"""Losses that keep the confidence of a segmentation network calibrated, and common baselines.

A loss is any module that maps (logits, target) to a scalar. segcal's own derive from
`SegmentationLoss`: `loss.terms(logits, target)` returns their named parts, which add up to the
loss. `make_loss` builds a loss from its name in `LOSSES` or its import path.
"""

from inspect import Parameter, signature
from typing import Any

from torch import nn

from segcal.core.checks import check_options
from segcal.losses.ace import ACELoss, CEDiceACELoss
from segcal.losses.base import PenalizedLoss, SegmentationLoss, WeightedSum, add_up, loss_terms
from segcal.losses.crac import CRaCLoss
from segcal.losses.cross_entropy import CrossEntropyLoss, ECPLoss, FocalLoss
from segcal.losses.dice import (
    CEDiceLoss,
    CEProperDiceLoss,
    CESquaredDiceLoss,
    DiceForm,
    DiceLoss,
    DiceOver,
)
from segcal.losses.margin import MbLSLoss
from segcal.losses.nacl import NACLLoss
from segcal.losses.pixels import Pixels
from segcal.losses.priors import PRIORS, Prior, make_prior, neighborhood_prior
from segcal.losses.smoothing import LabelSmoothingLoss, SVLSLoss
from segcal.losses.strata import StratumWeights
from segcal.registry import Registry

LOSSES: Registry[type[nn.Module]] = Registry(
    "loss",
    "segcal.losses",
    lambda thing: isinstance(thing, type) and issubclass(thing, nn.Module),
    "a subclass of torch.nn.Module",
)
LOSSES.register("ce", CrossEntropyLoss)
LOSSES.register("ce_dice", CEDiceLoss)
LOSSES.register("ce_squared_dice", CESquaredDiceLoss)
LOSSES.register("ce_proper_dice", CEProperDiceLoss)
LOSSES.register("ml1_ace", ACELoss)
LOSSES.register("ce_dice_ace", CEDiceACELoss)
LOSSES.register("focal", FocalLoss)
LOSSES.register("ecp", ECPLoss)
LOSSES.register("ls", LabelSmoothingLoss)
LOSSES.register("svls", SVLSLoss)
LOSSES.register("mbls", MbLSLoss)
LOSSES.register("nacl", NACLLoss)
LOSSES.register("crac", CRaCLoss)


def make_loss(loss: str, **options: Any) -> nn.Module:
    """The loss with this name or import path and these options.

    Args:
        loss: a name in `LOSSES`, or an import path `package.module:MyLoss`.
        options: arguments of the class.

    Example:
        >>> make_loss("mbls", margin=3.0).margin
        3.0
        >>> make_loss("torch.nn:CrossEntropyLoss", label_smoothing=0.1)
        CrossEntropyLoss()
    """
    found = LOSSES.get(loss)
    known = _options(found)
    if known is not None:
        check_options(f"loss {loss!r}", options, known)
    return found(**options)


def _options(loss: type[nn.Module]) -> list[str] | None:
    """The options of a loss and of the base classes that it passes `**options` on to.

    None if the last of them takes any option.
    """
    names: list[str] = []
    for kind in loss.__mro__:
        if "__init__" in vars(kind):
            _, *parameters = signature(vars(kind)["__init__"]).parameters.values()
            closed = [p.name for p in parameters if p.kind is not Parameter.VAR_KEYWORD]
            names += [name for name in closed if name not in names]
            if len(closed) == len(parameters):
                return names
    return None


__all__ = [
    "LOSSES", "PRIORS", "ACELoss", "CEDiceACELoss", "CEDiceLoss", "CEProperDiceLoss",
    "CESquaredDiceLoss", "CRaCLoss", "CrossEntropyLoss", "DiceForm", "DiceLoss", "DiceOver",
    "ECPLoss", "FocalLoss", "LabelSmoothingLoss", "MbLSLoss", "NACLLoss", "PenalizedLoss", "Pixels",
    "Prior", "SVLSLoss", "SegmentationLoss", "StratumWeights", "WeightedSum", "add_up",
    "loss_terms", "make_loss", "make_prior", "neighborhood_prior",
]  # fmt: skip
