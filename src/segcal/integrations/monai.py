"""Calibration as a MONAI metric, for loops, handlers and bundles.

segcal's losses need no wrapper: they are called as MONAI calls a loss, `loss(output, label)` with
labels (B, 1, *S) or one-hot, and a bundle names them by class path
(`_target_: segcal.losses.NACLLoss`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal.core.checks import check_choice, check_int, require
from segcal.integrations._count import (
    READOUTS,
    Spacing,
    as_target,
    check_names,
    count_image,
    nothing,
)
from segcal.metrics import REGIONS, CalibrationBins, ProperScores
from segcal.metrics.calibration_and_scores import Measured

require("monai")
from monai.metrics.metric import CumulativeIterationMetric  # noqa: E402

AVERAGES = ("voxels", "cases")


class CalibrationMetric(CumulativeIterationMetric):
    """ECE and its relatives over an epoch: call it on every batch, then `aggregate`, then `reset`.

    `metric(y_pred, y)`: `y_pred` are probabilities, (B, K, *S) or a list of (K, *S); `y` labels
    with a channel axis of 1 as MONAI has them (or without), or one-hot. Returned, and kept, is one
    row of additive counts per image (int64 exact in float64 up to 2⁵³), so `aggregate` over
    several processes is what one process would say, also where one of them saw no image.

    Args:
        num_classes: K, the classes of the model, whether or not they occur.
        metrics: "ece", "cece", "ace", "mce", "signed_gap", "brier" or "nll"; or several of them.
        region: where to measure: "all", "foreground", "union" or "boundary".
        average: "voxels" pools all voxels of all images; "cases" is the mean over images, leaving
            out those without a voxel in the region.
        softmax: whether `y_pred` are logits that still need one.
        spacing_mm: voxel size for the regions in millimetres; None takes it from the label or the
            output where that is a MetaTensor.
        num_bins: bins of the calibration errors.
        ignore_index: label of voxels that do not count.

    `aggregate` gives a tensor for one name, and a dict of tensors for several (MONAI's
    `IgniteMetricHandler` puts each under its name). Lower is better: an evaluator that keeps the
    best checkpoint needs `metric_cmp_fn=lambda new, best: new < best`.

    Example:
        >>> import torch
        >>> metric = CalibrationMetric(num_classes=2, metrics="ece")
        >>> _ = metric(torch.tensor([[[0.2, 0.4], [0.8, 0.6]]]), torch.tensor([[[1, 1]]]))
        >>> round(float(metric.aggregate()), 3)
        0.3
    """

    def __init__(
        self,
        num_classes: int,
        metrics: str | Sequence[str] = "ece",
        *,
        region: str = "all",
        average: str = "voxels",
        softmax: bool = False,
        spacing_mm: Spacing | None = None,
        num_bins: int = 15,
        ignore_index: int = -100,
    ) -> None:
        super().__init__()
        check_choice("region", region, REGIONS)
        check_choice("average", average, AVERAGES)
        self.num_classes = check_int("num_classes", num_classes, low=1)
        self.num_bins = check_int("num_bins", num_bins, low=1, high=10_000)
        self.ignore_index = check_int("ignore_index", ignore_index)
        self.single = isinstance(metrics, str)
        self.metrics = check_names([metrics] if isinstance(metrics, str) else list(metrics))
        self.region = region
        self.average = average
        self.softmax = softmax
        self.spacing_mm = spacing_mm

    def _compute_tensor(self, y_pred: Tensor, y: Tensor | None = None, **given: Any) -> Tensor:
        """Counts of each image of a batch, (B, L). Of a call, `spacing_mm` may be `given`."""
        for name in given:
            check_choice("argument of the metric", name, ("spacing_mm",))
        if y is None:
            raise ValueError("Expected argument `y` to be the labels, but got None.")
        sizes = given.get("spacing_mm", self.spacing_mm)
        sizes = _spacing_of(y, y_pred) if sizes is None else sizes
        probs, target = _plain(y_pred), _plain(y)
        if self.softmax:
            probs = torch.softmax(probs.float(), 1)
        target = as_target(target, probs)
        rows = [
            _pack(
                count_image(
                    one, truth.to(one.device), self.num_classes,
                    num_bins=self.num_bins, region=self.region,
                    spacing_mm=sizes, ignore_index=self.ignore_index,
                )
            )
            for one, truth in zip(probs, target, strict=True)
        ]  # fmt: skip
        return torch.from_numpy(np.stack(rows)).to(probs.device)

    def aggregate(self, average: str | None = None) -> Tensor | dict[str, Tensor]:
        """The numbers over everything seen since `reset`, in all processes.

        Args: `average` overrides that of the metric.
        """
        average = self.average if average is None else average
        check_choice("average", average, AVERAGES)
        rows = self.measured()
        groups = [sum(rows, nothing(self.num_classes, self.num_bins))]
        if average == "cases":
            groups = [row for row in rows if row.bins.voxels] or groups
        values = {
            name: torch.tensor(
                float(np.mean([READOUTS[name](group) for group in groups])), dtype=torch.float64
            )
            for name in self.metrics
        }
        return values[self.metrics[0]] if self.single else values

    def measured(self) -> list[Measured]:
        """The counts of every image, in all processes, as segcal's own objects."""
        buffer = self.get_buffer()
        if buffer is None:
            return []
        return [_unpack(row, self.num_classes, self.num_bins) for row in buffer.cpu().numpy()]

    def _sync(self) -> None:
        """A process that saw no image joins in with a row of zeros; else the others would wait."""
        if self._buffers is None and torch.distributed.is_initialized():
            on_gpu = torch.distributed.get_backend() == "nccl"
            row = torch.from_numpy(_pack(nothing(self.num_classes, self.num_bins)))
            self._buffers = [[row.cuda() if on_gpu else row]]
        super()._sync()


