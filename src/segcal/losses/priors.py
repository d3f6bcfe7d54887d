"""Neighbourhood priors: what the labels around a pixel say about it.

A prior turns a label map into K values per pixel, τ, that sum to 1. The proportions (`mean`,
`gaussian`) are soft; the order statistics (`max`, `min`, `median`, `mode`) are one-hot.
"""

import math
from collections.abc import Sequence
from numbers import Integral

import torch
import torch.nn.functional as F
from torch import Tensor

from segcal.core.checks import (
    check_choice,
    check_int,
    check_labels,
    check_number,
    check_soft_labels,
    per_axis,
)

PROPORTIONS = ("mean", "gaussian")
ORDER_STATISTICS = ("max", "min", "median", "mode")
PRIORS = (*PROPORTIONS, *ORDER_STATISTICS)
BORDERS = ("replicate", "background", "valid")

# Below this width the corners of a 3×3×3 patch leave float32; long before, only the nearest
# neighbours matter and the result no longer depends on σ.
MIN_SIGMA = 0.2


def check_prior(
    kind: str,
    patch_size: int | Sequence[int],
    sigma: float,
    border: str,
    *,
    soft: bool = False,
    name: str = "prior",
) -> None:
    """Raise if these arguments of `neighbourhood_prior` cannot be used, whatever the target.

    `name` is what the caller calls the kind of prior.
    """
    check_choice(name, kind, PRIORS)
    check_choice("border", border, BORDERS)
    check_number("sigma", sigma, low=MIN_SIGMA)
    sizes = patch_size if isinstance(patch_size, Sequence) else (patch_size,)
    whole = all(isinstance(size, Integral) and not isinstance(size, bool) for size in sizes)
    if not sizes or not whole or any(size < 1 or size % 2 == 0 for size in sizes):
        raise ValueError(
            "Expected argument `patch_size` to be odd and positive (one int, or one per axis), "
            f"but got {patch_size!r}."
        )
    if soft and kind in ORDER_STATISTICS:
        raise ValueError(
            f"Expected argument `{name}` to be 'mean' or 'gaussian' for a soft target, but got "
            f"{kind!r}: an order statistic needs one label per pixel."
        )


