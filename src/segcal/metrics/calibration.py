"""Calibration as additive statistics: count once, read every calibration error off the counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import Array
from segcal.core.checks import check_choice, check_int
from segcal.metrics._binning import BinTables, Floats, Ints, bin_edges, empty_tables, tally
from segcal.metrics._chunks import iter_chunks
from segcal.metrics._validate import Inspector

_INTS = ("top_count", "class_count")
_FLOATS = ("top_confidence", "top_accuracy", "class_confidence", "class_frequency")

# Mean confidence and accuracy that differ by less than this are called balanced.
BALANCED_GAP = 0.01
ConfidenceVerdict = Literal["over-confident", "under-confident", "balanced", "undefined"]


def confidence_verdict(signed_gap: float) -> ConfidenceVerdict:
    """What mean confidence minus accuracy says about a network; "undefined" for NaN.

    Example:
        >>> confidence_verdict(0.03), confidence_verdict(-0.03), confidence_verdict(0.008)
        ('over-confident', 'under-confident', 'balanced')
    """
    if signed_gap != signed_gap:
        return "undefined"
    if abs(signed_gap) < BALANCED_GAP:
        return "balanced"
    return "over-confident" if signed_gap > 0 else "under-confident"


@dataclass(frozen=True)
class Reliability:
    """What a reliability diagram draws: one entry per bin, NaN where a bin is empty.

    `confidence` is the mean predicted probability in the bin, `accuracy` the observed frequency.
    """

    lower: Floats
    upper: Floats
    count: Ints
    confidence: Floats
    accuracy: Floats


class CalibrationBins:
    """Additive calibration statistics over equal-width, right-closed bins.

    Voxels are counted in M bins (b/M, (b+1)/M], probability 0 in the first and 1 in the last,
    twice: by the largest probability (top label) and, for each class k, by p_k. Each bin b keeps
    its count n_b (int64), the sum of its probabilities (mean: conf_b) and the sum of its outcomes
    (mean: acc_b), float64. These add: batches, cases, processes and machines merge exactly in
    counts, in any order, and memory does not grow with voxels.

    Soft targets t enter as expected outcomes: t of the predicted class for the top label, t_k for
    class k. Ties for the top label go to the smaller class. Edges are compared in the dtype of
    `probs`; half precision is widened to float32.

    Args:
        num_classes: K, the classes of the model, whether or not they occur.
        num_bins: M.

    Example:
        >>> import numpy as np
        >>> bins = CalibrationBins(num_classes=2)
        >>> probs = np.array([[0.1, 0.1, 0.3, 0.9], [0.9, 0.9, 0.7, 0.1]])  # (K, voxels)
        >>> _ = bins.update(probs, np.array([1, 0, 1, 0]))
        >>> round(bins.ece(), 3)  # bin of .9: 2 of 3 right; bin of .7: 1 of 1
        0.25
    """

    def __init__(self, num_classes: int, num_bins: int = 15) -> None:
        self.num_classes = check_int("num_classes", num_classes, low=1)
        self.num_bins = check_int("num_bins", num_bins, low=1, high=10_000)
        self._seen = Inspector(self.num_classes)
        self._set(empty_tables(1, self.num_classes, self.num_bins))

    def _set(self, tables: BinTables, group: int = 0) -> None:
        self.top_count: Ints = tables.top_count[group]
        self.top_confidence: Floats = tables.top_confidence[group]
        self.top_accuracy: Floats = tables.top_accuracy[group]
        self.class_count: Ints = tables.class_count[group]
        self.class_confidence: Floats = tables.class_confidence[group]
        self.class_frequency: Floats = tables.class_frequency[group]

    @classmethod
    def from_tables(cls, tables: BinTables, group: int) -> "CalibrationBins":
        """The statistics of one group of voxels that were tallied together with others."""
        _, num_classes, num_bins = tables.class_count.shape
        new = cls(num_classes, num_bins)
        new._set(tables, group)
        return new

    # Counting

    def update(
        self,
        probs: Array,
        target: Array,
        mask: Array | None = None,
        *,
        ignore_index: int = -100,
        batched: bool | None = None,
    ) -> "CalibrationBins":
        """Count the voxels of one volume or batch; returns itself.

        Nothing is counted if anything is refused. Volumes of any size are read in chunks; on CUDA
        the counting happens on the device and only the tables come back.

        Args:
            probs: (K, *S) or (B, K, *S), numpy or torch, floating point, after softmax.
            target: integer labels (*S) or (B, *S), or soft ones of the shape of `probs`.
            mask: boolean (*S) or (B, *S): the voxels that count. None counts all.
            ignore_index: integer label of voxels that do not count.
            batched: whether `probs` is (B, K, *S); needed only where the shapes allow both
                readings.

        Raises:
            ValueError: shapes that do not fit, labels outside 0..K-1, NaN, values outside [0, 1]
                (logits), or rows that do not sum to 1 (not normalised).

        Warns:
            UserWarning: all voxels so far, 1,024 or more, lie in [1/(e+K−1), e/(e+K−1)], as after
                a second softmax. Said once; not with a `mask`, which may leave out all sure voxels.
        """
        tables, seen = empty_tables(1, self.num_classes, self.num_bins), Inspector(self.num_classes)
        for chunk in iter_chunks(
            probs, target, self.num_classes,
            mask=mask, ignore_index=ignore_index, batched=batched, seen=seen,
        ):  # fmt: skip
            tables += tally(chunk, self.num_bins)
        self.merge(CalibrationBins.from_tables(tables, 0))
        self._seen.merge(seen)
        if mask is None:
            self._seen.warn_of_second_softmax()
        return self

    def merge(self, other: "CalibrationBins") -> "CalibrationBins":
        """Add the counts of `other` to these; returns itself."""
        if not isinstance(other, CalibrationBins):
            raise TypeError(
                f"Expected argument `other` to be CalibrationBins, but got {type(other).__name__}."
            )
        ours, theirs = (self.num_classes, self.num_bins), (other.num_classes, other.num_bins)
        if ours != theirs:
            raise ValueError(
                f"Expected argument `other` to have (num_classes, num_bins) = {ours}, "
                f"but got {theirs}."
            )
        for name in _INTS + _FLOATS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self._seen.merge(other._seen)
        return self

    def __add__(self, other: "CalibrationBins") -> "CalibrationBins":
        if not isinstance(other, CalibrationBins):
            return NotImplemented
        return CalibrationBins(self.num_classes, self.num_bins).merge(self).merge(other)

    def __radd__(self, other: object) -> "CalibrationBins":
        """`sum(bins)` starts from 0."""
        if other != 0:
            return NotImplemented
        return CalibrationBins(self.num_classes, self.num_bins).merge(self)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything, as arrays that `numpy.savez` takes; `from_state` is its inverse."""
        return {name: getattr(self, name).copy() for name in _INTS + _FLOATS}

    @classmethod
    def from_state(cls, state: Mapping[str, npt.ArrayLike]) -> "CalibrationBins":
        """Bins from what `state` gave (a dict, or an opened npz file)."""
        missing = sorted(set(_INTS + _FLOATS) - set(state))
        if missing:
            raise ValueError(
                f"Expected argument `state` to hold {missing}, but got {sorted(state)}."
            )
        arrays = {name: np.asarray(state[name]) for name in _INTS + _FLOATS}
        shape = arrays["class_count"].shape
        if len(shape) != 2:
            raise ValueError(f"Expected `state['class_count']` to be (K, M), but got {shape}.")
        new = cls(*shape)
        for name, array in arrays.items():
            wanted = getattr(new, name)
            if array.shape != wanted.shape or (name in _INTS and array.dtype.kind not in "iu"):
                raise ValueError(
                    f"Expected `state[{name!r}]` to be {wanted.dtype} of shape {wanted.shape}, "
                    f"but got {array.dtype} of shape {array.shape}."
                )
            check_sums(f"state[{name!r}]", array)
            setattr(new, name, array.astype(wanted.dtype))
        return new

    def __repr__(self) -> str:
        return (
            f"CalibrationBins(num_classes={self.num_classes}, num_bins={self.num_bins}, "
            f"voxels={self.voxels})"
        )

    @property
    def voxels(self) -> int:
        """How many voxels were counted."""
        return int(self.top_count.sum())

    # Read-outs. All are NaN while nothing has been counted.

    def ece(self) -> float:
        """Expected calibration error of the top label, Σ_b n_b/N · |acc_b − conf_b|."""
        return float(_ece(self.top_count, self.top_confidence, self.top_accuracy))

    def ace(self) -> float:
        """Average calibration error of the top label: mean of |acc_b − conf_b| over non-empty bins.

        Each bin weighs the same, so rare confidences matter as much as common ones. (Adaptive
        calibration error is `adaptive_ece`.)
        """
        return float(_ace(self.top_count, self.top_confidence, self.top_accuracy))

    def mce(self) -> float:
        """Maximum calibration error of the top label: the largest |acc_b − conf_b|."""
        return float(_mce(self.top_count, self.top_confidence, self.top_accuracy))

    def signed_gap(self) -> float:
        """Mean confidence minus accuracy: above 0 is over-confident, below 0 under-confident."""
        return float(_signed_gap(self.top_count, self.top_confidence, self.top_accuracy))

    def cece(self, reduction: str = "mean") -> float:
        """Classwise ECE, the mean (or `"sum"`) of `classwise_ece` over all K classes."""
        check_choice("reduction", reduction, ("mean", "sum"))
        each = self.classwise_ece()
        return float(each.mean() if reduction == "mean" else each.sum())

    def classwise_ece(self) -> Floats:
        """(K,): for each class k, Σ_b n_b/N · |freq_b − conf_b| over the bins of p_k."""
        return _ece(self.class_count, self.class_confidence, self.class_frequency)

    def classwise_ace(self) -> Floats:
        """(K,): `ace` over the bins of each p_k."""
        return _ace(self.class_count, self.class_confidence, self.class_frequency)

    def classwise_mce(self) -> Floats:
        """(K,): `mce` over the bins of each p_k."""
        return _mce(self.class_count, self.class_confidence, self.class_frequency)

    def classwise_signed_gap(self) -> Floats:
        """(K,): mean p_k minus the frequency of class k: above 0, the class is over-predicted."""
        return _signed_gap(self.class_count, self.class_confidence, self.class_frequency)

    def reliability(self, label: int | None = None) -> Reliability:
        """The reliability diagram of the top label, or of the probability of class `label`."""
        if label is None:
            count, confidence, accuracy = self.top_count, self.top_confidence, self.top_accuracy
        else:
            k = check_int("label", label, low=0, high=self.num_classes - 1)
            count, confidence = self.class_count[k], self.class_confidence[k]
            accuracy = self.class_frequency[k]
        edges = bin_edges(self.num_bins)
        return Reliability(
            lower=edges[:-1],
            upper=edges[1:],
            count=count.copy(),
            confidence=_divide(confidence, count),
            accuracy=_divide(accuracy, count),
        )


