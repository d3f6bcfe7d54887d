"""Additive statistics of a batch, shared by the metrics for torchmetrics and MONAI."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from segcal.metrics import (
    METRICS,
    REGIONS,
    CalibrationBins,
    Metric,
    ProperScores,
    VoxelStatistics,
    get_metric,
    voxel_statistics,
)

Spacing = float | Sequence[float]
# Regions that are defined by a distance in millimeters.
_REGIONS_IN_MM = ("union", "boundary")


def additive_metrics(names: Sequence[str]) -> dict[str, Metric]:
    """The metrics with these names, by key; each must be additive."""
    if not names:
        raise ValueError("Expected argument `metrics` to name at least one metric, but got none.")
    found = {metric.key: metric for metric in map(get_metric, names)}
    for key, metric in found.items():
        if not metric.additive:
            additive = [name for name in METRICS if METRICS.get(name).additive]
            raise ValueError(
                f"Expected argument `metrics` to name additive metrics ({', '.join(additive)}), "
                f"but got {key!r}, which cannot be summed over batches."
            )
    return found


def empty_statistics(num_classes: int, num_bins: int) -> VoxelStatistics:
    """Statistics without any voxel."""
    return VoxelStatistics(CalibrationBins(num_classes, num_bins), ProperScores(num_classes))


def count_image(
    probs: Tensor,
    target: Tensor,
    num_classes: int,
    *,
    num_bins: int,
    region: str,
    spacing_mm: Spacing | None,
    ignore_index: int,
) -> VoxelStatistics:
    """The statistics of one image: `probs` (K, *S), `target` (*S) labels or (K, *S) soft."""
    mask = None
    if region != "all":
        if spacing_mm is None and region in _REGIONS_IN_MM:
            raise ValueError(
                f"Expected argument `spacing_mm` to be the voxel size, which the region {region!r} "
                "needs, but got None."
            )
        truth = target if target.ndim == probs.ndim - 1 else target.argmax(0)
        inside = REGIONS[region](
            truth.detach().cpu().numpy(),
            labels=probs.detach().argmax(0).cpu().numpy(),
            spacing_mm=1.0 if spacing_mm is None else spacing_mm,
            ignore_index=ignore_index,
        )
        mask = torch.as_tensor(inside, device=probs.device)
    return voxel_statistics(
        probs, target, num_classes, mask,
        num_bins=num_bins, ignore_index=ignore_index, batched=False,
    )  # fmt: skip


def as_target(target: Tensor, probs: Tensor) -> Tensor:
    """Labels (B, *S) or soft labels (B, K, *S) for `probs` (B, K, *S).

    A channel axis of 1 is removed, and labels stored as floats become integers.
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
