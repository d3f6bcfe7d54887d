"""Checked logits and targets of one batch, and the reduction over its pixels."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from segcal.core.checks import check_labels, check_soft_labels, values_can_be_read
from segcal.losses.priors import Prior, PriorFunction

Reduction = Literal["mean", "sum", "none"]
Activation = Literal["softmax", "sigmoid"]
IGNORE_INDEX = -100


class Pixels:
    """Logits and targets of one batch, checked and in the form that the formulas need.

    With activation "sigmoid" each of the K heads is a problem of two classes, outside and inside
    (see `binary_heads`), and (B, K, *S) below is (B·K, 2, *S).

    Attributes:
        heads: the number of sigmoid heads, or None with activation "softmax".
        logits: (B, K, *S), float32 (half precision is upcast) or float64.
        target: labels (B, *S) in int64, or soft labels (B, K, *S) in the type of the logits.
        labels: `target` if it is labels, or None.
        counted: (B, *S) True where the pixel counts, or None if every pixel does.
        invalid: (B, *S) True where the label is not a class, or None if labels were checked.
            Such a pixel makes the loss NaN: raising on a GPU would wait for all queued work.
    """

    def __init__(
        self,
        logits: Tensor,
        target: Tensor,
        ignore_index: int = IGNORE_INDEX,
        class_weights: Tensor | None = None,
        activation: Activation = "softmax",
    ) -> None:
        self.heads: int | None = None
        if activation == "sigmoid":
            self.heads = logits.shape[1]
            logits, target = binary_heads(logits, target)
        target = check_shapes(logits, target)
        half = logits.dtype in (torch.float16, torch.bfloat16)
        self.logits = logits.float() if half else logits
        self.ignore_index = ignore_index
        self.labels: Tensor | None = None
        self.counted: Tensor | None = None
        self.invalid: Tensor | None = None
        self._log_probs: Tensor | None = None
        self.class_weights = fit_weights(class_weights, self.logits)
        if target.ndim == logits.ndim:
            self.counted = check_soft_labels("target", target, self.num_classes)
            self.target = target.to(self.logits.dtype)
        else:
            self.target = self.labels = self._checked_labels(target)

    def _checked_labels(self, target: Tensor) -> Tensor:
        """Labels in int64; sets `counted` and `invalid`."""
        labels = target.long()
        whole = not target.is_floating_point()
        if not whole and values_can_be_read(target) and (labels != target).any():
            raise ValueError(
                "Expected argument `target` to hold whole labels, but got fractions or NaN in "
                f"{target.dtype}; soft labels have shape (B, K, *S)."
            )
        some_ignored = check_labels("target", labels, self.num_classes, self.ignore_index)
        if not values_can_be_read(target):
            invalid = (labels < 0) | (labels >= self.num_classes)
            if not whole:
                invalid |= labels != target
            self.invalid = invalid & (labels != self.ignore_index)
            labels = labels.masked_fill(self.invalid, self.ignore_index)
        self.counted = labels != self.ignore_index if some_ignored else None
        return labels

    @property
    def num_classes(self) -> int:
        """Number of classes, K."""
        return self.logits.shape[1]

    @property
    def log_probs(self) -> Tensor:
        """log s, (B, K, *S); computed once. (torch.compile cannot trace cached_property.)"""
        if self._log_probs is None:
            self._log_probs = F.log_softmax(self.logits, dim=1)
        return self._log_probs

    def prior(self, prior: PriorFunction) -> Tensor:
        """τ of every pixel, (B, K, *S), without gradient; the caller may overwrite it."""
        # If no pixel is ignored, a sum can be saved. An ignored class 0 always matters: a
        # "background" border then does not vote.
        matters = self.counted is not None or self.ignore_index == 0
        ignore = self.ignore_index if matters else None
        with torch.no_grad():
            tau = prior(self.target, self.num_classes, ignore_index=ignore, dtype=self.logits.dtype)
        if type(prior) is Prior:
            return tau
        if not isinstance(tau, Tensor) or tau.shape != self.logits.shape:
            found = tuple(tau.shape) if isinstance(tau, Tensor) else type(tau).__name__
            raise ValueError(
                f"Expected the prior {prior!r} to return a tensor of shape "
                f"{tuple(self.logits.shape)}, but got {found}."
            )
        return tau.to(self.logits.dtype, copy=True)

    def one_hot(self) -> Tensor:
        """The target as (B, K, *S); all zero where a pixel is ignored."""
        if self.labels is None:
            return self.target
        labels, counted = self.labels, self.counted
        if counted is not None:
            labels = labels.masked_fill(~counted, 0)
        hot = torch.zeros_like(self.logits).scatter_(1, labels.unsqueeze(1), 1.0)
        return hot if counted is None else hot.mul_(counted.unsqueeze(1))

    def nll(self, values: Tensor, *, weighted: bool = True) -> Tensor:
        """−Σ_k w_k y^k values_k, (B, *S), 0 if ignored: of log-probabilities, the cross-entropy."""
        weights = self.class_weights if weighted else None
        if self.labels is not None:
            return F.nll_loss(
                values, self.labels, weights, ignore_index=self.ignore_index, reduction="none"
            )
        return -(self.target * along_classes(values, weights)).sum(1)

    def target_weight(self) -> Tensor:
        """Σ_k w_k y^k, (B, *S): the class weight of each pixel's target. 0 if ignored."""
        assert self.class_weights is not None
        if self.labels is None:
            return along_classes(self.target, self.class_weights).sum(1)
        if self.counted is None:
            return self.class_weights[self.labels]
        return self.masked(self.class_weights[self.labels.masked_fill(~self.counted, 0)])

    def masked(self, per_pixel: Tensor) -> Tensor:
        """`per_pixel` (B, *S) with 0, and no gradient, where a pixel is ignored."""
        return per_pixel if self.counted is None else per_pixel.masked_fill(~self.counted, 0)

    def reduce(self, per_pixel: Tensor, reduction: Reduction, *, weighted: bool = False) -> Tensor:
        """Reduce values (B, *S) over the pixels that count; 0 if there are none.

        If the values are `weighted` by class, the mean divides by the summed weight of the
        targets, as `torch.nn.CrossEntropyLoss` does for labels.
        """
        per_pixel = self.masked(per_pixel)
        if self.invalid is not None:
            per_pixel = per_pixel.masked_fill(self.invalid, float("nan"))
        if reduction == "none":
            return self.by_image(per_pixel)
        total = per_pixel.sum()
        if reduction == "sum":
            return total
        if weighted and self.class_weights is not None:
            weight = self.target_weight().sum()
            return total / torch.where(weight == 0, torch.ones_like(weight), weight)
        if self.counted is None:
            return total / per_pixel.numel()
        return total / self.counted.sum().clamp_min(1)

    def by_image(self, values: Tensor) -> Tensor:
        """(B·K, …) of sigmoid heads → (B, K, …); otherwise unchanged."""
        return values if self.heads is None else values.view(-1, self.heads, *values.shape[1:])

    def rows(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Probabilities and target of every class, and where they count, for sums over pixels.

        (B, K, *S) each, also with sigmoid heads (the inside of each head); both are 0 where a
        pixel is ignored. The mask is (B, 1, *S) or (B, K, *S), or None if every pixel counts.
        """
        probs, truth, counted = self.log_probs.exp(), self.one_hot(), self.counted
        if self.heads is not None:
            probs, truth = self.by_image(probs[:, 1]), self.by_image(truth[:, 1])
            counted = None if counted is None else self.by_image(counted)
        elif counted is not None:
            counted = counted.unsqueeze(1)
        return (probs if counted is None else probs.masked_fill(~counted, 0)), truth, counted

    def reduce_rows(self, per_class: Tensor, counted: Tensor, reduction: Reduction) -> Tensor:
        """Reduce values (B, K), or (1, K) over the batch, that are 0 where not `counted`.

        "mean" is over all that count, "sum" over images of the mean over the classes that count,
        "none" these values in a shape that broadcasts to those of pixels. Sigmoid heads are
        separate: their values are summed, not averaged.
        """
        counted = counted.expand_as(per_class)
        if self.invalid is not None:
            invalid = self.by_image(self.invalid.flatten(1).any(1))
            invalid = invalid.unsqueeze(1) if self.heads is None else invalid
            invalid = invalid if len(per_class) == len(invalid) else invalid.any(0, keepdim=True)
            per_class = per_class.masked_fill(invalid, float("nan"))
        if reduction == "mean" and self.heads is not None:
            return per_class.sum() / counted.sum().clamp_min(1)
        if self.heads is None:
            per_class = per_class.sum(1) / counted.sum(1).clamp_min(1)
        if reduction == "mean":
            return per_class.sum() / counted.any(1).sum().clamp_min(1)
        if reduction == "sum":
            return per_class.sum()
        return per_class.view(*per_class.shape, *(1,) * (self.logits.ndim - 2))


def binary_heads(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """K sigmoid heads as B·K images of two classes, outside and inside, with logits 0 and l.

    Args:
        logits: (B, K, *S).
        target: (B, K, *S): 0 or 1 (and ignored labels) in an integer type, or soft in [0, 1].
    """
    if target.shape != logits.shape:
        raise ValueError(
            f"Expected argument `target` to have the shape of the logits {tuple(logits.shape)} "
            f"with activation 'sigmoid', but got {tuple(target.shape)}."
        )
    flat, inside = logits.flatten(0, 1), target.flatten(0, 1)
    pairs = torch.stack([torch.zeros_like(flat), flat], 1)
    if inside.is_floating_point():
        return pairs, torch.stack([1 - inside, inside], 1)
    return pairs, inside.to(torch.uint8) if inside.dtype == torch.bool else inside


def along_classes(values: Tensor, class_weights: Tensor | None) -> Tensor:
    """`values` (B, K, *S) times one weight per class."""
    if class_weights is None:
        return values
    return values * class_weights.view(1, -1, *(1,) * (values.ndim - 2))


def fit_weights(class_weights: Tensor | None, logits: Tensor) -> Tensor | None:
    """The weights on the device of the logits, in float32 or wider; raises unless there are K."""
    if class_weights is None:
        return None
    if class_weights.shape != logits.shape[1:2]:
        raise ValueError(
            f"Expected argument `class_weights` to have {logits.shape[1]} values, one per class of "
            f"the logits, but got {class_weights.numel()}."
        )
    wide = torch.promote_types(logits.dtype, torch.float32)
    return class_weights.to(logits.device, wide)


def check_shapes(logits: Tensor, target: Tensor) -> Tensor:
    """Raise unless logits and target fit together; return the target without channel axis."""
    for name, tensor in (("logits", logits), ("target", target)):
        if not isinstance(tensor, Tensor):
            found = type(tensor).__name__
            raise TypeError(f"Expected argument `{name}` to be a tensor, but got {found}.")
    if not logits.is_floating_point():
        raise TypeError(f"Expected argument `logits` to be floating, but got {logits.dtype}.")
    if logits.ndim not in (4, 5) or logits.shape[1] < 2 or logits.numel() == 0:
        raise ValueError(
            "Expected argument `logits` to have shape (B, K, H, W) or (B, K, D, H, W) with K ≥ 2 "
            f"classes and at least one pixel, but got {tuple(logits.shape)}."
        )
    if target.device != logits.device:
        raise ValueError(
            f"Expected argument `target` to be on the device of the logits ({logits.device}), "
            f"but got {target.device}."
        )
    shape = tuple(target.shape)
    batch, _, *space = logits.shape
    if shape == (batch, 1, *space):
        return target.squeeze(1)
    if shape in ((batch, *space), tuple(logits.shape)):
        return target
    raise ValueError(
        f"Expected argument `target` to have shape {(batch, *space)}, {(batch, 1, *space)} or "
        f"{tuple(logits.shape)} to fit the logits, but got {shape}."
    )
