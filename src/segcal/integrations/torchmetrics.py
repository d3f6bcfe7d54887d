"""Calibration as torchmetrics metrics, whose states add exactly over batches and processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from segcal.core.checks import require
from segcal.integrations._count import ImageCounter, Spacing, as_target
from segcal.metrics import DEFAULT_REGION, Reliability, VoxelStatistics

require("torchmetrics")
from torchmetrics import Metric  # noqa: E402

# The sums that are states; `clip` is a setting.
_SUMS = tuple(name for name in VoxelStatistics.empty(1, 1).state() if name != "clip")


class CalibrationMetrics(Metric):
    """ECE, CECE, Brier score and NLL of a stream of voxels, as a dict of tensors.

    States are int64 counts and float64 sums, so processes merge them exactly, in any order, and
    memory does not grow with the number of voxels. They keep these types if the module around them
    is cast (`.half()`, `.to(torch.bfloat16)`). A device without float64 (MPS) cannot hold them.

    `update(probs, target, spacing_mm=None)`: `probs` (B, K, *S) after softmax; `target` (B, *S) or
    (B, 1, *S) labels, or (B, K, *S) one-hot or soft. Invalid input (logits, labels out of range)
    raises an error, and nothing is counted.

    Args:
        num_classes: K, the number of classes of the model, including those that do not occur.
        metrics: additive metrics of `segcal.metrics.METRICS`: "ece", "cece", "signed_gap",
            "brier", "nll", …, or those of a plugin.
        region: where to measure, a name of `segcal.metrics.REGIONS`.
        num_bins: bins of the calibration errors.
        ignore_index: label of voxels that are not counted.
        options: options of `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = CalibrationMetrics(num_classes=2, metrics=["ece", "nll"])
        >>> metric.update(torch.tensor([[[0.2, 0.4], [0.8, 0.6]]]), torch.tensor([[1, 1]]))
        >>> {name: round(float(value), 3) for name, value in metric.compute().items()}
        {'ece': 0.3, 'nll': 0.367}
    """

    is_differentiable = False
    full_state_update = False

    @property
    def higher_is_better(self) -> bool | None:  # type: ignore[override]
        """The direction that all metrics share; None if they differ."""
        directions = {metric.better for metric in self.counter.metrics.values()}
        if directions == {"higher"}:
            return True
        return False if directions == {"lower"} else None

    def __init__(
        self,
        num_classes: int,
        metrics: Sequence[str] = ("ece", "cece", "brier", "nll"),
        *,
        region: str = DEFAULT_REGION,
        num_bins: int = 15,
        ignore_index: int = -100,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.counter = ImageCounter(
            num_classes, metrics, region=region, num_bins=num_bins, ignore_index=ignore_index
        )
        for name, array in self.counter.empty.state().items():
            if name in _SUMS:
                self.add_state(name, torch.as_tensor(array), dist_reduce_fx="sum")
        # A MetricCollection lets metrics share their states if names and values are equal after the
        # first batch. A first batch may be all foreground, so the name tells the regions apart.
        counted = f"counted_{region}_{ignore_index}".replace("-", "minus")
        self.add_state(counted, torch.zeros(1, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, probs: Tensor, target: Tensor, spacing_mm: Spacing | None = None) -> None:
        """Count a batch; `spacing_mm` is needed for the regions in millimeters."""
        target = as_target(target, probs)
        batch = self.counter.empty
        for one, truth in zip(probs, target, strict=True):
            batch += self.counter.count(one, truth, spacing_mm)
        for name, array in batch.state().items():
            if name in _SUMS:
                state = getattr(self, name)
                setattr(self, name, state + torch.as_tensor(array).to(state.device))

    def statistics(self) -> VoxelStatistics:
        """The statistics so far, of this process."""
        sums = {name: getattr(self, name).cpu().numpy() for name in _SUMS}
        return VoxelStatistics.from_state({**self.counter.empty.state(), **sums})

    def compute(self) -> Any:
        """The metrics; NaN while nothing has been counted."""
        counted = self.statistics()
        return {
            key: torch.as_tensor(metric.read(counted), dtype=torch.float64, device=self.device)
            for key, metric in self.counter.metrics.items()
        }

    def reliability(self, label: int | None = None) -> Reliability:
        """The reliability diagram, over all processes; of the top label or of one class."""
        with self.sync_context(
            dist_sync_fn=self.dist_sync_fn,
            should_sync=self._to_sync,
            should_unsync=self._should_unsync,
        ):
            return self.statistics().bins.reliability(label)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Any:
        """Move the states with the module without casting them: float16 sums stop at 2048."""

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(move, *args, **kwargs)


class _One(CalibrationMetrics):
    """One metric as a tensor; several in a `MetricCollection` share one state."""

    name = ""

    def __init__(self, num_classes: int, **options: Any) -> None:
        super().__init__(num_classes, (self.name,), **options)

    def compute(self) -> Any:
        return super().compute()[self.name]


class ECE(_One):
    """Expected calibration error of the predicted class; options as `CalibrationMetrics`.

    Example:
        >>> import torch
        >>> ece = ECE(num_classes=2)
        >>> ece.update(torch.tensor([[[0.2, 0.4], [0.8, 0.6]]]), torch.tensor([[1, 1]]))
        >>> round(float(ece.compute()), 3)
        0.3
    """

    name = "ece"


class CECE(_One):
    """Classwise expected calibration error, mean over classes; options as `CalibrationMetrics`."""

    name = "cece"


class Brier(_One):
    """Brier score, in [0, 2]; options as `CalibrationMetrics`."""

    name = "brier"


class NLL(_One):
    """Negative log-likelihood; options as `CalibrationMetrics`."""

    name = "nll"


__all__ = ["CECE", "ECE", "NLL", "Brier", "CalibrationMetrics"]
