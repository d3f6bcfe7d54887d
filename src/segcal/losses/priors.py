"""Neighborhood priors: what the labels around a pixel say about its class.

A prior turns a label map into K values τ per pixel that sum to 1. The proportions ("mean",
"gaussian") are soft; the order statistics ("max", "min", "median", "mode") are one-hot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from inspect import isfunction
from numbers import Integral
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from segcal.core import checks
from segcal.registry import Registry

PriorKind = Literal["mean", "gaussian", "max", "min", "median", "mode"]
Border = Literal["replicate", "background", "valid"]
PriorFunction = Callable[..., Tensor]  # called as `Prior.__call__` is
KINDS: tuple[PriorKind, ...] = get_args(PriorKind)
BORDERS: tuple[Border, ...] = get_args(Border)
ORDER_STATISTICS = ("max", "min", "median", "mode")

# Below this width the corners of a 3×3×3 patch underflow in float32. Long before that only the
# nearest neighbors matter, and the result no longer depends on σ.
MIN_SIGMA = 0.2


@dataclass(frozen=True)
class Prior:
    r"""The labels in a patch around every pixel, summarized as K values τ that sum to 1.

    ========== ==================================================================================
    kind       τ_k at pixel p, over the d pixels i of the patch
    ========== ==================================================================================
    mean       :math:`\frac{1}{d}\sum_i y_i^k`, the class proportions
    gaussian   :math:`\sum_i w_i y_i^k`, w a Gaussian of width σ (in pixels) whose center weight
               is replaced by the sum of all the others, then normalized: SVLS's smoothed label
    max, min   one-hot of the largest (smallest) label index in the patch
    median     one-hot of the median label index (of an even count, the lower middle one)
    mode       one-hot of the most frequent label; ties go to the smallest
    ========== ==================================================================================

    `max`, `min` and `median` depend on how the classes are numbered; `mean`, `gaussian` and
    `mode` (except for ties) do not.

    To write your own prior, override `__call__` in a subclass, or write a function with the
    arguments of `__call__`. Losses with such a prior run in torch, not in the fused kernels.

    Args:
        kind: one of the table above.
        patch_size: odd; one int, or one per axis, such as (1, 3, 3) for thick slices.
        sigma: σ of the "gaussian" prior.
        border: what lies outside the image. "replicate": its edge pixels, repeated.
            "background": class 0, as in the authors' code. "valid": nothing; the weights inside
            are normalized again.
        title: one line about the prior, for listings.

    Example:
        >>> edge = torch.tensor([[[0, 0, 1], [0, 0, 1], [0, 0, 1]]])
        >>> Prior("mean", patch_size=3)(edge, num_classes=2)[0, 1]
        tensor([[0.0000, 0.3333, 0.6667],
                [0.0000, 0.3333, 0.6667],
                [0.0000, 0.3333, 0.6667]])
    """

    kind: PriorKind = "mean"
    patch_size: int | Sequence[int] = 3
    sigma: float = 1.0
    border: Border = "replicate"
    title: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        checks.check_choice("kind", self.kind, KINDS)
        checks.check_choice("border", self.border, BORDERS)
        checks.check_number("sigma", self.sigma, low=MIN_SIGMA)
        listed = isinstance(self.patch_size, Sequence)
        sizes: Any = self.patch_size if listed else (self.patch_size,)
        if not sizes or not all(isinstance(n, Integral) and n % 2 and int(n) > 0 for n in sizes):
            raise ValueError(
                "Expected argument `patch_size` to be odd and positive (one int, or one per "
                f"axis), but got {self.patch_size!r}."
            )
        if listed:  # hashable, and unaffected by later changes to the caller's list
            object.__setattr__(self, "patch_size", tuple(sizes))

    @torch.no_grad()
    def __call__(
        self,
        target: Tensor,
        num_classes: int,
        *,
        ignore_index: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """τ of every pixel, (B, K, *S): a new tensor without gradient.

        Args:
            target: labels (B, *S) in int64, or soft labels (B, K, *S). Its values are not checked;
                `neighborhood_prior` checks them.
            num_classes: K, which is never derived from the labels present.
            ignore_index: pixels with this label (soft: with K zeros) do not count for their
                neighbors; None if every pixel counts. In a patch without other pixels τ is 0 and
                does not sum to 1.
            dtype: floating type of the result.
        """
        soft = target.is_floating_point()
        if soft and self.kind in ORDER_STATISTICS:
            raise ValueError(
                "Expected argument `prior` to be 'mean' or 'gaussian' for a soft target, but got "
                f"{self.kind!r}: an order statistic needs one label per pixel."
            )
        patch = checks.per_axis("patch_size", self.patch_size, target.ndim - (2 if soft else 1))
        margins = [size // 2 for size in patch]
        if soft:
            votes = _pad_soft(target.to(dtype), margins, self.border)
        else:
            labels = _pad_labels(target, num_classes, margins, self.border, ignore_index)
            votes = _one_hot(labels, num_classes)
        complete = self.border != "valid" and ignore_index is None

        if self.kind == "gaussian" and math.prod(patch) > 1:
            center, rest, total = _gaussian_sums(votes.to(dtype), patch, self.sigma)
            return _normalize(rest.add_(center, alpha=total), 2 * total if complete else None)
        counts = _box_sums(votes if soft or math.prod(patch) < 256 else votes.int(), patch)
        if self.kind in ORDER_STATISTICS:
            return _order_statistic(counts, self.kind).to(dtype)
        return _normalize(counts.to(dtype), math.prod(patch) if complete else None)


def _is_prior(thing: Any) -> bool:
    if isinstance(thing, type):
        return issubclass(thing, Prior)
    return isinstance(thing, Prior) or isfunction(thing)


PRIORS: Registry[Any] = Registry(
    "prior", "segcal.priors", _is_prior, "a Prior, a subclass of it, or a function"
)
PRIORS.register("mean", Prior("mean", title="class proportions in the patch"))
PRIORS.register("gaussian", Prior("gaussian", title="SVLS: half own label, half Gaussian-weighted"))
PRIORS.register("max", Prior("max", title="the largest label in the patch"))
PRIORS.register("min", Prior("min", title="the smallest label in the patch"))
PRIORS.register("median", Prior("median", title="the median label in the patch"))
PRIORS.register("mode", Prior("mode", title="the most frequent label in the patch"))


def make_prior(
    prior: str | PriorFunction,
    patch_size: int | Sequence[int] = 3,
    sigma: float = 1.0,
    border: Border = "replicate",
) -> PriorFunction:
    """The prior with this name or import path, or the given one.

    Args:
        prior: a name in `PRIORS`, an import path `package.module:MyPrior`, a `Prior`, or a
            function with the arguments of `Prior.__call__`.
        patch_size, sigma, border: settings of `Prior`. Those that differ from the default replace
            the prior's own. A function has no settings.

    Example:
        >>> make_prior("gaussian", sigma=2.0)
        Prior(kind='gaussian', patch_size=3, sigma=2.0, border='replicate')
    """
    found: Any = PRIORS.get(prior) if isinstance(prior, str) else prior
    given = {"patch_size": patch_size, "sigma": sigma, "border": border}
    changed: Any = {name: value for name, value in given.items() if value != getattr(Prior, name)}
    if isinstance(found, Prior):
        return replace(found, **changed)
    if isinstance(found, type) and issubclass(found, Prior):
        return found(**changed)
    if not callable(found):
        raise TypeError(
            "Expected argument `prior` to be a name, an import path, a Prior or a function, "
            f"but got {prior!r}."
        )
    if changed:
        raise ValueError(
            f"Expected no argument `{next(iter(changed))}`, because `prior` is a function "
            "without settings; write a subclass of segcal.losses.Prior to use it."
        )
    return cast(PriorFunction, found)


def neighborhood_prior(
    target: Tensor,
    num_classes: int,
    prior: str | PriorFunction = "mean",
    patch_size: int | Sequence[int] = 3,
    sigma: float = 1.0,
    border: Border = "replicate",
    ignore_index: int | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """τ of every pixel, (B, K, *S), after a check of the target.

    Args:
        target: labels (B, *S) of any integer type, or soft labels (B, K, *S) whose K values sum
            to 1 ("mean" and "gaussian" only). S is 2-D or 3-D: (B, 1, H, W) is one slice of 3-D.
        prior, patch_size, sigma, border: see `make_prior` and `Prior`.
        num_classes, ignore_index, dtype: see `Prior.__call__`.

    Example:
        >>> edge = torch.tensor([[[0, 0, 1], [0, 0, 1], [0, 0, 1]]])
        >>> neighborhood_prior(edge, 2, "mode")[0, 1, 1]
        tensor([0., 0., 1.])
    """
    if not isinstance(target, Tensor):
        found = type(target).__name__
        raise TypeError(f"Expected argument `target` to be a tensor, but got {found}.")
    checks.check_int("num_classes", num_classes, low=1)
    compute = make_prior(prior, patch_size, sigma, border)
    soft = target.is_floating_point()
    axes = target.ndim - (2 if soft else 1)
    if axes not in (2, 3) or target.numel() == 0:
        raise ValueError(
            "Expected argument `target` to be labels (B, *S) or soft labels (B, K, *S), S 2-D or "
            f"3-D and not empty, but got shape {tuple(target.shape)}."
        )
    if soft:
        checks.check_soft_labels("target", target, num_classes)
    else:
        target = target.long()
        checks.check_labels("target", target, num_classes, ignore_index)
    return compute(target, num_classes, ignore_index=ignore_index, dtype=dtype)


def _normalize(sums: Tensor, total: float | None) -> Tensor:
    """Divide by the weight of the patch: `total`, or the sum over the pixels that voted."""
    if total is not None:
        return sums.div_(total)
    voted = sums.sum(1, keepdim=True)
    return sums.div_(voted.masked_fill_(voted == 0, 1))


def _pad_labels(
    target: Tensor, num_classes: int, margins: list[int], border: str, ignore_index: int | None
) -> Tensor:
    """Padded labels in a small integer type; the label K means "does not vote"."""
    no_vote = num_classes
    outside = no_vote if border == "valid" or ignore_index == 0 else 0
    sizes = [n + 2 * margin for n, margin in zip(target.shape[1:], margins, strict=True)]
    small = torch.uint8 if num_classes < 256 else torch.int32
    padded = torch.full((len(target), *sizes), outside, dtype=small, device=target.device)
    inside = padded
    for axis, margin in enumerate(margins, start=1):
        inside = inside.narrow(axis, margin, target.shape[axis])
    # An invalid label (possible where values are not checked) does not vote either.
    inside.copy_(target.clamp(-1, no_vote).masked_fill_(target < 0, no_vote))
    if ignore_index is not None:
        inside.masked_fill_(target == ignore_index, no_vote)
    if border == "replicate":
        for axis, (margin, n) in enumerate(zip(margins, target.shape[1:], strict=True), start=1):
            if margin:
                padded.narrow(axis, 0, margin).copy_(padded.narrow(axis, margin, 1))
                last = padded.narrow(axis, margin + n - 1, 1)
                padded.narrow(axis, margin + n, margin).copy_(last)
    return padded


def _pad_soft(target: Tensor, margins: list[int], border: str) -> Tensor:
    pads = [margin for margin in reversed(margins) for _ in range(2)]  # the order of F.pad
    if border == "replicate":
        return F.pad(target, pads, mode="replicate")
    padded = F.pad(target, pads)
    if border == "background":
        padded[:, :1] = F.pad(target[:, :1], pads, value=1.0)
    return padded


def _one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """(B, *S) → (B, K, *S) as uint8; the label K sets no class."""
    return (labels.unsqueeze(1) == _class_axis(num_classes, labels)).to(torch.uint8)


def _class_axis(num_classes: int, like: Tensor) -> Tensor:
    """0 … K−1 along axis 1, in the type of `like` (B, *S)."""
    classes = torch.arange(num_classes, device=like.device, dtype=like.dtype)
    return classes.view(1, -1, *(1,) * (like.ndim - 1))


def _box_sums(votes: Tensor, patch: Sequence[int]) -> Tensor:
    """Sum of the votes in the patch, axis by axis; the result has no margins."""
    for axis, size in enumerate(patch, start=2):
        if size > 1:
            n = votes.shape[axis] - size + 1
            sums = votes.narrow(axis, 0, n) + votes.narrow(axis, 1, n)
            for shift in range(2, size):
                sums += votes.narrow(axis, shift, n)
            votes = sums
    return votes.clone() if math.prod(patch) == 1 else votes


def _gaussian_sums(
    votes: Tensor, patch: Sequence[int], sigma: float
) -> tuple[Tensor, Tensor, float]:
    """The center's votes, the Gaussian-weighted votes of all others, and the others' weight."""
    # The Gaussian is a product over axes, so it is applied one axis at a time. The center is kept
    # apart, not subtracted at the end, so that nothing cancels when σ is small.
    full, rest, center = votes, torch.zeros_like(votes), votes
    full_weight, rest_weight = 1.0, 0.0
    for axis, size in enumerate(patch, start=2):
        if size == 1:
            continue
        n, middle = votes.shape[axis] - size + 1, size // 2
        weights = [math.exp(-((i - middle) ** 2) / (2 * sigma**2)) for i in range(size)]
        beside = torch.zeros_like(full.narrow(axis, 0, n))
        for shift, weight in enumerate(weights):
            if shift != middle:
                beside.add_(full.narrow(axis, shift, n), alpha=weight)
        center = center.narrow(axis, middle, n)
        rest = rest.narrow(axis, middle, n) + beside
        full = full.narrow(axis, middle, n) + beside
        beside_weight = full_weight * (sum(weights[:middle]) + sum(weights[middle + 1 :]))
        rest_weight += beside_weight
        full_weight += beside_weight
    return center, rest, rest_weight


def _order_statistic(counts: Tensor, kind: str) -> Tensor:
    """One-hot of the largest, smallest, middle or most frequent label, from counts per label."""
    num_classes = counts.shape[1]
    counts = counts.int()
    voted = counts.sum(1, dtype=torch.int32)
    rising = _class_axis(num_classes, voted)
    falling = num_classes - 1 - rising
    # argmax is slow over this axis, so the winner is derived from the largest score.
    if kind == "max":
        index = ((counts > 0) * rising).amax(1)
    elif kind == "min":
        index = num_classes - 1 - ((counts > 0) * falling).amax(1)
    elif kind == "mode":  # the largest count, and among equal counts the smallest label
        index = num_classes - 1 - (counts * num_classes + falling).amax(1) % num_classes
    else:
        index = (2 * counts.cumsum(1, dtype=torch.int32) < voted.unsqueeze(1)).sum(1)
    return _one_hot(index, num_classes).mul_((voted > 0).unsqueeze(1))
