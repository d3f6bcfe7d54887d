"""Disagreement of the members of an ensemble, in each voxel and over a case."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import Array, to_numpy
from segcal.metrics._geometry import Mask
from segcal.metrics.overlap import confusion, dsc_from_confusion

if TYPE_CHECKING:
    from segcal.metrics.case_data import StructureData

_CLIP = 1e-12


def entropy(probs: Array, axis: int = 0) -> npt.NDArray[Any]:
    """Entropy −Σ p log p over the classes on `axis`, in nats."""
    p = to_numpy(probs)
    return np.asarray(-(p * np.log(np.maximum(p, _CLIP))).sum(axis))


def probability_variance(members: Array) -> npt.NDArray[Any]:
    """(*S): variance over the members of (M, K, *S) probabilities, mean over the classes."""
    return np.asarray(to_numpy(members).var(0).mean(0))


def mutual_information(members: Array) -> npt.NDArray[Any]:
    """(*S): H(mean p) − mean H(p), in nats, of the members' probabilities (M, K, *S).

    It is 0 where the members agree, however uncertain they are, and at most the log of the smaller
    of M and K.

    Example:
        >>> certain = np.array([[[1.0], [0.0]], [[0.0], [1.0]]])  # two members that contradict
        >>> mutual_information(certain).round(3)
        array([0.693])
    """
    p = to_numpy(members)
    return np.asarray(np.maximum(entropy(p.mean(0)) - entropy(p, axis=1).mean(0), 0))


def pair_tables(
    labels: Array, num_classes: int, counted: Mask | None = None
) -> npt.NDArray[np.int64]:
    """(pairs, K, K): `confusion` of each pair of the members' label maps (M, *S).

    Only the voxels in `counted` (*S) count; None for all.
    """
    maps = to_numpy(labels)
    maps = maps.reshape(len(maps), -1) if counted is None else maps[:, counted]
    pairs = [confusion(a, b, num_classes) for a, b in combinations(maps, 2)]
    return np.array(pairs, np.int64).reshape(-1, num_classes, num_classes)


def mean_pairwise_dice(tables: npt.NDArray[np.int64], labels: tuple[int, ...]) -> float:
    """Mean Dice of a structure with these labels over the tables of `pair_tables`.

    Two empty masks have 1; NaN for a single member, which forms no pair.
    """
    values = [dsc_from_confusion(table, labels) for table in tables]
    return float(np.mean(values)) if values else float("nan")


def pairwise_dice(structure: StructureData) -> float:
    """Mean Dice between the masks of the members of an ensemble."""
    return mean_pairwise_dice(structure.case.member_tables, structure.labels)
