"""Calibration as additive statistics: every calibration error is computed from the same counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import Array, divide, is_tensor
from segcal.core.checks import check_choice, check_int
from segcal.metrics._additive import AdditiveStatistics
from segcal.metrics._binning import Floats, Ints, Tables, add_tables, bin_edges, tally
from segcal.metrics._chunks import Chunk, iter_chunks, native_array
from segcal.metrics._validate import Inspector

# Mean confidence and accuracy that differ by less than this are called balanced.
BALANCED_GAP = 0.01
ConfidenceVerdict = Literal["over-confident", "under-confident", "balanced", "undefined"]


def confidence_verdict(signed_gap: float) -> ConfidenceVerdict:
    """The verdict on a network from its mean confidence minus accuracy; "undefined" for NaN.

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
    """The values of a reliability diagram: one entry per bin, NaN where a bin is empty.

    `confidence` is the mean predicted probability in the bin, `accuracy` the observed frequency.
    """

    lower: Floats
    upper: Floats
    count: Ints
    confidence: Floats
    accuracy: Floats


class CalibrationBins(AdditiveStatistics):
    """Additive calibration statistics over equal-width, right-closed bins.

    Voxels are counted in M bins (b/M, (b+1)/M], probability 0 in the first and 1 in the last. They
    are counted twice: by the largest probability (top label) and, for each class k, by p_k. Each
    bin b keeps its count n_b (int64), the sum of its probabilities (mean: conf_b) and the sum of
    its outcomes (mean: acc_b), float64. Counts of batches, cases, processes and machines merge
    exactly, in any order, and memory does not grow with the number of voxels.

    Soft targets t enter as expected outcomes: t of the predicted class for the top label, t_k for
    class k. Ties for the top label go to the smaller class. Edges are compared in the dtype of
    `probs`; half precision is widened to float32.

    Args:
        num_classes: K, the number of classes of the model, including those that do not occur.
        num_bins: M, the number of bins.

    Example:
        >>> import numpy as np
        >>> bins = CalibrationBins(num_classes=2)
        >>> probs = np.array([[0.1, 0.1, 0.3, 0.9], [0.9, 0.9, 0.7, 0.1]])  # (K, voxels)
        >>> _ = bins.update(probs, np.array([1, 0, 1, 0]))
        >>> round(bins.ece(), 3)  # bin of .9: 2 of 3 correct; bin of .7: 1 of 1
        0.25
    """

    _settings = ("num_classes", "num_bins")
    _sums = _stored = (
        "top_count", "class_count",
        "top_confidence", "top_accuracy", "class_confidence", "class_frequency",
    )  # fmt: skip

    def __init__(self, num_classes: int, num_bins: int = 15) -> None:
        self.num_classes = check_int("num_classes", num_classes, low=1)
        self.num_bins = check_int("num_bins", num_bins, low=1, high=10_000)
        self._seen = Inspector(self.num_classes)
        shape = (self.num_classes, self.num_bins)
        self.top_count: Ints = np.zeros(self.num_bins, np.int64)
        self.top_confidence: Floats = np.zeros(self.num_bins)
        self.top_accuracy: Floats = np.zeros(self.num_bins)
        self.class_count: Ints = np.zeros(shape, np.int64)
        self.class_confidence: Floats = np.zeros(shape)
        self.class_frequency: Floats = np.zeros(shape)

    @classmethod
    def per_volume(
        cls,
        probs: Array,
        target: Array,
        lengths: Sequence[int],
        mask: Array | None = None,
        *,
        num_bins: int = 15,
    ) -> list["CalibrationBins"]:
        """The bins of each of several volumes that are concatenated, from one pass over all.

        The result equals `update` of each volume alone. On a GPU one pass over all volumes is
        faster than one pass for each.

        Args:
            probs: (K, Z, …), numpy or torch, after softmax: the volumes, concatenated along Z.
            target: integer labels (Z, …).
            lengths: the length of each volume along Z, in order.
            mask: boolean (Z, …), the voxels to count. None counts all.
            num_bins: M, the number of bins.

        Example:
            >>> import numpy as np
            >>> probs = np.array([[0.2, 0.4, 0.9], [0.8, 0.6, 0.1]])  # volumes of 2 voxels and 1
            >>> bins = CalibrationBins.per_volume(probs, np.array([1, 0, 0]), lengths=[2, 1])
            >>> [(one.voxels, round(one.ece(), 3)) for one in bins]
            [(2, 0.4), (1, 0.1)]
        """
        probs = native_array("probs", probs)
        each = [check_int("lengths", length, low=0) for length in lengths]
        if sum(each) != probs.shape[1]:
            raise ValueError(
                f"Expected argument `lengths` to add up to {probs.shape[1]}, the length of axis 1 "
                f"of `probs`, but got {sum(each)}."
            )
        num_classes = int(probs.shape[0])
        found = [cls(num_classes, num_bins) for _ in each]
        tables: Tables = {}
        for chunk in iter_chunks(
            probs, target, num_classes, mask=mask, group=_volumes(probs, each), batched=False
        ):
            tables = add_tables(tables, tally(chunk, num_bins, len(each)))
        return [bins.add(tables, i) for i, bins in enumerate(found)] if tables else found

    @classmethod
    def _empty_for(cls, state: Mapping[str, npt.NDArray[Any]]) -> "CalibrationBins":
        shape = state["class_count"].shape
        if len(shape) != 2:
            raise ValueError(f"Expected `state['class_count']` to be (K, M), but got {shape}.")
        return cls(*shape)

    def tally(self, chunk: Chunk, groups: int = 1) -> Tables:
        """The sums of the voxels of a checked chunk, for each of their groups."""
        return tally(chunk, self.num_bins, groups)

    @property
    def voxels(self) -> int:
        """Number of voxels counted."""
        return int(self.top_count.sum())

    # Metrics. All are NaN while nothing has been counted.

    def mean_confidence(self) -> float:
        """Mean of the largest probability of each voxel."""
        return float(divide(self.top_confidence.sum(), self.top_count.sum()))

    def ece(self) -> float:
        """Expected calibration error of the top label, Σ_b n_b/N · |acc_b − conf_b|."""
        return float(_ece(self.top_count, self.top_confidence, self.top_accuracy))

    def debiased_ece(self) -> float:
        """Calibration error of the top label without the bias of few voxels; may be below 0.

        `ece` of a calibrated model is above 0, because every bin deviates by chance. With squared
        deviations the expected chance is known (Kumar et al., NeurIPS 2019; Bröcker, Clim. Dyn.
        2012), where voxels are independent:

            E² = Σ_b n_b/N · [(acc_b − conf_b)² − acc_b (1 − acc_b) / (n_b − 1)]

        E² is unbiased. The result is √E², or −√|E²| where E² is negative, so that its mean over
        many calibrated cases is about 0. Bins of one voxel are left out. Neighbors in a
        segmentation are not independent, so some of the bias remains there; being a root mean
        square, it is larger than `ece` for a model that is far from calibrated.
        """
        several = self.top_count > 1
        count = self.top_count[several]
        confidence, accuracy = (
            total[several] / count for total in (self.top_confidence, self.top_accuracy)
        )
        square = (accuracy - confidence) ** 2 - accuracy * (1 - accuracy) / (count - 1)
        error = divide((count * square).sum(), count.sum())
        return float(np.sign(error) * np.sqrt(np.abs(error)))

    def ace(self) -> float:
        """Average calibration error of the top label: mean of |acc_b − conf_b| over non-empty bins.

        Each bin has the same weight, so rare confidences matter as much as common ones. (The
        adaptive calibration error is `adaptive_ece`.)
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
            confidence=divide(confidence, count),
            accuracy=divide(accuracy, count),
        )


def _volumes(probs: Array, lengths: list[int]) -> Array:
    """The index of the volume of each voxel: a view of shape (Z, …) on Z stored values."""
    space = tuple(probs.shape[1:])
    index = np.repeat(np.arange(len(lengths)), lengths).reshape(-1, *[1] * (len(space) - 1))
    if not is_tensor(probs):
        return np.broadcast_to(index, space)
    import torch

    return torch.as_tensor(index, device=probs.device).expand(space)


# Over the last axis (bins) of counts and sums of any shape.


def _ece(count: Ints, confidence: Floats, accuracy: Floats) -> Floats:
    gap: Floats = np.abs(accuracy - confidence)
    return divide(gap.sum(-1), count.sum(-1))


def _signed_gap(count: Ints, confidence: Floats, accuracy: Floats) -> Floats:
    gap: Floats = confidence - accuracy
    return divide(gap.sum(-1), count.sum(-1))


def _ace(count: Ints, confidence: Floats, accuracy: Floats) -> Floats:
    return divide(_gaps(count, confidence, accuracy).sum(-1), (count > 0).sum(-1))


def _mce(count: Ints, confidence: Floats, accuracy: Floats) -> Floats:
    largest = _gaps(count, confidence, accuracy).max(-1)
    return np.asarray(np.where(count.sum(-1) > 0, largest, np.nan))


def _gaps(count: Ints, confidence: Floats, accuracy: Floats) -> Floats:
    """|acc_b − conf_b| of each bin, 0 for an empty bin."""
    return np.asarray(np.abs(accuracy - confidence) / np.maximum(count, 1))
