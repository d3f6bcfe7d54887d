"""What the metrics of every framework share: a batch in, additive counts out, numbers read off."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from segcal.core.checks import check_choice
from segcal.metrics import REGIONS, CalibrationBins, ProperScores, measure
from segcal.metrics.calibration_and_scores import Measured

Spacing = float | Sequence[float]

READOUTS: dict[str, Callable[[Measured], float]] = {
    "ece": lambda m: m.bins.ece(),
    "cece": lambda m: m.bins.cece(),
    "ace": lambda m: m.bins.ace(),
    "mce": lambda m: m.bins.mce(),
    "signed_gap": lambda m: m.bins.signed_gap(),
    "brier": lambda m: m.scores.brier(),
    "nll": lambda m: m.scores.nll(),
}
# These regions are measured in millimetres: without the size of a voxel they mean nothing.
IN_MM = ("union", "boundary")


def check_names(metrics: Sequence[str]) -> tuple[str, ...]:
    """The names of the numbers to read off, each known and given once."""
    if not metrics:
        raise ValueError("Expected argument `metrics` to name at least one, but got none.")
    for name in metrics:
        check_choice("metrics", name, READOUTS)
    return tuple(dict.fromkeys(metrics))


def nothing(num_classes: int, num_bins: int) -> Measured:
    """No voxels: what sums start from."""
    return Measured(CalibrationBins(num_classes, num_bins), ProperScores(num_classes))


def count_image(
    probs: Tensor,
    target: Tensor,
    num_classes: int,
    *,
    num_bins: int,
    region: str,
    spacing_mm: Spacing | None,
    ignore_index: int,
) -> Measured:
    """The counts of one image: `probs` (K, *S), `target` (*S) labels or (K, *S) soft."""
    mask = None
    if region != "all":
        if spacing_mm is None and region in IN_MM:
            raise ValueError(
                f"Expected argument `spacing_mm` to be the size of a voxel, which the region "
                f"{region!r} is measured with, but got None."
            )
        truth = target if target.ndim == probs.ndim - 1 else target.argmax(0)
        inside = REGIONS[region](
            truth.detach().cpu().numpy(),
            labels=probs.detach().argmax(0).cpu().numpy(),
            spacing_mm=1.0 if spacing_mm is None else spacing_mm,
            ignore_index=ignore_index,
        )
        mask = torch.as_tensor(inside, device=probs.device)
    return measure(
        probs, target, num_classes, mask,
        num_bins=num_bins, ignore_index=ignore_index, batched=False,
    )  # fmt: skip


def as_target(target: Tensor, probs: Tensor) -> Tensor:
    """Labels (B, *S) or soft labels (B, K, *S) for `probs` (B, K, *S), from what frameworks give.

    A channel axis of 1 is dropped, and labels stored as floats become integers.
    """
    if probs.ndim < 3:
        raise ValueError(
            "Expected the probabilities to have shape (B, K, *S), a batch of maps, but got "
            f"{tuple(probs.shape)}."
        )
    batch, space = probs.shape[0], tuple(probs.shape[2:])
    if tuple(target.shape) == (batch, 1, *space):
        target = target[:, 0]
    if tuple(target.shape) == tuple(probs.shape):
        return target if target.is_floating_point() else target.to(probs.dtype)
    if tuple(target.shape) != (batch, *space):
        raise ValueError(
            f"Expected the target to have shape {(batch, *space)}, {(batch, 1, *space)} or, if "
            f"one-hot or soft, {tuple(probs.shape)}, but got {tuple(target.shape)}."
        )
    if not target.is_floating_point():
        return target.long()
    labels = target.long()
    if bool((labels != target).any()):
        raise ValueError("Expected the target to hold whole labels, but got fractions or NaN.")
    return labels