def _plain(array: Any) -> Tensor:
    """A tensor without metadata, whose every slice would be tracked."""
    tensor = torch.as_tensor(array)
    return tensor.as_subclass(Tensor) if type(tensor) is not Tensor else tensor


def _spacing_of(*arrays: Any) -> tuple[float, ...] | None:
    """The voxel size that a MetaTensor knows, or None. All images of a batch must share it."""
    for array in arrays:
        affine = getattr(array, "affine", None)
        if affine is None:
            continue
        matrix = np.asarray(torch.as_tensor(affine).cpu(), dtype=np.float64)
        axes = array.ndim - 2
        if matrix.ndim not in (2, 3) or matrix.shape[-1] <= axes:
            continue
        sizes = np.sqrt((matrix[..., :-1, :axes] ** 2).sum(-2)).reshape(-1, axes)
        if not np.allclose(sizes, sizes[0]):
            raise ValueError(
                "Expected the images of a batch to have the same voxel size, but got "
                f"{sizes.round(4).tolist()}: decollate the batch first."
            )
        return tuple(float(size) for size in sizes[0])
    return None


def _pack(counted: Measured) -> np.ndarray[Any, Any]:
    """Counts as one row of float64."""
    bins, scores = counted.bins.state(), counted.scores
    parts = [*bins.values(), scores.squared_error, [scores.voxels, scores.log_loss]]
    return np.concatenate([np.asarray(part, dtype=np.float64).ravel() for part in parts])


def _unpack(row: np.ndarray[Any, Any], num_classes: int, num_bins: int) -> Measured:
    """The inverse of `_pack`."""
    template = CalibrationBins(num_classes, num_bins).state()
    state, start = {}, 0
    for name, array in template.items():
        part = row[start : start + array.size].reshape(array.shape)
        state[name] = part.round().astype(np.int64) if array.dtype.kind == "i" else part
        start += array.size
    scores = ProperScores(num_classes)
    scores.squared_error = row[start : start + num_classes].copy()
    scores.voxels, scores.log_loss = round(row[-2]), float(row[-1])
    return Measured(CalibrationBins.from_state(state), scores)


__all__ = ["CalibrationMetric"]