def check_sums(name: str, values: npt.NDArray[Any]) -> None:
    """Refuse sums that no data give: counts and sums of probabilities are finite and not below 0.

    Rounding may take a sum of probabilities that overshoot [0, 1] a little below it.
    """
    if not (np.isfinite(values).all() and (values >= -1e-3).all()):
        raise ValueError(f"Expected `{name}` to be finite and not negative, but got {values}.")


# Over the last axis (bins) of counts and sums of any shape.


def _divide(total: npt.NDArray[Any], count: npt.NDArray[Any]) -> Floats:
    """total / count, NaN where the count is 0."""
    out = np.full(np.shape(total), np.nan)
    return np.asarray(np.divide(total, count, out=out, where=count > 0))


def _ece(count: Ints, confidence: Floats, accuracy: Floats) -> Floats:
    gap: Floats = np.abs(accuracy - confidence)
    return _divide(gap.sum(-1), count.sum(-1))


def _signed_gap(count: Ints, confidence: Floats, accuracy: Floats) -> Floats:
    gap: Floats = confidence - accuracy
    return _divide(gap.sum(-1), count.sum(-1))


def _ace(count: Ints, confidence: Floats, accuracy: Floats) -> Floats:
    gap = np.divide(
        np.abs(accuracy - confidence), count, out=np.zeros(count.shape), where=count > 0
    )
    return _divide(gap.sum(-1), (count > 0).sum(-1))


def _mce(count: Ints, confidence: Floats, accuracy: Floats) -> Floats:
    gap = np.divide(
        np.abs(accuracy - confidence), count, out=np.zeros(count.shape), where=count > 0
    )
    return np.asarray(np.where(count.sum(-1) > 0, gap.max(-1), np.nan))
