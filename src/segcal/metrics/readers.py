"""Several readers of one case: the network against them, and they against each other.

The reference is the frequency q, the share of the readers that drew each class. Voxels that a
reader did not judge (labels outside 0..K-1) do not count for this reader.

Volumes and the energy distance need a distribution over masks, of which p gives only the
probability of single voxels. Here one threshold decides all voxels of a mask (`threshold_samples`),
as for readers who outline the structure tighter or wider; masks of an ensemble can be used instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import Array, label_shares, to_numpy
from segcal.metrics._geometry import LabelMap, Mask
from segcal.metrics.overlap import confusion, dsc_from_confusion

if TYPE_CHECKING:
    from segcal.metrics.case_data import CaseData, StructureData

Floats = npt.NDArray[np.float64]
SAMPLES = 16


def threshold_samples(probs: Array, count: int = SAMPLES) -> Mask:
    """(count, *S): the masks p > u of a structure's probabilities (*S) at `count` even levels u.

    A voxel is in the share p of the masks, up to 1/(2 · count). Nothing is random.

    Example:
        >>> threshold_samples(np.array([0.1, 0.3, 0.9]), count=4).sum(0)
        array([0, 1, 4])
    """
    levels = (np.arange(count) + 0.5) / count
    values = to_numpy(probs)
    return np.asarray(values > levels.reshape(-1, *[1] * values.ndim))


def energy_distance(samples: Array, readers: Array) -> float:
    """Squared generalized energy distance 2 E d(S, Y) − E d(S, S') − E d(Y, Y'), in [0, 2].

    d is 1 − IoU, and 0 for two empty masks. The means are over all pairs, also of a mask with
    itself, so the distance is 0 if samples and readers are the same masks (Kohl et al., NeurIPS
    2018).

    Args:
        samples: (N, *S) boolean, masks drawn from the prediction: of `threshold_samples`, or those
            of the members of an ensemble.
        readers: (R, *S) boolean.

    Example:
        >>> drawn = np.array([[1, 1, 0, 0], [0, 0, 0, 0]], dtype=bool)
        >>> energy_distance(drawn[:1], drawn)  # 2 · (0 + 1)/2 − 0 − (0 + 1 + 1 + 0)/4
        0.5
    """
    count = len(samples)
    masks = np.concatenate([to_numpy(samples), to_numpy(readers)]).astype(bool)
    masks = masks.reshape(len(masks), -1)
    inside = masks[:, masks.any(axis=0)].astype(np.float64)
    overlap = inside @ inside.T
    size = overlap.diagonal()
    union = size[:, None] + size - overlap
    distance = 1 - np.divide(overlap, union, out=np.ones_like(overlap), where=union > 0)
    across, own = distance[:count, count:], distance[:count, :count]
    return float(2 * across.mean() - own.mean() - distance[count:, count:].mean())


def crps(samples: npt.ArrayLike, observed: npt.ArrayLike) -> float:
    """Continuous ranked probability score E|V − y| − ½ E|V − V'|, mean over the observed y.

    The distribution of V is that of the `samples`. For one sample it is the absolute error.

    Example:
        >>> crps([1.0, 3.0], [2.0])  # 1 − ½ · 1
        0.5
    """
    drawn, y = np.asarray(samples, dtype=np.float64), np.asarray(observed, dtype=np.float64)
    spread = np.abs(drawn[:, None] - drawn).mean()
    return float(np.abs(drawn[:, None] - y).mean() - spread / 2)


@dataclass(frozen=True)
class Readers:
    """What several metrics share of the label maps (R, *S) of a case's readers.

    `predicted` is the predicted label map (*S). Voxels that are not `counted` (*S), those that the
    target of the case ignores, count for no reader.
    """

    names: tuple[str, ...]
    labels: LabelMap
    predicted: LabelMap
    counted: Mask
    num_classes: int

    @cached_property
    def frequency(self) -> npt.NDArray[np.float32]:
        """(K, *S): the share of the readers that drew each class; 0 where none judged the voxel."""
        return np.asarray(label_shares(self.labels, self.num_classes))

    @cached_property
    def judged(self) -> Mask:
        """(R, *S): the counted voxels that each reader judged."""
        return np.asarray((self.labels >= 0) & (self.labels < self.num_classes) & self.counted)

    @cached_property
    def with_prediction(self) -> npt.NDArray[np.int64]:
        """(R, K, K): voxels by label of the reader (row) and of the prediction (column)."""
        pairs = zip(self.labels, self.judged, strict=True)
        return np.stack([confusion(self.predicted[j], r[j], self.num_classes) for r, j in pairs])

    @cached_property
    def with_others(self) -> tuple[npt.NDArray[np.int64], Floats]:
        """Each reader against the others.

        (R, K, K) voxels by majority of the others (row) and label of the reader (column), and (R,)
        the Brier score of the reader's labels against the frequency among the others.
        """
        tables, scores = [], []
        for index, judged in enumerate(self.judged):
            shares = np.asarray(label_shares(np.delete(self.labels, index, 0), self.num_classes))
            both = judged & shares.any(0)
            own, shares = self.labels[index][both].astype(np.int64), shares[:, both]
            tables.append(confusion(own, shares.argmax(0), self.num_classes))
            # Σ_k (y_k − q_k)² of a one-hot y.
            squared = 1 - 2 * shares[own, np.arange(own.size)] + np.square(shares).sum(0)
            scores.append(squared.mean(dtype=np.float64) if own.size else np.nan)
        return np.stack(tables), np.array(scores)


def reader_dsc(structure: StructureData) -> Floats:
    """(R,): Dice similarity coefficient of the prediction with each reader."""
    return _dsc(structure, structure.readers.with_prediction)


def human_dsc(structure: StructureData) -> Floats:
    """(R,): Dice similarity coefficient of each reader with the majority of the others."""
    return _dsc(structure, structure.readers.with_others[0])


def _dsc(structure: StructureData, tables: npt.NDArray[np.int64]) -> Floats:
    """NaN for a reader who judged no voxel."""
    labels, empty = structure.labels, structure.case.options.empty
    return np.array([dsc_from_confusion(table, labels, empty) for table in tables])


def reader_volume_ml(structure: StructureData) -> Floats:
    """(R,): |Σp − volume that the reader drew|, over the voxels that the reader judged."""
    probs = structure.probs
    expected = [probs[judged].sum(dtype=np.float64) for judged in structure.readers.judged]
    return np.abs(np.array(expected) * structure.voxel_ml - _volumes_ml(structure))


def human_volume_ml(structure: StructureData) -> Floats:
    """(R,): |volume that the reader drew − mean volume of the others|."""
    drawn = _volumes_ml(structure)
    known = np.isfinite(drawn)
    others = drawn[known].sum() - np.where(known, drawn, 0)
    with np.errstate(invalid="ignore"):
        mean = others / (known.sum() - known)  # NaN for a single reader
    return np.asarray(np.abs(drawn - mean))


def _volumes_ml(structure: StructureData) -> Floats:
    """(R,): the volume that each reader drew; NaN for a reader who judged no voxel."""
    tables = structure.readers.with_prediction
    voxels = np.where(tables.any((1, 2)), tables[:, structure.labels].sum((1, 2)), np.nan)
    return np.asarray(voxels * structure.voxel_ml)


def reader_ged(structure: StructureData) -> float:
    """`energy_distance` between masks of the probabilities and the readers' masks.

    NaN if there is no voxel that all these readers judged.
    """
    samples, drawn = _masks(structure)
    return energy_distance(samples, drawn) if drawn.size else math.nan


def reader_crps_ml(structure: StructureData) -> float:
    """`crps` of the volumes of masks of the probabilities against the readers' volumes; or NaN."""
    samples, drawn = _masks(structure)
    return structure.voxel_ml * crps(samples.sum(1), drawn.sum(1)) if drawn.size else math.nan


def _masks(structure: StructureData) -> tuple[Mask, Mask]:
    """(N, n) masks of the probabilities, and (R, n) those of the readers who judged any voxel.

    The n voxels are those that all these readers judged.
    """
    readers = structure.readers
    present = readers.with_prediction.any((1, 2))
    voxels = np.asarray(readers.judged[present].all(axis=0))
    drawn = np.isin(readers.labels[present][:, voxels], structure.labels)
    return threshold_samples(structure.probs[voxels]), drawn


def human_brier(case: CaseData) -> float:
    """Brier score of a reader's labels against the mean of the others, averaged over readers."""
    assert case.readers is not None
    each = case.readers.with_others[1]
    return float(np.nanmean(each)) if np.isfinite(each).any() else float("nan")
