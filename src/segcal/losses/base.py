"""The contract of a loss, cross-entropy with a penalty, and the weighted sum of several losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict, Unpack, cast, get_args

import torch
from torch import Tensor, nn

from segcal.core.checks import check_choice, check_int, check_number, values_can_be_read
from segcal.losses.pixels import IGNORE_INDEX, Activation, Pixels, Reduction, binary_heads
from segcal.losses.strata import StratumWeights

Weights = Sequence[float] | Tensor | None
Fused = bool | Literal["auto"]
ClassReduction = Literal["mean", "sum"]


class CommonOptions(TypedDict, total=False):
    """The options of every loss; see `SegmentationLoss`."""

    ignore_index: int
    class_weights: Weights
    reduction: Reduction
    fused: Fused
    activation: Activation


class PenaltyOptions(CommonOptions, total=False):
    """The options of every loss with a penalty; see `PenalizedLoss`."""

    class_reduction: ClassReduction


class SegmentationLoss(nn.Module):
    """A loss over the pixels of a batch: `loss(logits, target)` is a scalar.

    `loss.terms(logits, target)` returns its named parts, which add up to the loss.

    To write your own loss, subclass it and override `pixel_terms`. Checks of the input, ignored
    pixels, half precision and the reduction are handled here. If some of your terms use the class
    weights, name them in the class attribute `weighted_terms`: their mean is divided by the summed
    weight of the targets.

    Labels out of range raise on the CPU. On a GPU, where a check would wait for all queued work,
    and under torch.compile they make the loss NaN, unless SEGCAL_CHECK_LABELS=1. Logits are not
    checked: NaN in a pixel that counts makes the loss NaN.

    Args:
        ignore_index: pixels with this label do not count, neither in the loss nor in the priors
            of their neighbors. With soft targets, pixels whose K values are all 0 do not count.
        class_weights: K weights w_k of the true class, used by the cross-entropy part. The mean
            then divides by the summed weight of the targets, as torch does.
        reduction: "mean" over the pixels that count, "sum" over them, or "none": a map (B, *S)
            that is 0 where ignored. If no pixel counts, loss and gradient are 0.
        fused: "auto" uses the Triton kernels where they apply (CUDA, integer labels, up to 128
            classes) and torch elsewhere; False never uses them; True raises where they do not
            apply. Both compute the same. The kernels cannot be differentiated twice.
        activation: "softmax" over K classes, or "sigmoid": K independent heads for regions that
            may overlap. Each head is then a problem of two classes, outside and inside, with logits
            0 and l; the loss is their mean, and `class_weights` are those of outside and inside.

    Shape:
        - logits: (B, K, *S), S 2-D or 3-D. Half precision is upcast to float32.
        - target: labels (B, *S) or (B, 1, *S), or soft labels (B, K, *S) that sum to 1, or are all
          0 where ignored. With activation "sigmoid" (B, K, *S): 0, 1 or `ignore_index`, or soft in
          [0, 1].
        - output: scalar, or (B, *S) if `reduction` is "none"; (B, K, *S) with "sigmoid".

    Example:
        >>> class BrierLoss(SegmentationLoss):
        ...     def pixel_terms(self, pixels):
        ...         gap = pixels.log_probs.exp() - pixels.one_hot()
        ...         return {"brier": gap.square().sum(1)}
        >>> target = torch.zeros(1, 4, 4, dtype=torch.int64)
        >>> BrierLoss()(torch.zeros(1, 2, 4, 4), target)
        tensor(0.5000)
    """

    weighted_terms: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        ignore_index: int = IGNORE_INDEX,
        class_weights: Weights = None,
        reduction: Reduction = "mean",
        fused: Fused = "auto",
        activation: Activation = "softmax",
    ) -> None:
        super().__init__()
        check_choice("reduction", reduction, get_args(Reduction))
        check_choice("activation", activation, get_args(Activation))
        check_int("ignore_index", ignore_index)
        if not isinstance(fused, bool):
            check_choice("fused", fused, ("auto",))
        self.fused = fused
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.activation = activation
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", as_weights(class_weights), persistent=False)

    def pixel_terms(self, pixels: Pixels) -> dict[str, Tensor]:
        """The named terms (B, *S) of the loss at every pixel: the method that a loss defines.

        The terms add up to the loss. Values of ignored pixels have no effect. See `Pixels` for
        what the batch offers: `pixels.logits`, `pixels.log_probs`, `pixels.one_hot()` and more.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `pixel_terms`")

    def terms(self, logits: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The named parts of the loss, reduced; they add up to `loss(logits, target)`."""
        fused = self._run_kernels(logits, target, split=True)
        if fused is not None:
            return fused
        weights = self.class_weights
        return self.reduced_terms(
            Pixels(logits, target, self.ignore_index, weights, self.activation)
        )

    def reduced_terms(self, pixels: Pixels) -> dict[str, Tensor]:
        """The named terms, reduced. Losses that are no sum over pixels override it."""
        return {
            name: pixels.reduce(per_pixel, self.reduction, weighted=name in self.weighted_terms)
            for name, per_pixel in self.pixel_terms(pixels).items()
        }

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        fused = self._run_kernels(logits, target, split=False)
        return add_up(self.terms(logits, target) if fused is None else fused)

    def _run_kernels(
        self, logits: Tensor, target: Tensor, *, split: bool
    ) -> dict[str, Tensor] | None:
        """The terms (or, unless `split`, their sum) from the fused kernels; None to use torch."""
        if self.fused is False or (self.fused == "auto" and not getattr(logits, "is_cuda", False)):
            return None
        from segcal.losses import kernels

        heads = logits.shape[:2]
        if self.activation == "sigmoid":
            logits, target = binary_heads(logits, target)
        terms = kernels.run(self, logits, target, split=split)
        if terms is None or self.activation == "softmax" or self.reduction != "none":
            return terms
        return {name: value.view(*heads, *value.shape[1:]) for name, value in terms.items()}

    def extra_repr(self) -> str:
        settings = {k: v for k, v in vars(self).items() if not k.startswith("_")}
        settings.pop("training")
        return ", ".join(f"{key}={value!r}" for key, value in settings.items())


class PenalizedLoss(SegmentationLoss):
    """Cross-entropy + λ · penalty. A subclass defines `pixel_penalty`.

    Args:
        penalty_weight: λ; 0 is exactly cross-entropy. It may be changed at any time. If `strata` is
            set, each pixel has the λ of its stratum instead.
        class_reduction: "mean" or "sum" of the penalty over the K classes. The papers tuned their
            λ for the mean; the NACL paper prints the sum.
        ignore_index, class_weights, reduction, fused: see `SegmentationLoss`.
    """

    weighted_terms = ("ce",)

    def __init__(
        self,
        penalty_weight: float = 0.1,
        *,
        class_reduction: ClassReduction = "mean",
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        check_choice("class_reduction", class_reduction, get_args(ClassReduction))
        self.penalty_weight = check_number("penalty_weight", penalty_weight, low=0)
        self.class_reduction = class_reduction
        self.strata: StratumWeights | None = None

    def pixel_penalty(self, pixels: Pixels) -> Tensor:
        """The penalty of every pixel, (B, *S), without λ."""
        raise NotImplementedError(f"{type(self).__name__} does not define `pixel_penalty`")

    def reduce_classes(self, per_class: Tensor) -> Tensor:
        """(B, K, *S) → (B, *S): the mean or sum over the classes."""
        return per_class.mean(1) if self.class_reduction == "mean" else per_class.sum(1)

    def pixel_terms(self, pixels: Pixels) -> dict[str, Tensor]:
        if self.penalty_weight == 0 and self.strata is None:
            ce = pixels.nll(pixels.log_probs)
            return {"ce": ce, "penalty": torch.zeros_like(ce)}
        # The penalty first: a prior needs much memory, and the softmax is not yet there.
        weight = self.penalty_weight if self.strata is None else self.strata(pixels.logits)
        penalty = weight * self.pixel_penalty(pixels)
        return {"ce": pixels.nll(pixels.log_probs), "penalty": penalty}


class WeightedSum(nn.Module):
    """Σ_i w_i · loss_i: `WeightedSum(NACLLoss(), DiceLoss())` is NACL + Dice.

    The parts in `terms` carry the weights. A loss that has no named parts appears under the name
    of its class. Where two losses share a name, and for the parts of a sum inside the sum, the
    position of the loss is put in front (`0.ce`, `1.ce`). On CUDA, a loss that the fused kernels
    support and a `DiceLoss` after it run in the same kernels, and so do `CrossEntropyLoss`,
    `DiceLoss` and `ACELoss` in this order.

    Args:
        losses: any modules that map (logits, target) to a scalar: segcal's, torch's, MONAI's, sums.
        weights: one per loss; 1 for each by default.

    Example:
        >>> loss = WeightedSum(nn.CrossEntropyLoss(), weights=[2.0])
        >>> loss.terms(torch.zeros(1, 2, 4, 4), torch.zeros(1, 4, 4, dtype=torch.int64))
        {'CrossEntropyLoss': tensor(1.3863)}
    """

    def __init__(self, *losses: nn.Module, weights: Sequence[float] | None = None) -> None:
        super().__init__()
        weights = [1.0] * len(losses) if weights is None else weights
        if len(weights) != len(losses):
            raise ValueError(
                f"Expected argument `weights` to have one value per loss ({len(losses)}), "
                f"but got {len(weights)}."
            )
        self.losses = nn.ModuleList(losses)
        self.weights = [check_number("weights", weight) for weight in weights]

    def terms(self, logits: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The named, weighted parts of all losses; they add up to the sum."""
        fused = self._run_kernels(logits, target, split=True)
        if fused is not None:
            return fused
        parts = []
        for loss in self.losses:
            part = loss_terms(loss, logits, target)
            parts.append({type(loss).__name__: part["loss"]} if list(part) == ["loss"] else part)
        names = [name for part in parts for name in part]
        total: dict[str, Tensor] = {}
        for position, (weight, part) in enumerate(zip(self.weights, parts, strict=True)):
            inner = isinstance(self.losses[position], WeightedSum)
            for name, value in part.items():
                key = f"{position}.{name}" if inner or names.count(name) > 1 else name
                total[key] = weight * value
        return total

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        fused = self._run_kernels(logits, target, split=False)
        if fused is not None:
            return add_up(fused)
        pairs = enumerate(zip(self.weights, self.losses, strict=True))
        return add_up({str(i): w * call_loss(loss, logits, target) for i, (w, loss) in pairs})

    def _run_kernels(
        self, logits: Tensor, target: Tensor, *, split: bool
    ) -> dict[str, Tensor] | None:
        """As of a `SegmentationLoss`, if this is such a loss with Dice or ACE."""
        fused = getattr(self.losses[0], "fused", False) if len(self.losses) in (2, 3) else False
        if fused is False or (fused == "auto" and not getattr(logits, "is_cuda", False)):
            return None
        from segcal.losses import kernels

        return kernels.run(self, logits, target, split=split)


def loss_terms(loss: nn.Module, logits: Tensor, target: Tensor) -> dict[str, Tensor]:
    """The named parts of any loss; they add up to what `loss(logits, target)` returns.

    A `SegmentationLoss` or `WeightedSum` is split into its `terms`. Any other module, and a
    subclass that overrides `forward`, is called and has one part, `loss`.

    Args:
        loss: a module that maps (logits, target) to a scalar. If it is one of MONAI's losses with
            `to_onehot_y=True`, labels (B, *S) are passed to it as (B, 1, *S).
        logits, target: see `SegmentationLoss`.

    Example:
        >>> logits, target = torch.zeros(1, 2, 4, 4), torch.zeros(1, 4, 4, dtype=torch.int64)
        >>> loss_terms(nn.CrossEntropyLoss(), logits, target)
        {'loss': tensor(0.6931)}
    """
    forward = getattr(loss.forward, "__func__", None)
    if forward is SegmentationLoss.forward or forward is WeightedSum.forward:
        return cast(SegmentationLoss, loss).terms(logits, target)
    return {"loss": call_loss(loss, logits, target)}


def call_loss(loss: nn.Module, logits: Tensor, target: Tensor) -> Tensor:
    """`loss(logits, target)`, with a channel axis for labels where MONAI expects one.

    A loss that cannot ignore pixels (MONAI's) gets background with probability 1 there, as label
    and as prediction: such pixels have no gradient.
    """
    one_hot = any(getattr(module, "to_onehot_y", False) for module in loss.modules())
    labels = target.ndim == logits.ndim - 1 and not isinstance(loss, WeightedSum)
    if labels and (one_hot or not any(hasattr(m, "ignore_index") for m in loss.modules())):
        ignored = target == IGNORE_INDEX
        certain = logits.new_full((1, logits.shape[1], *(1 for _ in target.shape[1:])), -30.0)
        certain[:, 0] = 30.0
        logits = torch.where(ignored.unsqueeze(1), certain, logits)
        target = target.masked_fill(ignored, 0)
    if one_hot and labels:
        target = target.unsqueeze(1)
    value = loss(logits, target)
    if not isinstance(value, Tensor):
        raise TypeError(
            f"Expected the loss {type(loss).__name__} to return a tensor, "
            f"but got {type(value).__name__}."
        )
    return value


def add_up(terms: dict[str, Tensor]) -> Tensor:
    """The sum of the parts of a loss."""
    total, *others = terms.values()
    for value in others:
        total = total + value
    return total


def as_weights(class_weights: Weights) -> Tensor | None:
    """Class weights as a float32 tensor; raises unless they are finite and not negative."""
    if class_weights is None:
        return None
    try:
        weights = torch.as_tensor(class_weights, dtype=torch.float32).detach().clone()
        valid = weights.ndim == 1
        if values_can_be_read(weights):
            valid = valid and bool((weights.isfinite() & (weights >= 0)).all())
    except (TypeError, ValueError, RuntimeError):
        valid = False
    if not valid:
        raise ValueError(
            "Expected argument `class_weights` to be K finite weights that are not negative, "
            f"but got {class_weights!r}."
        )
    return weights
