"""Metrics of one predicted case, and a picture of one of its slices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from segcal.core.arrays import is_tensor, to_numpy
from segcal.core.heads import Heads, head_masks, paint, region_labels
from segcal.metrics import (
    CaseOptions,
    CaseResult,
    evaluate_case,
    evaluate_heads,
    predicted_labels,
)

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class PredictedCase:
    """One case and its prediction, on one grid.

    Args:
        name: name of the case.
        probs: (K, *S), after softmax, or after sigmoid if there are `heads`. On CUDA the counting
            runs on the device.
        target: integer labels (*S).
        spacing_mm: voxel size, one value per axis of S.
        image: (C, *S) or (*S), for pictures.
        logits: (K, *S), for metrics of logits.
        true_probs: true probabilities (K, *S), where they are known.
        raters: labels (*S) of several readers by name; labels without a class are ignored.
        members: labels (M, *S) of the members of an ensemble, or masks (M, R, *S) of heads.
        annotated: the classes that the labels show; None for all. Values of other classes, and of
            structures with other classes, are NaN.
        path: the file that messages about the case name.
        heads: the regions of sigmoid heads, in the order of `probs`; empty for a softmax.
    """

    name: str
    probs: NDArray[Any] | Tensor
    target: NDArray[Any]
    spacing_mm: tuple[float, ...]
    image: NDArray[Any] | None = None
    logits: NDArray[Any] | Tensor | None = None
    true_probs: NDArray[Any] | None = None
    raters: Mapping[str, NDArray[Any]] | None = None
    annotated: tuple[int, ...] | None = None
    members: NDArray[Any] | None = None
    path: Path | None = None
    heads: Heads = field(default_factory=dict)


def evaluate_predicted_case(
    case: PredictedCase,
    names: Mapping[str, Any],
    groups: Mapping[str, Sequence[int]],
    options: CaseOptions,
) -> tuple[CaseResult, dict[str, NDArray[Any]]]:
    """All metrics of a case, with rows of these `names`, and a picture."""
    arguments: dict[str, Any] = {
        "case": case.name, **names, "options": options, "raters": case.raters,
        "members": case.members,
    }  # fmt: skip
    if case.heads:
        result = evaluate_heads(
            case.probs, case.target, case.spacing_mm, heads=case.heads, **arguments
        )
    else:
        result = evaluate_case(
            case.probs, case.target, case.spacing_mm, groups=groups, logits=case.logits,
            true_probs=case.true_probs, **arguments,
        )  # fmt: skip
    if case.annotated is not None:
        unknown = {name for name, labels in groups.items() if not {*labels} <= {*case.annotated}}
        if case.heads:
            unknown |= {str(k + 1) for k, name in enumerate(case.heads) if name in unknown}
        else:
            unknown |= {str(k) for k in range(len(case.probs)) if k not in case.annotated}
        result.rows = [
            replace(row, value=math.nan) if row.label.split("/")[0] in unknown else row
            for row in result.rows
        ]
    return result, _draw(case)


def _draw(case: PredictedCase) -> dict[str, NDArray[Any]]:
    """The axial slice with the most true foreground, as bytes; a 2-D case is one slice."""
    target = np.asarray(case.target)
    index: Any = ...
    if target.ndim == 3:
        index = int((target > 0).sum(axis=(1, 2)).argmax())
    probs: Any = case.probs[:, index]
    image = np.zeros(target.shape) if case.image is None else np.asarray(case.image)
    image = image[0] if image.ndim > target.ndim else image
    truth = np.where((target[index] < 0) | (target[index] > 255), 0, target[index])
    if case.heads:
        values = to_numpy(probs)
        confidence = np.maximum(values, 1 - values).min(0)
        labels = _number_regions(head_masks(values), case.heads)
        masks = [np.isin(truth, members) for members in case.heads.values()]
        truth = _number_regions(np.stack(masks), case.heads)
    else:
        confidence = to_numpy(probs.max(0).values if is_tensor(probs) else probs.max(0))
        labels = predicted_labels(probs)
    return {
        "image": _window(image[index]),
        "truth": truth.astype(np.uint8),
        "labels": labels.astype(np.uint8),
        "confidence": np.rint(255 * np.clip(confidence, 0, 1)).astype(np.uint8),
        "spacing": np.array(case.spacing_mm[-2:], dtype=np.float64),
    }


def _number_regions(masks: NDArray[np.bool_], heads: Heads) -> NDArray[np.uint8]:
    """The number of the smallest region at each pixel, from 1 on; 0 outside."""
    names = list(heads)
    return paint(masks, {(k := names.index(name)): k + 1 for name in region_labels(heads)})


def _window(image: NDArray[Any]) -> NDArray[np.uint8]:
    """The 1st to 99th percentile mapped to 0 to 255."""
    low, high = (float(value) for value in np.percentile(image, (1, 99)))
    scaled = (image.astype(np.float64) - low) / ((high - low) or 1.0)
    return np.asarray(np.rint(255 * np.clip(scaled, 0, 1)), dtype=np.uint8)
