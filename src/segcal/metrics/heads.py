"""All metrics of one case of a network with sigmoid heads: one problem of two classes per head."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import Array, to_numpy
from segcal.core.heads import Heads, inside_labels, two_classes
from segcal.metrics.case import CaseResult, evaluate_case, rows_of_head
from segcal.metrics.levels import ConfidenceLevels
from segcal.metrics.voxel_sums import VoxelStatistics

State = Mapping[str, npt.NDArray[Any]]


def evaluate_heads(
    probs: Array,
    target: Array,
    spacing_mm: float | Sequence[float],
    *,
    heads: Heads,
    ignore_index: int = -100,
    raters: Mapping[str, Array] | None = None,
    members: Array | None = None,
    **names_and_options: Any,
) -> CaseResult:
    """Metrics of overlapping regions: `evaluate_case` of every head, with its name as the label.

    A head with probability p is a case of two classes with probabilities (1 − p, p): its confidence
    is max(p, 1 − p), and p > 0.5 is inside. Regions such as `predicted` are those of the head. The
    rows of class k+1 (such as `class_ece`) are of the inside of head k.

    Args:
        probs: (R, *S), the probability of each region.
        target: integer labels (*S); a voxel is in a region if it has one of its labels.
        heads: the name of each region and its labels, in the order of `probs`.
        raters: label maps (*S) of several readers; `ignore_index` marks voxels that a reader did
            not judge.
        members: masks (M, R, *S) of the members of an ensemble.
        names_and_options: other arguments of `evaluate_case`.

    Example:
        >>> probs = np.array([[0.9, 0.8, 0.3], [0.1, 0.7, 0.2]])
        >>> heads = {"whole": (1, 2), "core": (2,)}
        >>> result = evaluate_heads(probs, np.array([1, 2, 0]), 1.0, heads=heads, case="toy")
        >>> found = [r for r in result.rows if r.metric == "ece" and r.region == "predicted"]
        >>> {r.label: round(r.value, 3) for r in found}
        {'whole': 0.15, 'core': 0.3}
    """
    if len(probs) != len(heads):
        raise ValueError(
            f"Expected argument `probs` to have {len(heads)} maps ({', '.join(heads)}), "
            f"but got {len(probs)}."
        )
    truth = to_numpy(target)
    parts = {
        name: evaluate_case(
            two_classes(probs[number], from_probs=True),
            inside_labels(truth, labels, ignore_index),
            spacing_mm,
            groups={name: (1,)},
            ignore_index=ignore_index,
            raters={
                reader: inside_labels(to_numpy(drawn), labels, ignore_index)
                for reader, drawn in (raters or {}).items()
            },
            members=None if members is None else members[:, number].astype(np.uint8),
            **names_and_options,
        )
        for number, (name, labels) in enumerate(heads.items())
    }
    return _joined(parts)


def _joined(parts: dict[str, CaseResult]) -> CaseResult:
    """The results of all heads as one."""
    results = list(parts.values())
    statistics = {
        region: VoxelStatistics.from_state(
            _combine([part.statistics[region].state() for part in results])
        )
        for region in results[0].statistics
    }
    levels = _combine([part.levels.state() for part in results if part.levels])
    rows = [row for k, name in enumerate(parts) for row in rows_of_head(parts[name].rows, name, k)]
    return CaseResult(rows, statistics, ConfidenceLevels.from_state(levels), heads=parts)


def _combine(states: Sequence[State]) -> State:
    """Sums of two classes each as those of R + 1: outside of all heads, inside of each head."""
    out = {}
    for key in states[0]:
        arrays = [state[key] for state in states]
        if key == "clip":
            out[key] = arrays[0]
        elif key.startswith(("class_", "level_", "squared_error")):
            out[key] = np.stack([sum(a[0] for a in arrays), *(a[1] for a in arrays)])
        else:
            out[key] = np.asarray(sum(arrays))
    return out
