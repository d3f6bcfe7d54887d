"""Proper scores (Brier, NLL), the parts of the Brier score, and equal-mass calibration error."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import Array, is_tensor, to_numpy
from segcal.core.checks import check_int, check_number
from segcal.metrics._binning import Floats, top_of
from segcal.metrics._chunks import Chunk, iter_chunks
from segcal.metrics._validate import Inspector
from segcal.metrics.calibration import CalibrationBins, check_sums

CLIP = 1e-12


class ProperScores:
    """Additive sums behind the Brier score and the negative log-likelihood of a stream of voxels.

    Like `CalibrationBins`: constant memory, `merge` and `+` in any order.

    Args:
        num_classes: K, the classes of the model.
        clip: probabilities below it count as it in the logarithm, so that one voxel adds at most
            −log(clip) (27.6 for 1e-12). A network can say exactly 0 in float32; its honest NLL
            would be infinite.

    Example:
        >>> import numpy as np
        >>> scores = ProperScores(num_classes=2)
        >>> _ = scores.update(np.array([[0.2], [0.8]]), np.array([1]))
        >>> round(scores.brier(), 3), round(scores.nll(), 3)  # .2² + .2², −log .8
        (0.08, 0.223)
    """

    def __init__(self, num_classes: int, clip: float = CLIP) -> None:
        self.num_classes = check_int("num_classes", num_classes, low=1)
        self.clip = check_number("clip", clip, low=0.0, high=1e-2, open_low=True)
        self._seen = Inspector(self.num_classes)
        self.voxels = 0
        self.squared_error: Floats = np.zeros(self.num_classes)
        self.log_loss = 0.0

    def update(
        self,
        probs: Array,
        target: Array,
        mask: Array | None = None,
        *,
        ignore_index: int = -100,
        batched: bool | None = None,
    ) -> "ProperScores":
        """Add the voxels of a volume or batch; arguments and errors as `CalibrationBins.update`."""
        fresh = ProperScores(self.num_classes, self.clip)
        for chunk in iter_chunks(
            probs, target, self.num_classes,
            mask=mask, ignore_index=ignore_index, batched=batched, seen=fresh._seen,
        ):  # fmt: skip
            fresh.merge(score_groups(chunk, self.num_classes, 1, self.clip)[0])
        self.merge(fresh)
        if mask is None:
            self._seen.warn_of_second_softmax()
        return self

    def merge(self, other: "ProperScores") -> "ProperScores":
        """Add the sums of `other` to these; returns itself."""
        if not isinstance(other, ProperScores):
            raise TypeError(
                f"Expected argument `other` to be ProperScores, but got {type(other).__name__}."
            )
        ours, theirs = (self.num_classes, self.clip), (other.num_classes, other.clip)
        if ours != theirs:
            raise ValueError(
                f"Expected argument `other` to have (num_classes, clip) = {ours}, but got {theirs}."
            )
        self.voxels += other.voxels
        self.squared_error = self.squared_error + other.squared_error
        self.log_loss += other.log_loss
        self._seen.merge(other._seen)
        return self

    def __add__(self, other: "ProperScores") -> "ProperScores":
        if not isinstance(other, ProperScores):
            return NotImplemented
        return ProperScores(self.num_classes, self.clip).merge(self).merge(other)

    def __radd__(self, other: object) -> "ProperScores":
        """`sum(scores)` starts from 0."""
        if other != 0:
            return NotImplemented
        return ProperScores(self.num_classes, self.clip).merge(self)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything, as arrays that `numpy.savez` takes; `from_state` is its inverse."""
        return {
            "voxels": np.array(self.voxels, dtype=np.int64),
            "squared_error": self.squared_error.copy(),
            "log_loss": np.array(self.log_loss),
            "clip": np.array(self.clip),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, npt.ArrayLike]) -> "ProperScores":
        """Scores from what `state` gave (a dict, or an opened npz file)."""
        names = ("voxels", "squared_error", "log_loss", "clip")
        missing = sorted(set(names) - set(state))
        if missing:
            raise ValueError(
                f"Expected argument `state` to hold {missing}, but got {sorted(state)}."
            )
        arrays = {name: np.asarray(state[name]) for name in names}
        for name, array in arrays.items():
            if array.ndim != (1 if name == "squared_error" else 0):
                raise ValueError(
                    f"Expected `state[{name!r}]` to be a number or, for the squared "
                    f"error, one per class, but got shape {array.shape}."
                )
            check_sums(f"state[{name!r}]", array)
        if arrays["voxels"].dtype.kind not in "iu":
            raise ValueError(
                f"Expected `state['voxels']` to be an integer, but got {arrays['voxels'].dtype}."
            )
        new = cls(len(arrays["squared_error"]), float(arrays["clip"]))
        new.voxels, new.log_loss = int(arrays["voxels"]), float(arrays["log_loss"])
        new.squared_error = arrays["squared_error"].astype(np.float64)
        return new

    def __repr__(self) -> str:
        return (
            f"ProperScores(num_classes={self.num_classes}, clip={self.clip}, voxels={self.voxels})"
        )

    def brier(self) -> float:
        """Mean over voxels of Σ_k (p_k − t_k)², in [0, 2]. NaN without voxels."""
        return float(self.classwise_brier().sum())

    def classwise_brier(self) -> Floats:
        """(K,): the mean of (p_k − t_k)² of each class; `brier` is their sum."""
        return (
            self.squared_error / self.voxels if self.voxels else np.full(self.num_classes, np.nan)
        )

    def nll(self) -> float:
        """Mean over voxels of −Σ_k t_k log p_k, natural logarithm, clipped. NaN without voxels."""
        return self.log_loss / self.voxels if self.voxels else float("nan")


