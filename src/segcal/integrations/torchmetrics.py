"""Calibration as torchmetrics `Metric`s, whose states add exactly over batches and processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal.core.checks import check_choice, check_int, require
from segcal.integrations._count import (
    Spacing,
    additive_metrics,
    as_target,
    count_image,
    empty_statistics,
)
from segcal.metrics import (
    DEFAULT_REGION,
    REGIONS,
    CalibrationBins,
    ProperScores,
    Reliability,
    VoxelStatistics,
)

require("torchmetrics")
from torchmetrics import Metric  # noqa: E402

_BINS = tuple(CalibrationBins(1, 1).state())
_SCORES = ("voxels", "squared_error", "log_loss")


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
        region: where to measure: "all", "foreground", "union" or "boundary".
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
        directions = {metric.better for metric in additive_metrics(self.metrics).values()}
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
        check_choice("region", region, REGIONS)
        self.num_classes = check_int("num_classes", num_classes, low=1)
        self.num_bins = check_int("num_bins", num_bins, low=1, high=10_000)
        self.ignore_index = check_int("ignore_index", ignore_index)
        self.metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        additive_metrics(self.metrics)
        self.region = region
        for name, array in _arrays(empty_statistics(self.num_classes, self.num_bins)).items():
            self.add_state(name, torch.as_tensor(array), dist_reduce_fx="sum")
        # A MetricCollection lets metrics share their states if names and values are equal after the
        # first batch. A first batch may be all foreground, so the name tells the regions apart.
        counted = f"counted_{region}_{self.ignore_index}".replace("-", "minus")
        self.add_state(counted, torch.zeros(1, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, probs: Tensor, target: Tensor, spacing_mm: Spacing | None = None) -> None:
        """Count a batch; `spacing_mm` is needed for the regions in millimeters."""
        target = as_target(target, probs)
        batch = empty_statistics(self.num_classes, self.num_bins)
        for one, truth in zip(probs, target, strict=True):
            batch += count_image(
                one, truth, self.num_classes,
                num_bins=self.num_bins, region=self.region,
                spacing_mm=spacing_mm, ignore_index=self.ignore_index,
            )  # fmt: skip
        for name, array in _arrays(batch).items():
            state = getattr(self, name)
            setattr(self, name, state + torch.as_tensor(array).to(state.device))

    def statistics(self) -> VoxelStatistics:
        """The statistics so far, of this process."""
        state = {name: getattr(self, name).cpu().numpy() for name in (*_BINS, *_SCORES)}
        clip = ProperScores(self.num_classes).clip
        return VoxelStatistics(
            CalibrationBins.from_state({name: state[name] for name in _BINS}),
            ProperScores.from_state({**{n: state[n] for n in _SCORES}, "clip": np.array(clip)}),
        )

    def compute(self) -> Any:
        """The metrics; NaN while nothing has been counted."""
        counted = self.statistics()
        return {
            key: self._tensor(metric.read(counted))
            for key, metric in additive_metrics(self.metrics).items()
        }

    def reliability(self, label: int | None = None) -> Reliability:
        """The reliability diagram, over all processes; of the top label or of one class."""
        with self.sync_context(
            dist_sync_fn=self.dist_sync_fn,
            should_sync=self._to_sync,
            should_unsync=self._should_unsync,
        ):
            return self.statistics().bins.reliability(label)

    def _tensor(self, value: Any) -> Tensor:
        return torch.as_tensor(value, dtype=torch.float64, device=self.device)

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


def _arrays(counted: VoxelStatistics) -> dict[str, Any]:
    scores = counted.scores.state()
    return {**counted.bins.state(), **{name: scores[name] for name in _SCORES}}


__all__ = ["CECE", "ECE", "NLL", "Brier", "CalibrationMetrics"]
