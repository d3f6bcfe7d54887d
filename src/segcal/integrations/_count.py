"""Additive statistics of images, shared by the metrics for torchmetrics and MONAI."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from segcal.core.checks import check_choice, check_int
from segcal.metrics import METRICS, REGIONS, Metric, VoxelStatistics, get_metric, voxel_statistics

Spacing = float | Sequence[float]
# Regions that are defined by a distance in millimeters.
_REGIONS_IN_MM = ("union", "boundary", "predicted_boundary")


class ImageCounter:
    """Counts single images in one region; its arguments are those of both metrics."""

    def __init__(
        self,
        num_classes: int,
        metrics: str | Sequence[str],
        *,
        region: str,
        num_bins: int,
        ignore_index: int,
    ) -> None:
        check_choice("region", region, REGIONS)
        self.region = region
        self.ignore_index = check_int("ignore_index", ignore_index)
        self.empty = VoxelStatistics.empty(num_classes, num_bins)
        self.names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        if not self.names:
            raise ValueError("Expected argument `metrics` to name at least one metric.")
        refused = [key for key, metric in self.metrics.items() if not _is_countable(metric)]
        if refused:
            additive = ", ".join(name for name in METRICS if _is_countable(METRICS.get(name)))
            raise ValueError(
                f"Expected argument `metrics` to name additive metrics ({additive}), but got "
                f"{refused[0]!r}, which cannot be summed over batches."
            )

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics by key; looked up by name, because a function may not be pickled."""
        return {metric.key: metric for metric in map(get_metric, self.names)}

    def count(self, probs: Tensor, target: Tensor, spacing_mm: Spacing | None) -> VoxelStatistics:
        """The statistics of one image: `probs` (K, *S), `target` (*S) labels or (K, *S) soft."""
        mask = None
        if self.region != "all":
            if spacing_mm is None and self.region in _REGIONS_IN_MM:
                raise ValueError(
                    "Expected argument `spacing_mm` to be the voxel size, which the region "
                    f"{self.region!r} needs, but got None."
                )
            truth = target if target.ndim == probs.ndim - 1 else target.argmax(0)
            inside = REGIONS[self.region](
                truth.detach().cpu().numpy(),
                labels=probs.detach().argmax(0).cpu().numpy(),
                spacing_mm=1.0 if spacing_mm is None else spacing_mm,
                ignore_index=self.ignore_index,
            )
            mask = torch.as_tensor(inside, device=probs.device)
        bins = self.empty.bins
        return voxel_statistics(
            probs, target, bins.num_classes, mask,
            num_bins=bins.num_bins, ignore_index=self.ignore_index, batched=False,
        )  # fmt: skip


def _is_countable(metric: Metric) -> bool:
    return metric.additive and metric.requires is None


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