def neighbourhood_prior(
    target: Tensor,
    num_classes: int,
    kind: str = "mean",
    patch_size: int | Sequence[int] = 3,
    sigma: float = 1.0,
    border: str = "replicate",
    ignore_index: int | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    r"""Summarise the labels in a patch around every pixel as K values that sum to 1.

    ========== ==================================================================================
    kind       τ_k at pixel p, over the d pixels i of the patch
    ========== ==================================================================================
    mean       :math:`\frac{1}{d}\sum_i y_i^k`, the class proportions
    gaussian   :math:`\sum_i w_i y_i^k`, w a Gaussian of width σ (in pixels) whose centre weight
               is replaced by the sum of all the others, then normalised: SVLS's smoothed label
    max, min   one-hot of the largest (smallest) label index in the patch
    median     one-hot of the median label index (of an even count, the lower middle one)
    mode       one-hot of the most frequent label; ties go to the smallest
    ========== ==================================================================================

    `max`, `min` and `median` depend on how the classes are numbered: swap two labels and they
    change. `mean`, `gaussian` and `mode` (but for ties) do not.

    Args:
        target: labels (B, *S) of any integer type, or soft labels (B, K, *S) whose K values sum
            to 1 (`mean` and `gaussian` only). S is 2-D or 3-D: (B, 1, H, W) is one slice of 3-D.
        num_classes: K. Never taken from the labels present.
        patch_size: odd; one int or one per axis, such as (1, 3, 3) for thick slices.
        border: what lies outside the image. "replicate": its edge pixels, repeated.
            "background": class 0 (the authors' choice). "valid": nothing; the weights inside are
            normalised again.
        ignore_index: pixels with this label do not count for their neighbours. A patch with
            nothing left gets τ = 0, the only place where τ does not sum to 1.
        dtype: floating type of the result.

    Returns:
        τ, (B, K, *S).

    Example:
        >>> edge = torch.tensor([[[0, 0, 1], [0, 0, 1], [0, 0, 1]]])
        >>> neighbourhood_prior(edge, 2)[0, 1]
        tensor([[0.0000, 0.3333, 0.6667],
                [0.0000, 0.3333, 0.6667],
                [0.0000, 0.3333, 0.6667]])
    """
    if not isinstance(target, Tensor):
        kind_of = type(target).__name__
        raise TypeError(f"Expected argument `target` to be a tensor, but got {kind_of}.")
    check_int("num_classes", num_classes, low=1)
    soft = target.is_floating_point()
    check_prior(kind, patch_size, sigma, border, soft=soft, name="kind")
    axes = target.ndim - (2 if soft else 1)
    if axes not in (2, 3) or target.numel() == 0:
        raise ValueError(
            "Expected argument `target` to be labels (B, *S) or soft labels (B, K, *S), S 2-D or "
            f"3-D and not empty, but got shape {tuple(target.shape)}."
        )
    if soft:
        check_soft_labels("target", target, num_classes)
    else:
        target = target.long()
        check_labels("target", target, num_classes, ignore_index)
    patch = per_axis("patch_size", patch_size, axes)
    return prior_of_checked(target, num_classes, kind, patch, sigma, border, ignore_index, dtype)


@torch.no_grad()
def prior_of_checked(
    target: Tensor,
    num_classes: int,
    kind: str,
    patch: Sequence[int],
    sigma: float,
    border: str,
    ignore_index: int | None,
    dtype: torch.dtype,
) -> Tensor:
    """`neighbourhood_prior` of int64 or soft labels and arguments known to be good."""
    soft = target.is_floating_point()
    if soft and kind in ORDER_STATISTICS:
        check_prior(kind, patch, sigma, border, soft=True)
    margins = [size // 2 for size in patch]
    if soft:
        votes = _pad_soft(target.to(dtype), margins, border)
        complete = border != "valid"
    else:
        labels = _pad_labels(target, num_classes, margins, border, ignore_index)
        votes = _one_hot(labels, num_classes)
        complete = border != "valid" and ignore_index is None

    if kind == "gaussian" and math.prod(patch) > 1:
        centre, rest, total = _gaussian_sums(votes.to(dtype), patch, sigma)
        return _normalise(rest.add_(centre, alpha=total), 2 * total if complete else None)
    counts = _box_sums(votes if soft or math.prod(patch) < 256 else votes.int(), patch)
    if kind in PROPORTIONS:
        return _normalise(counts.to(dtype), math.prod(patch) if complete else None)
    return _order_statistic(counts, kind).to(dtype)


def _normalise(sums: Tensor, total: float | None) -> Tensor:
    """Divide by the weight of the patch: known, or summed over the pixels that voted."""
    if total is not None:
        return sums.div_(total)
    voted = sums.sum(1, keepdim=True)
    return sums.div_(voted.masked_fill_(voted == 0, 1))


def _pad_labels(
    target: Tensor, num_classes: int, margins: list[int], border: str, ignore_index: int | None
) -> Tensor:
    """Labels with the border around them, small; the label K stands for "does not vote"."""
    silent = num_classes
    outside = silent if border == "valid" or ignore_index == 0 else 0
    sizes = [n + 2 * margin for n, margin in zip(target.shape[1:], margins, strict=True)]
    small = torch.uint8 if num_classes < 256 else torch.int32
    padded = torch.full((len(target), *sizes), outside, dtype=small, device=target.device)
    inside = padded
    for axis, margin in enumerate(margins, start=1):
        inside = inside.narrow(axis, margin, target.shape[axis])
    # A label that is none (not refused where labels are not read) does not vote either.
    inside.copy_(target.clamp(-1, silent).masked_fill_(target < 0, silent))
    if ignore_index is not None:
        inside.masked_fill_(target == ignore_index, silent)
    if border == "replicate":
        for axis, (margin, n) in enumerate(zip(margins, target.shape[1:], strict=True), start=1):
            if margin:
                padded.narrow(axis, 0, margin).copy_(padded.narrow(axis, margin, 1))
                last = padded.narrow(axis, margin + n - 1, 1)
                padded.narrow(axis, margin + n, margin).copy_(last)
    return padded


def _both_sides(margins: list[int]) -> list[int]:
    """Margins per axis in the order of F.pad: last axis first, before and after."""
    return [margin for margin in reversed(margins) for _ in range(2)]


def _pad_soft(target: Tensor, margins: list[int], border: str) -> Tensor:
    pads = _both_sides(margins)
    if border == "replicate":
        return F.pad(target, pads, mode="replicate")
    padded = F.pad(target, pads)
    if border == "background":
        padded[:, :1] = F.pad(target[:, :1], pads, value=1.0)
    return padded


def _one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """(B, *S) → (B, K, *S) in one byte a value; the silent label K sets no class."""
    return (labels.unsqueeze(1) == _class_axis(num_classes, labels)).to(torch.uint8)


def _class_axis(num_classes: int, like: Tensor) -> Tensor:
    """0 … K−1 along axis 1, in the type of `like` (B, *S)."""
    classes = torch.arange(num_classes, device=like.device, dtype=like.dtype)
    return classes.view(1, -1, *(1,) * (like.ndim - 1))


def _box_sums(votes: Tensor, patch: Sequence[int]) -> Tensor:
    """Sum of the votes in the patch, axis by axis; the margin is used up."""
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
    """The centre's votes, the Gaussian-weighted votes of all others, and the others' weight.

    The Gaussian is a product over axes, so one axis at a time does. The centre is kept apart
    (rather than subtracted at the end) so that nothing cancels when σ is small.
    """
    full, rest = votes, torch.zeros_like(votes)
    centre = votes
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
        centre = centre.narrow(axis, middle, n)
        rest = rest.narrow(axis, middle, n) + beside
        full = full.narrow(axis, middle, n) + beside
        beside_weight = full_weight * (sum(weights[:middle]) + sum(weights[middle + 1 :]))
        rest_weight += beside_weight
        full_weight += beside_weight
    return centre, rest, rest_weight


def _order_statistic(counts: Tensor, kind: str) -> Tensor:
    """One-hot of the largest, smallest, middle or most frequent label, from counts per label."""
    num_classes = counts.shape[1]
    counts = counts.int()
    voted = counts.sum(1, dtype=torch.int32)
    rising = _class_axis(num_classes, voted)
    falling = num_classes - 1 - rising
    # argmax is slow over this axis; the winner is read off the largest score instead.
    if kind == "max":
        index = ((counts > 0) * rising).amax(1)
    elif kind == "min":
        index = num_classes - 1 - ((counts > 0) * falling).amax(1)
    elif kind == "mode":  # the count decides, and among equals the smallest label
        index = num_classes - 1 - (counts * num_classes + falling).amax(1) % num_classes
    else:
        index = (2 * counts.cumsum(1, dtype=torch.int32) < voted.unsqueeze(1)).sum(1)
    return _one_hot(index, num_classes).mul_((voted > 0).unsqueeze(1))