def score_groups(chunk: Chunk, num_classes: int, groups: int, clip: float) -> list[ProperScores]:
    """The sums of one chunk, for each group of its voxels."""
    squared, loss, count = (
        _score_torch(chunk, groups, clip)
        if is_tensor(chunk.probs)
        else _score_numpy(chunk, groups, clip)
    )
    out = []
    for g in range(groups):
        scores = ProperScores(num_classes, clip)
        scores.voxels, scores.log_loss = int(count[g]), float(loss[g])
        scores.squared_error = squared[:, g]
        out.append(scores)
    return out


Sums = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]


def _score_numpy(chunk: Chunk, groups: int, clip: float) -> Sums:
    """With hard labels Σ(p − y)² is Σp² − 2 Σp_y + n_y: p − y is never built."""
    probs, target = chunk.probs.astype(np.float64), chunk.target
    num_classes, n = probs.shape
    group = chunk.group
    hard = target.ndim == 1
    if hard:
        own = probs.ravel().take(chunk.own)
        loss = -np.log(np.clip(own, clip, 1.0))
    else:
        loss = -(target * np.log(np.clip(probs, clip, 1.0))).sum(0)
        probs -= target
    if group is None:
        # Not `@`: BLAS wakes its threads for it, which takes longer than the sum.
        squared = np.einsum("kn,kn->k", probs, probs)[:, None]
        sums, count = np.array([loss.sum()]), np.array([n])
    else:
        squared = np.stack([np.bincount(group, row * row, groups) for row in probs])
        sums, count = np.bincount(group, loss, groups), np.bincount(group, minlength=groups)
    if hard:
        cell, size = target if group is None else target * groups + group, num_classes * groups
        squared += (np.bincount(cell, minlength=size) - 2 * np.bincount(cell, own, size)).reshape(
            num_classes, groups
        )
        squared = np.maximum(squared, 0.0)  # what is left of perfect voxels may be -1e-17
    return squared, sums, count


def _score_torch(chunk: Chunk, groups: int, clip: float) -> Sums:
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
    return out[:-2], out[-2], out[-1]


def brier(
    probs: Array,
    target: Array,
    num_classes: int,
    mask: Array | None = None,
    *,
    ignore_index: int = -100,
    batched: bool | None = None,
) -> float:
    """Brier score, mean over voxels of Σ_k (p_k − t_k)² (the class sum: [0, 2]).

    Mergeable: `ProperScores` adds it over batches and cases. Twice the two-class form of some
    libraries. Arguments as `CalibrationBins.update`.
    """
    scores = ProperScores(num_classes)
    scores.update(probs, target, mask, ignore_index=ignore_index, batched=batched)
    return scores.brier()


