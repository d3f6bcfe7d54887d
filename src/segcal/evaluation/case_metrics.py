"""What is measured of one predicted case: rows, bins, and a picture of one slice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from segcal.core.arrays import is_tensor, to_numpy
from segcal.metrics import CalibrationBins, CaseResult, Row, evaluate_case
from segcal.metrics.case import predicted_labels

if TYPE_CHECKING:
    from torch import Tensor

# Below this a predicted probability counts as this in the Kullback-Leibler divergence.
CLIP = 1e-7


@dataclass
class Predicted:
    """One case as a model sees it, on one grid.

    Args:
        name: of the case.
        probs: (K, *S), after softmax; on CUDA the counting happens there.
        target: integer labels (*S).
        spacing_mm: voxel size, one value per axis of S.
        image: (C, *S) or (*S), for pictures.
        logits: (K, *S), for their mean size.
        truth: true probabilities (K, *S), where they are known.
    """

    name: str
    probs: NDArray[Any] | Tensor
    target: NDArray[Any]
    spacing_mm: tuple[float, ...]
    image: NDArray[Any] | None = None
    logits: NDArray[Any] | Tensor | None = None
    truth: NDArray[Any] | None = None


@dataclass
class Picture:
    """The axial slice with the most true foreground, as bytes."""

    image: NDArray[np.uint8]
    truth: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    confidence: NDArray[np.uint8]
    spacing: NDArray[np.float64]


@dataclass
class Measured:
    """Everything that is kept of a case; the arrays of the case itself are not."""

    result: CaseResult
    picture: Picture
    truth_bins: CalibrationBins | None


def measure_case(case: Predicted, who: dict[str, Any], options: dict[str, Any]) -> Measured:
    """All metrics of a case. `who` names the run in its rows, `options` are `evaluate_case`'s."""
    result = evaluate_case(
        case.probs, case.target, case.spacing_mm, case=case.name, **who, **options
    )

    def add(label: str, region: str, metric: str, value: float) -> None:
        result.rows.append(
            Row(**who, case=case.name, label=label, region=region, metric=metric, value=value)
        )

    for region, bins in result.bins.items():
        add("all", region, "mean_confidence", mean_confidence(bins))
    if case.logits is not None:
        for label, value in enumerate(mean_abs_logits(case.logits, case.target)):
            add(str(label), "all", "mean_abs_logit", float(value))
    truth_bins = None
    if case.truth is not None:
        truth_bins, errors = _against_truth(case.probs, case.truth, options["num_bins"])
        for metric, value in errors.items():
            add("all", "all", metric, value)
    return Measured(result, _draw(case), truth_bins)


def mean_confidence(bins: CalibrationBins) -> float:
    """Mean of the largest probability; NaN where nothing was counted."""
    return float(bins.top_confidence.sum() / bins.voxels) if bins.voxels else float("nan")


def mean_abs_logits(logits: Any, target: NDArray[Any]) -> NDArray[np.float64]:
    """(K,): over the voxels of each true class, the mean of mean_k |logit_k|; NaN without any."""
    size = to_numpy(abs(logits).mean(0)).ravel()
    labels = np.asarray(target).ravel()
    counted = (labels >= 0) & (labels < len(logits))
    if not counted.all():
        size, labels = size[counted], labels[counted]
    total = np.bincount(labels, weights=size, minlength=len(logits))
    count = np.bincount(labels, minlength=len(logits))
    mean = np.divide(total, count, out=np.full(len(logits), np.nan), where=count > 0)
    return np.asarray(mean)


def _against_truth(
    probs: Any, truth: NDArray[Any], num_bins: int
) -> tuple[CalibrationBins, dict[str, float]]:
    """Bins against the true probabilities, and errors that need no bins; over all voxels.

    Stored truth is rounded to half precision: it is made to sum to 1 again.
    """
    true = np.asarray(truth, dtype=np.float32)
    true = true / true.sum(0, keepdims=True)
    soft: Any = true
    if is_tensor(probs):
        import torch

        soft = torch.from_numpy(true).to(probs.device)
    bins = CalibrationBins(len(true), num_bins).update(probs, soft, batched=False)
    found = to_numpy(probs).astype(np.float32, copy=False)
    ratio = np.log(np.maximum(true, CLIP)) - np.log(np.maximum(found, CLIP))
    return bins, {
        "truth_ece": bins.ece(),
        "truth_cece": bins.cece(),
        "truth_mae": float(np.abs(found - true).mean(dtype=np.float64)),
        "truth_kl": float((true * ratio).sum(0).mean(dtype=np.float64)),
    }


def _draw(case: Predicted) -> Picture:
    """The slice of the first axis with the largest true foreground; a plane is its own slice."""
    target = np.asarray(case.target)
    where: Any = ...
    if target.ndim == 3:
        where = int((target > 0).sum(axis=(1, 2)).argmax())
    probs: Any = case.probs[:, where]
    image = np.zeros(target.shape) if case.image is None else np.asarray(case.image)
    image = image[0] if image.ndim > target.ndim else image
    truth = np.where((target[where] < 0) | (target[where] > 255), 0, target[where])
    confidence = to_numpy(probs.max(0).values if is_tensor(probs) else probs.max(0))
    return Picture(
        image=_window(image[where]),
        truth=truth.astype(np.uint8),
        labels=predicted_labels(probs).astype(np.uint8),
        confidence=np.rint(255 * np.clip(confidence, 0, 1)).astype(np.uint8),
        spacing=np.array(case.spacing_mm[-2:], dtype=np.float64),
    )


def _window(image: NDArray[Any]) -> NDArray[np.uint8]:
    """The 1st to 99th percentile as 0 to 255."""
    low, high = (float(value) for value in np.percentile(image, (1, 99)))
    scaled = (image.astype(np.float64) - low) / ((high - low) or 1.0)
    return np.asarray(np.rint(255 * np.clip(scaled, 0, 1)), dtype=np.uint8)
