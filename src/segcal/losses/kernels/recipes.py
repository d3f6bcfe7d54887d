"""What the kernels have to compute for a loss, and which losses they support."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

from torch import nn

from segcal.losses.base import PenalizedLoss
from segcal.losses.cross_entropy import CrossEntropyLoss, ECPLoss, FocalLoss
from segcal.losses.margin import MbLSLoss
from segcal.losses.nacl import NACLLoss
from segcal.losses.priors import Prior
from segcal.losses.smoothing import LabelSmoothingLoss, SVLSLoss

HAS_TRITON = find_spec("triton") is not None
# A subclass that overrides one of these computes something else than the kernel of its base class.
_FORMULA = ("terms", "pixel_terms", "pixel_penalty")


class Recipe(NamedTuple):
    """What to compute. Hashable, because it is part of the key of a `Plan`.

    Attributes:
        kind: the formula; a key of `KINDS` in pixel_loss.
        terms: names of the terms.
        parameter: γ of focal, α of LS or m of MbLS.
        penalty_weight: λ.
        class_reduction: "mean" or "sum" of the penalty over the classes.
        prior: τ of SVLS and NACL.
        square: whether the penalty is quadratic.
        softmax: whether the penalty is on the softmax instead of the logits.
    """

    kind: str
    terms: tuple[str, ...] = ("ce", "penalty")
    parameter: float = 0.0
    penalty_weight: float = 0.0
    class_reduction: str = "mean"
    prior: Prior | None = None
    square: bool = False
    softmax: bool = False


def supports(loss: nn.Module) -> bool:
    """Whether the fused kernels can compute this loss on CUDA.

    They support segcal's own losses without Dice, with segcal's own priors. Your own subclasses
    are supported as long as they keep the formula. Other losses run in torch.

    Example:
        >>> supports(nn.CrossEntropyLoss())
        False
    """
    return HAS_TRITON and recipe_of(loss) is not None


def recipe_of(loss: nn.Module) -> Recipe | None:
    """The recipe for this loss with its current settings, or None if there is no kernel for it."""
    kind = type(loss)
    write = _RECIPES.get(kind)
    if write is None:
        base = next((parent for parent in kind.__mro__ if parent in _RECIPES), None)
        if base is None:
            return None
        for name in _FORMULA:
            if getattr(kind, name, None) is not getattr(base, name, None):
                return None
        write = _RECIPES[base]
    return write(loss)


def _focal(loss: Any) -> Recipe:
    return Recipe("focal" if loss.gamma else "ce", ("focal",), loss.gamma)


def _label_smoothing(loss: Any) -> Recipe:
    return Recipe("ls" if loss.alpha else "ce", ("ls",), loss.alpha)


def _svls(loss: Any) -> Recipe | None:
    return Recipe("svls", ("svls",), prior=loss.prior) if type(loss.prior) is Prior else None


def _penalized(kind: str, loss: PenalizedLoss, **options: Any) -> Recipe:
    if loss.penalty_weight == 0:
        return Recipe("ce")
    return Recipe(
        kind,
        penalty_weight=loss.penalty_weight,
        class_reduction=loss.class_reduction,
        **options,
    )


def _nacl(loss: Any) -> Recipe | None:
    if type(loss.prior) is not Prior:
        return None
    square, softmax = loss.penalty == "l2", loss.constrain == "softmax"
    return _penalized("nacl", loss, prior=loss.prior, square=square, softmax=softmax)


_RECIPES: dict[type[nn.Module], Callable[[Any], Recipe | None]] = {
    CrossEntropyLoss: lambda loss: Recipe("ce", ("ce",)),
    FocalLoss: _focal,
    LabelSmoothingLoss: _label_smoothing,
    SVLSLoss: _svls,
    ECPLoss: lambda loss: _penalized("ecp", loss),
    MbLSLoss: lambda loss: _penalized("mbls", loss, parameter=loss.margin),
    NACLLoss: _nacl,
}