def nll(
    probs: Array,
    target: Array,
    num_classes: int,
    mask: Array | None = None,
    *,
    clip: float = CLIP,
    ignore_index: int = -100,
    batched: bool | None = None,
) -> float:
    """Negative log-likelihood, mean over voxels of −Σ_k t_k log max(p_k, clip), natural logarithm.

    Mergeable: `ProperScores` adds it over batches and cases. Arguments as `CalibrationBins.update`.
    """
    scores = ProperScores(num_classes, clip)
    scores.update(probs, target, mask, ignore_index=ignore_index, batched=batched)
    return scores.nll()


@dataclass(frozen=True)
class BrierParts:
    """Brier ≈ reliability − resolution + uncertainty, each summed over the classes.

    reliability: Σ_k Σ_b n_kb/N (conf_kb − freq_kb)², the miscalibration; 0 is best.
    resolution: Σ_k Σ_b n_kb/N (freq_kb − freq_k)², how far the bins tell voxels apart; more is
    better.
    uncertainty: Σ_k freq_k (1 − freq_k), the data's own, whatever the model.
    """

    reliability: float
    resolution: float
    uncertainty: float

    @property
    def total(self) -> float:
        """The Brier score these parts make; exact where all probabilities of a bin are equal."""
        return self.reliability - self.resolution + self.uncertainty


def brier_parts(bins: CalibrationBins) -> BrierParts:
    """The three parts of the Brier score, from the classwise bins; mergeable because the bins are.

    Binning loses what happens inside a bin: `total` differs from the Brier score by the within-bin
    variance of p_k minus twice its covariance with the outcome, small with narrow bins. With soft
    targets, `uncertainty` also holds the targets' own softness, which the Brier score of `brier`
    does not count.
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

    The edges are quantiles of the confidences themselves, right-closed; equal confidences share a
    bin, so the order of voxels does not matter, and a map that saturates at 1.0 fills fewer bins
    than asked.

    NOT mergeable: quantiles of two sets do not give those of their union. It keeps one confidence
    and one outcome per voxel and sorts them; the mean over cases is not the pooled value.

    Args:
        label: None for the top label, or a class k for p_k against the frequency of class k.
        num_bins: how many groups of (nearly) equal mass.
        probs, target, num_classes, mask, ignore_index, batched: as `CalibrationBins.update`.
    """
    check_int("num_bins", num_bins, low=1)
    if label is not None:
        check_int("label", label, low=0, high=num_classes - 1)
    confidences, outcomes = [], []
    seen = Inspector(num_classes)
    for chunk in iter_chunks(
        probs, target, num_classes,
        mask=mask, ignore_index=ignore_index, batched=batched, seen=seen,
    ):  # fmt: skip
        p, t = to_numpy(chunk.probs), to_numpy(chunk.target)
        if label is None:
            confidence, predicted = top_of(Chunk(p, t))
            hit = predicted == t if t.ndim == 1 else np.take_along_axis(t, predicted[None], 0)[0]
        else:
            confidence, hit = p[label], t == label if t.ndim == 1 else t[label]
        confidences.append(confidence.copy())
        outcomes.append(hit.astype(np.float32))
    if mask is None:
        seen.warn_of_second_softmax()
    if not confidences:
        return float("nan")
    confidence, outcome = np.concatenate(confidences), np.concatenate(outcomes)
    order = np.argsort(confidence)
    return equal_mass_error(confidence[order], outcome[order], num_bins)


def equal_mass_error(
    confidence: npt.NDArray[Any], outcome: npt.NDArray[Any], num_bins: int
) -> float:
    """`adaptive_ece` of voxels already sorted by confidence."""
    n = len(confidence)
    if n == 0:
        return float("nan")
    last = np.ceil(n * np.arange(1, num_bins + 1) / num_bins).astype(np.int64) - 1
    # A bin ends after the last voxel that has the confidence of its quantile: ties stay together.
    ends = np.unique(np.searchsorted(confidence, confidence[last], side="right"))
    starts = np.concatenate([[0], ends[:-1]])
    gap = confidence.astype(np.float64) - outcome
    return float(np.abs(np.add.reduceat(gap, starts)).sum() / n)
