"""Calibration as a MONAI metric, for loops, handlers and bundles.

The losses of segcal need no wrapper: MONAI calls them as `loss(output, label)` with labels
(B, 1, *S) or one-hot, and a bundle names them by class path (`_target_: segcal.losses.NACLLoss`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from segcal.core.checks import check_choice, require
from segcal.integrations._count import ImageCounter, Spacing, as_target
from segcal.metrics import DEFAULT_REGION, VoxelStatistics

require("monai")
from monai.metrics.metric import CumulativeIterationMetric  # noqa: E402

Average = Literal["voxels", "cases"]


class CalibrationMetric(CumulativeIterationMetric):
    """Calibration errors over an epoch: call it on every batch, then `aggregate`, then `reset`.

    `metric(y_pred, y)`: `y_pred` are probabilities, (B, K, *S) or a list of (K, *S); `y` are labels
    with or without a channel axis of 1, or one-hot. A call returns, and the metric stores, one row
    of additive counts per image (integers are exact in float64 up to 2⁵³). `aggregate` over several
    processes gives the result of one process, even if one of them has no image.

    Args:
        num_classes: K, the number of classes of the model, including those that do not occur.
        metrics: an additive metric of `segcal.metrics.METRICS` ("ece", "cece", "signed_gap",
            "brier", "nll", …), or several.
        region: where to measure, a name of `segcal.metrics.REGIONS`.
        average: "voxels" pools all voxels of all images; "cases" is the mean over images with a
            voxel in the region.
        softmax: whether `y_pred` are logits.
        spacing_mm: voxel size for the regions in millimeters; None takes it from the label or the
            output if that is a MetaTensor.
        num_bins: bins of the calibration errors.
        ignore_index: label of voxels that are not counted.

    `aggregate` returns a tensor for one name, and a dict of tensors for several (MONAI's
    `IgniteMetricHandler` stores each under its name). For errors lower is better: an evaluator that
    keeps the best checkpoint needs `metric_cmp_fn=lambda new, best: new < best`.

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
        region: str = DEFAULT_REGION,
        average: Average = "voxels",
        softmax: bool = False,
        spacing_mm: Spacing | None = None,
        num_bins: int = 15,
        ignore_index: int = -100,
    ) -> None:
        super().__init__()
        check_choice("average", average, get_args(Average))
        self.counter = ImageCounter(
            num_classes, metrics, region=region, num_bins=num_bins, ignore_index=ignore_index
        )
        self.single = isinstance(metrics, str)
        self.average = average
        self.softmax = softmax
        self.spacing_mm = spacing_mm

    def _compute_tensor(self, y_pred: Tensor, y: Tensor | None = None, **given: Any) -> Tensor:
        """Counts of each image of a batch, (B, L); a call may give `spacing_mm`."""
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
            _pack(self.counter.count(one, truth.to(one.device), sizes))
            for one, truth in zip(probs, target, strict=True)
        ]
        return torch.from_numpy(np.stack(rows)).to(probs.device)

    def aggregate(self, average: Average | None = None) -> Tensor | dict[str, Tensor]:
        """The metrics over all images since `reset`, in all processes.

        Args:
            average: overrides the option of the metric.
        """
        average = self.average if average is None else average
        check_choice("average", average, get_args(Average))
        images = self.statistics()
        groups = [sum(images, self.counter.empty)]
        if average == "cases":
            groups = [image for image in images if image.bins.voxels] or groups
        values = {
            key: torch.as_tensor(np.mean([metric.read(group) for group in groups], axis=0))
            for key, metric in self.counter.metrics.items()
        }
        return next(iter(values.values())) if self.single else values

    def statistics(self) -> list[VoxelStatistics]:
        """The statistics of every image, in all processes."""
        buffer = self.get_buffer()
        if buffer is None:
            return []
        return [_unpack(row, self.counter.empty) for row in buffer.cpu().numpy()]

    def _sync(self) -> None:
        """A process without an image takes part with a row of zeros, so that others do not wait."""
        if self._buffers is None and torch.distributed.is_initialized():
            on_gpu = torch.distributed.get_backend() == "nccl"
            row = torch.from_numpy(_pack(self.counter.empty))
            self._buffers = [[row.cuda() if on_gpu else row]]
        super()._sync()


def _plain(array: Any) -> Tensor:
    """A tensor without the metadata that MONAI would track in every slice."""
    tensor = torch.as_tensor(array)
    return tensor.as_subclass(Tensor) if type(tensor) is not Tensor else tensor


def _spacing_of(*arrays: Any) -> tuple[float, ...] | None:
    """The voxel size of a MetaTensor, or None. All images of a batch must share it."""
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


def _pack(statistics: VoxelStatistics) -> np.ndarray[Any, Any]:
    """All counts and sums as one row of float64."""
    return np.concatenate([part.astype(np.float64).ravel() for part in statistics.state().values()])


def _unpack(row: np.ndarray[Any, Any], empty: VoxelStatistics) -> VoxelStatistics:
    """The inverse of `_pack`; `empty` has the shapes and dtypes."""
    state, start = {}, 0
    for name, array in empty.state().items():
        part = row[start : start + array.size].reshape(array.shape)
        state[name] = part.round().astype(np.int64) if array.dtype.kind == "i" else part
        start += array.size
    return VoxelStatistics.from_state(state)


__all__ = ["CalibrationMetric"]
