"""The contract of a loss, and the sum of several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from segcal.core.checks import (
    check_choice,
    check_int,
    check_labels,
    check_number,
    values_can_be_read,
)
from segcal.losses.pixels import (
    IGNORE_INDEX,
    Pixels,
    check_reductions,
    check_shapes,
    fit_weights,
)

if TYPE_CHECKING:
    from segcal.losses.kernels import Plan, Recipe


Weights = Sequence[float] | Tensor | None
MOST_KINDS = 64  # of input that a loss remembers


class SegmentationLoss(nn.Module):
    """A loss: `loss(logits, target, image=None)` is a tensor, and `loss.terms(...)` its parts.

    The parts are named, carry their weights, and add up to the loss.

    Logits are (B, K, *S); the target is (B, *S) or (B, 1, *S) labels, or (B, K, *S) soft labels
    that sum to 1. K and the dimension (2-D or 3-D) come from the tensors. Half-precision logits
    are upcast to float32. The target, a soft one too, is a constant for the priors.

    Logits are not looked at: NaN in a pixel that counts comes out as a NaN loss. Labels out of
    range are named in an error on the CPU; on a GPU, where a look would wait for all queued work,
    and under torch.compile, they make the loss NaN unless SEGCAL_CHECK_LABELS=1.

    Args:
        ignore_index: pixels with this label leave the loss and their neighbours' priors. Soft
            targets cannot mark a pixel as ignored.
        class_weights: K weights w_k of the true class, for the cross-entropy part; the mean then
            divides by the summed weight of the targets, as torch does.
        reduction: "mean" over the pixels that count, "sum" over them, or "none": (B, *S), 0 where
            ignored. A batch with nothing to count has loss 0 and gradient 0.
        fused: "auto" uses the Triton kernels where they apply (a GPU, labels, up to 128 classes)
            and the plain functions elsewhere; False never does; True raises where they do not.
            Both compute the same; the kernels cannot be differentiated twice.
    """

    parts: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        ignore_index: int = IGNORE_INDEX,
        class_weights: Weights = None,
        reduction: str = "mean",
        fused: bool | str = "auto",
    ) -> None:
        super().__init__()
        check_reductions(reduction)
        check_int("ignore_index", ignore_index)
        if not isinstance(fused, bool):
            check_choice("fused", fused, ("auto",))
        self.fused = fused
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", as_weights(class_weights), persistent=False)

    def terms(
        self, logits: Tensor, target: Tensor, image: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The named, weighted parts whose sum is the loss."""
        fused = self._run_fused(logits, target, split=True)
        if fused is not None:
            return dict(zip(self.parts, fused, strict=False))
        return self._terms(Pixels(logits, target, self.ignore_index, self.class_weights))

    def forward(self, logits: Tensor, target: Tensor, image: Tensor | None = None) -> Tensor:
        fused = self._run_fused(logits, target, split=False)
        if fused is not None:
            return fused[0]
        return add_up(self._terms(Pixels(logits, target, self.ignore_index, self.class_weights)))

    def _run_fused(
        self, logits: Tensor, target: Tensor, *, split: bool
    ) -> tuple[Tensor, ...] | None:
        """The kernels' answer, or None where the plain functions are to be used."""
        compiling = torch.compiler.is_compiling()
        weighted = self._buffers["class_weights"] is not None
        kind = None if compiling else _kind_of_input(logits, target, split, weighted)
        if kind is not None and (known := self.__dict__.get("_plans", {}).get(kind)):
            return self._run_again(logits, target, *known)
        target = check_shapes(logits, target)
        if self.fused is False or (self.fused == "auto" and not logits.is_cuda):
            return None
        recipe = self._recipe(logits.ndim - 2)
        from segcal.losses import kernels

        reason: str | None = "it has no kernel"
        if recipe is not None:
            reason = kernels.why_not(logits, target, recipe, self.ignore_index)
        if recipe is None or reason is not None:
            if self.fused is True:
                raise ValueError(f"Expected `fused=True` to be possible, but {reason}.")
            return None
        check_labels("target", target, logits.shape[1], self.ignore_index)
        weights = fit_weights(self.class_weights, logits)
        plan = kernels.plan_for(
            logits,
            target,
            recipe,
            ignore_index=self.ignore_index,
            weighted=weighted,
            reduction=self.reduction,
            split=split,
        )
        if kind is not None:
            plans = self.__dict__.setdefault("_plans", {})
            if len(plans) >= MOST_KINDS:
                plans.clear()
            plans[kind] = plan, values_can_be_read(target)
        parts: tuple[Tensor, ...] | None = kernels.run(plan, logits, target, weights)
        return parts

    def _run_again(
        self, logits: Tensor, target: Tensor, plan: Plan, look: bool
    ) -> tuple[Tensor, ...]:
        """`_run_fused` on a kind of input that was found to be fit for the kernels before."""
        if target.ndim == logits.ndim:
            target = target.squeeze(1)
        if look:
            check_labels("target", target, logits.shape[1], self.ignore_index)
        weights = self._buffers["class_weights"]
        if weights is not None:
            weights = fit_weights(weights, logits)
        return cast(tuple[Tensor, ...], _kernels().run(plan, logits, target, weights))

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__.pop("_plans", None)
        if name == "patch_size" and isinstance(value, list):  # it could change unnoticed
            value = tuple(value)
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a file gets: not the plans, which hold compiled kernels."""
        return {key: value for key, value in self.__dict__.items() if key != "_plans"}

    def _recipe(self, axes: int) -> Recipe | None:
        """What the kernels are to compute on images of that many axes, or None: plain only."""
        return None

    def _terms(self, pixels: Pixels) -> dict[str, Tensor]:
        raise NotImplementedError

    def extra_repr(self) -> str:
        settings = {k: v for k, v in vars(self).items() if not k.startswith("_")}
        settings.pop("training")
        return ", ".join(f"{key}={value!r}" for key, value in settings.items())


class PenalisedLoss(SegmentationLoss):
    """Cross-entropy + λ · a penalty over the classes of every pixel.

    Args:
        penalty_weight: λ; 0 is cross-entropy, to the last bit. It may be set anew at any time.
        class_reduction: "mean" or "sum" of the penalty over the K classes.
        options: those of `SegmentationLoss`.
    """

    parts = ("ce", "penalty")

    def __init__(self, penalty_weight: float, class_reduction: str, **options: Any) -> None:
        super().__init__(**options)
        check_reductions("mean", class_reduction)
        self.penalty_weight = check_number("penalty_weight", penalty_weight, low=0)
        self.class_reduction = class_reduction

    def _terms(self, pixels: Pixels) -> dict[str, Tensor]:
        ce = pixels.reduce(pixels.nll(pixels.log_probs), self.reduction, weighted=True)
        if self.penalty_weight == 0:
            return {"ce": ce, "penalty": torch.zeros_like(ce)}
        penalty = pixels.reduce(self._penalty_map(pixels), self.reduction)
        return {"ce": ce, "penalty": self.penalty_weight * penalty}

    def _penalised_recipe(self, kind: str, **options: Any) -> Recipe:
        if self.penalty_weight == 0:
            return kernel_recipe("ce")
        return kernel_recipe(
            kind,
            penalty_weight=self.penalty_weight,
            class_reduction=self.class_reduction,
            **options,
        )

    def _penalty_map(self, pixels: Pixels) -> Tensor:
        """The penalty of every pixel, (B, *S); 0 where ignored."""
        raise NotImplementedError


class WeightedSum(nn.Module):
    """Σ_i w_i · loss_i. `WeightedSum(NACLLoss(), DiceLoss())` is NACL + Dice.

    Args:
        losses: one or more, sums included.
        weights: one per loss; 1 for each by default.

    The parts of `terms` carry the weights; where two losses name a part alike, and for the parts
    of a sum inside the sum, the position of the loss goes in front (`0.ce`, `1.ce`).
    """

    def __init__(
        self, *losses: SegmentationLoss | WeightedSum, weights: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        if not losses:
            raise ValueError("Expected at least one loss to add up, but got none.")
        for loss in losses:
            if not isinstance(loss, SegmentationLoss | WeightedSum):
                raise TypeError(
                    f"Expected the losses to be segcal's own, but got {type(loss).__name__}."
                )
        weights = [1.0] * len(losses) if weights is None else weights
        if len(weights) != len(losses):
            raise ValueError(
                f"Expected argument `weights` to have one value per loss ({len(losses)}), "
                f"but got {len(weights)}."
            )
        self.losses = nn.ModuleList(losses)
        self.weights = [check_number("weights", weight) for weight in weights]

    def terms(
        self, logits: Tensor, target: Tensor, image: Tensor | None = None
    ) -> dict[str, Tensor]:
        parts = [cast(SegmentationLoss, loss).terms(logits, target, image) for loss in self.losses]
        names = [name for part in parts for name in part]
        total: dict[str, Tensor] = {}
        for position, (weight, part) in enumerate(zip(self.weights, parts, strict=True)):
            for name, value in part.items():
                inner = isinstance(self.losses[position], WeightedSum)
                key = f"{position}.{name}" if inner or names.count(name) > 1 else name
                total[key] = weight * value
        return total

    def forward(self, logits: Tensor, target: Tensor, image: Tensor | None = None) -> Tensor:
        values = (
            (str(position), weight * loss(logits, target, image))
            for position, (weight, loss) in enumerate(zip(self.weights, self.losses, strict=True))
        )
        return add_up(dict(values))


def _kind_of_input(
    logits: Tensor, target: Tensor, split: bool, weighted: bool
) -> tuple[Any, ...] | None:
    """All that a plan of the kernels depends on but the settings; None for no plain tensors."""
    if type(logits) is not Tensor or type(target) is not Tensor:
        return None
    return (
        logits.shape, logits.stride(), logits.dtype, logits.device,
        target.shape, target.dtype, target.device, split, weighted,
    )  # fmt: skip


@cache
def _kernels() -> ModuleType:
    """The kernels, without the search that a statement inside a function makes every time."""
    from segcal.losses import kernels

    return kernels


def kernel_recipe(kind: str, **options: Any) -> Recipe:
    """What the kernels are to compute; they are imported only here and where they run."""
    from segcal.losses.kernels import Recipe

    return Recipe(kind, **options)


def loss_terms(loss: nn.Module, logits: Tensor, target: Tensor) -> dict[str, Tensor]:
    """The named parts of any loss; they add up to what `loss(logits, target)` returns.

    A `SegmentationLoss` or `WeightedSum` is split into its `terms`. Any other module, and a
    subclass that overrides `forward`, is called and has one part, `loss`.

    MONAI's losses with `to_onehot_y=True` expect labels as (B, 1, *S): the channel axis is added.

    Example:
        >>> loss = nn.CrossEntropyLoss()
        >>> list(loss_terms(loss, torch.zeros(1, 2, 4, 4), torch.zeros(1, 4, 4, dtype=torch.int64)))
        ['loss']
    """
    forward = getattr(loss.forward, "__func__", None)
    if forward is SegmentationLoss.forward or forward is WeightedSum.forward:
        return cast(SegmentationLoss, loss).terms(logits, target)
    one_hot = any(getattr(module, "to_onehot_y", False) for module in loss.modules())
    if one_hot and target.ndim == logits.ndim - 1:
        target = target.unsqueeze(1)
    value = loss(logits, target)
    if not isinstance(value, Tensor):
        raise TypeError(
            f"Expected the loss {type(loss).__name__} to return a tensor, "
            f"but got {type(value).__name__}."
        )
    return {"loss": value}


def add_up(terms: dict[str, Tensor]) -> Tensor:
    """The sum of the parts of a loss."""
    total, *others = terms.values()
    for value in others:
        total = total + value
    return total


def as_weights(class_weights: Weights) -> Tensor | None:
    if class_weights is None:
        return None
    wanted = "Expected argument `class_weights` to be K finite weights that are not negative"
    try:
        weights = torch.as_tensor(class_weights, dtype=torch.float32).detach().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{wanted}, but got {class_weights!r}.") from error
    readable = values_can_be_read(weights)
    if weights.ndim != 1 or (
        readable and not all(math.isfinite(w) and w >= 0 for w in weights.tolist())
    ):
        raise ValueError(f"{wanted}, but got {class_weights!r}.")
    return weights
