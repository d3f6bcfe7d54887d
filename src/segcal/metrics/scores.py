"""Proper scores (Brier, NLL), the parts of the Brier score, and equal-mass calibration error."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import Array, divide, is_tensor, to_numpy
from segcal.core.checks import check_int, check_number
from segcal.metrics._additive import AdditiveStatistics
from segcal.metrics._binning import Floats, Tables
from segcal.metrics._chunks import Chunk, iter_chunks
from segcal.metrics._validate import Inspector
from segcal.metrics.calibration import CalibrationBins

CLIP = 1e-12


class ProperScores(AdditiveStatistics):
    """Additive sums of the Brier score and the negative log-likelihood over a stream of voxels.

    Like `CalibrationBins`: constant memory, `merge` and `+` in any order.

    Args:
        num_classes: K, the number of classes of the model.
        clip: lower bound of a probability in the logarithm, so that one voxel adds at most
            −log(clip) (27.6 for 1e-12). A float32 softmax can be exactly 0; without the bound the
            NLL would be infinite.

    Example:
        >>> import numpy as np
        >>> scores = ProperScores(num_classes=2)
        >>> _ = scores.update(np.array([[0.2], [0.8]]), np.array([1]))
        >>> round(scores.brier(), 3), round(scores.nll(), 3)  # .2² + .2², −log .8
        (0.08, 0.223)
    """

    _settings = ("num_classes", "clip")
    _sums = ("voxels", "squared_error", "log_loss")
    _stored = (*_sums, "clip")

    def __init__(self, num_classes: int, clip: float = CLIP) -> None:
        self.num_classes = check_int("num_classes", num_classes, low=1)
        self.clip = check_number("clip", clip, low=0.0, high=1e-2, open_low=True)
        self._seen = Inspector(self.num_classes)
        self.voxels = 0
        self.squared_error: Floats = np.zeros(self.num_classes)
        self.log_loss = 0.0

    @classmethod
    def _empty_for(cls, state: Mapping[str, npt.NDArray[Any]]) -> "ProperScores":
        return cls(state["squared_error"].size, float(state["clip"]))

    def tally(self, chunk: Chunk, groups: int = 1) -> Tables:
        """The sums of the voxels of a checked chunk, for each of their groups."""
        sums = _score_torch if is_tensor(chunk.probs) else _score_numpy
        return sums(chunk, groups, self.clip)

    def brier(self) -> float:
        """Mean over voxels of Σ_k (p_k − t_k)², in [0, 2]. NaN without voxels."""
        return float(self.classwise_brier().sum())

    def classwise_brier(self) -> Floats:
        """(K,): the mean of (p_k − t_k)² of each class; `brier` is their sum."""
        return divide(self.squared_error, self.voxels)

    def nll(self) -> float:
        """Mean over voxels of −Σ_k t_k log p_k, natural logarithm, clipped. NaN without voxels."""
        return float(divide(self.log_loss, self.voxels))


def _score_numpy(chunk: Chunk, groups: int, clip: float) -> Tables:
    """With hard labels Σ(p − y)² = Σp² − 2 Σp_y + n_y, so p − y is not stored."""
    probs, target = chunk.probs.astype(np.float64), chunk.target
    num_classes, n = probs.shape
    group = chunk.group
    hard = target.ndim == 1
    if hard:
        own = probs.ravel().take(chunk.target_index)
        loss = -np.log(np.clip(own, clip, 1.0))
    else:
        loss = -(target * np.log(np.clip(probs, clip, 1.0))).sum(0)
        probs -= target
    if group is None:
        # Not `@`: starting the threads of BLAS takes longer than the sum.
        squared = np.einsum("kn,kn->k", probs, probs)[:, None]
        sums, count = np.array([loss.sum()]), np.array([n])
    else:
        # Adds the voxels of a group in their order, all classes of a voxel at once.
        from scipy.sparse import csc_array  # slow to import

        members = csc_array((np.ones(n), group, np.arange(n + 1)), shape=(groups, n))
        squared = (members @ np.square(probs.T, order="C")).T
        sums, count = np.bincount(group, loss, groups), np.bincount(group, minlength=groups)
    if hard:
        cell, size = target if group is None else target * groups + group, num_classes * groups
        squared += (np.bincount(cell, minlength=size) - 2 * np.bincount(cell, own, size)).reshape(
            num_classes, groups
        )
        squared = np.maximum(squared, 0.0)  # rounding may leave -1e-17 of perfect voxels
    return {"squared_error": squared.T, "log_loss": sums, "voxels": count}


def _score_torch(chunk: Chunk, groups: int, clip: float) -> Tables:
    import torch

    probs, target = chunk.probs.double(), chunk.target
    if target.ndim == 1:
        loss = -probs.gather(0, target[None])[0].clamp(clip, 1.0).log()
        error = probs.scatter_add(0, target[None], -torch.ones_like(probs[:1]))
    else:
        loss = -(target * probs.clamp(clip, 1.0).log()).sum(0)
        error = probs - target
    rows = torch.cat([error.square_(), loss[None], torch.ones_like(loss)[None]])
    if chunk.group is None:
        sums = rows.sum(1, keepdim=True)
    else:
        sums = rows.new_zeros(rows.shape[0], groups).index_add_(1, chunk.group, rows)
    out = to_numpy(sums)
    voxels = out[-1].astype(np.int64)
    return {"squared_error": out[:-2].T, "log_loss": out[-2], "voxels": voxels}


@dataclass(frozen=True)
class BrierParts:
    """Brier ≈ reliability − resolution + uncertainty, each summed over the classes.

    Attributes:
        reliability: Σ_k Σ_b n_kb/N (conf_kb − freq_kb)², the miscalibration; 0 is best.
        resolution: Σ_k Σ_b n_kb/N (freq_kb − freq_k)², how well the bins separate the outcomes;
            higher is better.
        uncertainty: Σ_k freq_k (1 − freq_k), a property of the data alone.
    """

    reliability: float
    resolution: float
    uncertainty: float

    @property
    def total(self) -> float:
        """The Brier score; exact if all probabilities in a bin are equal."""
        return self.reliability - self.resolution + self.uncertainty


def brier_parts(bins: CalibrationBins) -> BrierParts:
    """The three parts of the Brier score, from the classwise bins.

    `total` differs from the Brier score by the variance of p_k within a bin minus twice its
    covariance with the outcome, which is small for narrow bins. With soft targets, `uncertainty`
    also contains the variance of the targets, which `ProperScores.brier` does not count.
    """
    n = bins.voxels
    if n == 0:
        return BrierParts(float("nan"), float("nan"), float("nan"))
    count = bins.class_count
    filled = np.maximum(count, 1)
    confidence, frequency = bins.class_confidence / filled, bins.class_frequency / filled
    base = bins.class_frequency.sum(1, keepdims=True) / n
    return BrierParts(
        reliability=float((count * (confidence - frequency) ** 2).sum() / n),
        resolution=float((count * (frequency - base) ** 2).sum() / n),
        uncertainty=float((base * (1 - base)).sum()),
    )


def adaptive_ece(
    probs: Array,
    target: Array,
    num_classes: int,
    mask: Array | None = None,
    *,
    num_bins: int = 15,
    label: int | None = None,
    ignore_index: int = -100,
    batched: bool | None = None,
) -> float:
    """Calibration error over bins of equal mass, Σ_b n_b/N · |acc_b − conf_b|.

    The edges are quantiles of the confidences, right-closed. Equal confidences share a bin, so the
    order of voxels does not matter, and a map that saturates at 1.0 has fewer than `num_bins` bins.

    This error is not additive: quantiles of two sets do not give those of their union. The function
    stores one confidence and one outcome per voxel and sorts them.

    Args:
        label: None for the top label, or a class k for p_k against the frequency of class k.
        num_bins: number of groups of (nearly) equal mass.
        probs, target, num_classes, mask, ignore_index, batched: as `CalibrationBins.update`.
    """
    check_int("num_bins", num_bins, low=1)
    if label is not None:
        check_int("label", label, low=0, high=num_classes - 1)
    confidences, outcomes = [], []
    for chunk in iter_chunks(
        probs, target, num_classes, mask=mask, ignore_index=ignore_index, batched=batched,
        seen=Inspector(num_classes),
    ):  # fmt: skip
        hard = chunk.target.ndim == 1
        if label is None:
            confidence, predicted = chunk.top
            hit = (
                predicted == chunk.target if hard else chunk.target.take(chunk.index_of(predicted))
            )
        else:
            confidence = chunk.probs[label]
            hit = chunk.target == label if hard else chunk.target[label]
        confidences.append(to_numpy(confidence).copy())
        outcomes.append(to_numpy(hit).astype(np.float32))
    if not confidences:
        return float("nan")
    confidence, outcome = np.concatenate(confidences), np.concatenate(outcomes)
    order = np.argsort(confidence)
    return equal_mass_error(confidence[order], outcome[order], num_bins)


def equal_mass_error(
    confidence: npt.NDArray[Any],
    outcome: npt.NDArray[Any],
    num_bins: int,
    count: npt.NDArray[np.int64] | None = None,
) -> float:
    """`adaptive_ece` of voxels already sorted by confidence; `count`: so many of each."""
    n = len(confidence) if count is None else int(count.sum())
    if n == 0:
        return float("nan")
    last = np.ceil(n * np.arange(1, num_bins + 1) / num_bins).astype(np.int64) - 1
    if count is not None:
        last = np.searchsorted(np.cumsum(count), last, side="right")
    # A bin ends after the last voxel with the confidence of its quantile: ties share a bin.
    ends = np.unique(np.searchsorted(confidence, confidence[last], side="right"))
    starts = np.concatenate([[0], ends[:-1]])
    gap = confidence.astype(np.float64)
    gap -= outcome
    if count is not None:
        gap *= count
    return float(np.abs(np.add.reduceat(gap, starts)).sum() / n)
