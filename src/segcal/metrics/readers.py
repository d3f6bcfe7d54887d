"""Several readers of one case: the network against them, and they against each other.

The reference is the frequency q, the share of the readers that drew each class. Voxels that a
reader did not judge (labels outside 0..K-1) do not count for this reader.

Volumes and the energy distance need a distribution over masks, of which p gives only the
probability of single voxels. Here one threshold decides all voxels of a mask (`threshold_samples`),
as for readers who outline the structure tighter or wider; masks of an ensemble can be used instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import Array, label_shares, majority_label, to_numpy
from segcal.metrics._geometry import LabelMap, Mask
from segcal.metrics.overlap import confusion, dsc_from_confusion

if TYPE_CHECKING:
    from segcal.metrics.case_data import CaseData, StructureData

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
class Reader:
    """One reader of a case.

    Attributes:
        prediction: (K, K) voxels by label of the reader (row) and of the prediction (column).
        others: (K, K) voxels by majority of the other readers (row) and label of the reader.
        brier: Brier score of the reader's labels against the frequency among the other readers.
    """

    prediction: npt.NDArray[np.int64]
    others: npt.NDArray[np.int64]
    brier: float


@dataclass(frozen=True)
class Readers:
    """The label maps of the readers of a case, (R, *S), and what several metrics share."""

    names: tuple[str, ...]
    labels: LabelMap
    num_classes: int

    @cached_property
    def frequency(self) -> npt.NDArray[np.float32]:
        """(K, *S): the share of the readers that drew each class; 0 where none judged the voxel."""
        return np.asarray(label_shares(self.labels, self.num_classes))

    @cached_property
    def judged(self) -> Mask:
        """(R, *S): the voxels that each reader judged."""
        return np.asarray((self.labels >= 0) & (self.labels < self.num_classes))

    def compare(self, predicted: LabelMap) -> dict[str, Reader]:
        """Each reader against the predicted labels and against the other readers."""
        out = {}
        for index, name in enumerate(self.names):
            own, judged = self.labels[index], self.judged[index]
            shares = np.asarray(label_shares(np.delete(self.labels, index, 0), self.num_classes))
            both = judged & shares.any(0)
            label, shares = own[both].astype(np.int64), shares[:, both]
            agreed = shares[label, np.arange(label.size)]
            # Σ_k (y_k − q_k)² of a one-hot y.
            squared = 1 - 2 * agreed + np.square(shares).sum(0)
            out[name] = Reader(
                confusion(predicted[judged], own[judged], self.num_classes),
                confusion(label, majority_label(shares, -1), self.num_classes),
                float(squared.mean(dtype=np.float64)) if label.size else float("nan"),
            )
        return out


def reader_dsc(structure: StructureData) -> dict[str, float]:
    """Dice similarity coefficient of the prediction with each reader."""
    readers = structure.case.compared_readers.items()
    return {name: _dsc(structure, reader.prediction) for name, reader in readers}


def human_dsc(structure: StructureData) -> dict[str, float]:
    """Dice similarity coefficient of each reader with the majority of the others."""
    readers = structure.case.compared_readers.items()
    return {name: _dsc(structure, reader.others) for name, reader in readers}


def _dsc(structure: StructureData, table: npt.NDArray[np.int64]) -> float:
    empty = structure.case.options.empty
    return dsc_from_confusion(table, structure.labels, empty) if table.any() else float("nan")


def reader_volume_ml(structure: StructureData) -> dict[str, float]:
    """|expected volume Σp − volume that a reader drew| over the voxels that the reader judged."""
    probs, readers = structure.probs, structure.case.readers
    assert readers is not None
    expected = [float(probs[judged].sum(dtype=np.float64)) for judged in readers.judged]
    drawn = _volumes_ml(structure)
    pairs = zip(drawn.items(), expected, strict=True)
    return {name: abs(volume * structure.voxel_ml - own) for (name, own), volume in pairs}


def human_volume_ml(structure: StructureData) -> dict[str, float]:
    """|volume that a reader drew − mean volume of the others|."""
    drawn = _volumes_ml(structure)
    values = np.array([*drawn.values()])
    known = np.isfinite(values)
    others = values[known].sum() - np.where(known, values, 0)
    with np.errstate(invalid="ignore"):
        mean = others / (known.sum() - known)  # NaN for a single reader
    return dict(zip(drawn, np.abs(values - mean).tolist(), strict=True))


def _volumes_ml(structure: StructureData) -> dict[str, float]:
    """The volume that each reader drew; NaN if the reader judged no voxel."""
    tables = {name: r.prediction for name, r in structure.case.compared_readers.items()}
    voxels = {n: t[list(structure.labels)].sum() if t.any() else np.nan for n, t in tables.items()}
    return {name: float(count) * structure.voxel_ml for name, count in voxels.items()}


def reader_ged(structure: StructureData) -> float:
    """`energy_distance` between masks of the probabilities and the readers' masks."""
    return energy_distance(*_masks(structure))


def reader_crps_ml(structure: StructureData) -> float:
    """`crps` of the volumes of masks of the probabilities against the readers' volumes."""
    samples, drawn = _masks(structure)
    return structure.voxel_ml * crps(samples.sum(1), drawn.sum(1))


def _masks(structure: StructureData) -> tuple[Mask, Mask]:
    """(N, n) masks of the probabilities, and (R, n) those of the readers who judged any voxel.

    The n voxels are those that all these readers judged.
    """
    readers = structure.case.readers
    assert readers is not None
    present = readers.judged.reshape(len(readers.labels), -1).any(axis=1)
    voxels = readers.judged[present].all(axis=0)
    drawn = np.isin(readers.labels[present][:, voxels], structure.labels)
    return threshold_samples(structure.probs[voxels]), drawn


def human_brier(case: CaseData) -> float:
    """Brier score of a reader's labels against the mean of the others, averaged over readers."""
    each = np.array([reader.brier for reader in case.compared_readers.values()])
    return float(each[np.isfinite(each)].mean()) if np.isfinite(each).any() else float("nan")
