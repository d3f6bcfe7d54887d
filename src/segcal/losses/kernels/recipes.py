"""What the kernels have to compute for a loss, and which losses they support."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

from torch import nn

from segcal.losses.ace import ACELoss
from segcal.losses.base import PenalizedLoss, WeightedSum
from segcal.losses.cross_entropy import CrossEntropyLoss, ECPLoss, FocalLoss
from segcal.losses.dice import CEDiceLoss, DiceLoss
from segcal.losses.margin import MbLSLoss
from segcal.losses.nacl import NACLLoss
from segcal.losses.priors import Prior
from segcal.losses.smoothing import LabelSmoothingLoss, SVLSLoss

HAS_TRITON = find_spec("triton") is not None
MAX_BINS = 63  # all bins of a class stay in the registers of a thread
# A subclass that overrides one of these computes something else than the kernel of its base class.
_FORMULA = ("terms", "reduced_terms", "pixel_terms", "pixel_penalty", "reduce_classes")


class DiceTerm(NamedTuple):
    """The options of a `DiceLoss` that is added to a pixel loss, and its weight."""

    form: str
    over: str
    smooth: float
    weight: float


class ACETerm(NamedTuple):
    """The options of an `ACELoss` with hard bins, alone or in a sum, and its weight."""

    num_bins: int
    weight: float


class Recipe(NamedTuple):
    """What to compute. Hashable, because it is part of the key of a `Plan`."""

    kind: str  # the formula; a key of `KINDS` in pixel_loss
    terms: tuple[str, ...] = ("ce", "penalty")
    parameter: float = 0.0  # γ of focal, α of LS or m of MbLS
    penalty_weight: float = 0.0
    class_reduction: str = "mean"
    prior: Prior | None = None
    square: bool = False  # whether the penalty is quadratic
    softmax: bool = False  # whether the penalty is on the softmax instead of the logits
    weight: float = 1.0  # of the pixel loss in a sum with Dice or ACE
    dice: DiceTerm | None = None
    ace: ACETerm | None = None


def supports(loss: nn.Module) -> bool:
    """Whether the fused kernels can compute this loss on CUDA.

    They support segcal's own losses per pixel, with segcal's own priors, also with Dice:
    `CEDiceLoss` and `WeightedSum(loss, DiceLoss(...))`; and `ACELoss` with hard bins, alone or
    after cross-entropy (and Dice), as in `CEDiceACELoss`. Your own subclasses are supported as
    long as they keep the formula. Other losses run in torch.

    Example:
        >>> supports(nn.CrossEntropyLoss())
        False
    """
    return HAS_TRITON and recipe_of(loss) is not None


def recipe_of(loss: nn.Module) -> Recipe | None:
    """The recipe for this loss with its current settings, or None if there is no kernel for it."""
    if isinstance(loss, WeightedSum):
        return _sum(loss)
    kind = type(loss)
    base = next((parent for parent in kind.__mro__ if parent in _RECIPES), None)
    if base is None:
        return None
    if base is not kind:
        for name in _FORMULA:
            if getattr(kind, name, None) is not getattr(base, name, None):
                return None
    recipe = _RECIPES[base](loss)
    if recipe is None:
        return None
    own_prior = recipe.prior is not None and type(recipe.prior) is not Prior
    # Sigmoid heads reach the kernels as two classes, of which Dice and ACE count one.
    by_image = recipe.dice is not None or recipe.ace is not None
    heads_by_image = by_image and getattr(loss, "activation", "") == "sigmoid"
    by_stratum = getattr(loss, "strata", None) is not None
    return None if own_prior or heads_by_image or by_stratum else recipe


def _sum(loss: WeightedSum) -> Recipe | None:
    """The recipe for a pixel loss, then Dice or ACE or both, over the same pixels."""
    pixel, *others = loss.losses
    recipe = recipe_of(pixel)
    names = ("ignore_index", "reduction", "activation")
    if recipe is None or recipe.dice or recipe.ace or "dice" in recipe.terms or not others:
        return None
    if pixel.activation == "sigmoid":
        return None
    recipe = recipe._replace(weight=loss.weights[0])
    for other, weight in zip(others, loss.weights[1:], strict=True):
        part: Any = other
        if type(part) is DiceLoss and not recipe.dice and not recipe.ace:
            recipe = recipe._replace(dice=DiceTerm(part.form, part.over, part.smooth, weight))
        elif type(part) is ACELoss and not recipe.ace and recipe.kind == "ce" and _ace(part):
            recipe = recipe._replace(ace=ACETerm(part.num_bins, weight))
        else:
            return None
        if any(getattr(pixel, name) != getattr(part, name) for name in names):
            return None
    return recipe


def _ace(loss: ACELoss) -> Recipe | None:
    if loss.binning == "soft" or loss.num_bins > MAX_BINS:
        return None
    return Recipe("none", ("ace",), ace=ACETerm(loss.num_bins, 1.0))


def _ce_dice(loss: CEDiceLoss) -> Recipe:
    if loss.dice_weight == 0:
        return Recipe("ce", ("ce", "dice"))
    term = DiceTerm(loss.form, loss.over, loss.smooth, loss.dice_weight)
    return Recipe("ce", ("ce",), dice=term)


def _penalized(kind: str, loss: PenalizedLoss, **options: Any) -> Recipe:
    if loss.penalty_weight == 0:
        return Recipe("ce")
    weight, reduction = loss.penalty_weight, loss.class_reduction
    return Recipe(kind, penalty_weight=weight, class_reduction=reduction, **options)


def _nacl(loss: NACLLoss) -> Recipe:
    square, softmax = loss.penalty == "l2", loss.constrain == "softmax"
    return _penalized("nacl", loss, prior=loss.prior, square=square, softmax=softmax)


_RECIPES: dict[type[nn.Module], Callable[[Any], Recipe | None]] = {
    ACELoss: _ace,
    CrossEntropyLoss: lambda loss: Recipe("ce", ("ce",)),
    CEDiceLoss: _ce_dice,
    FocalLoss: lambda loss: Recipe("focal" if loss.gamma else "ce", ("focal",), loss.gamma),
    LabelSmoothingLoss: lambda loss: Recipe("ls" if loss.alpha else "ce", ("ls",), loss.alpha),
    SVLSLoss: lambda loss: Recipe("svls", ("svls",), prior=loss.prior),
    ECPLoss: lambda loss: _penalized("ecp", loss),
    MbLSLoss: lambda loss: _penalized("mbls", loss, parameter=loss.margin),
    NACLLoss: _nacl,
}
