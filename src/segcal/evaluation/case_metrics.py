"""Metrics of one predicted case, and pictures of its slices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from segcal.core.arrays import is_tensor, to_numpy, window_of
from segcal.core.heads import Heads, head_masks, paint, region_labels
from segcal.metrics import CaseOptions, CaseResult, evaluate_case, evaluate_heads, predicted_labels

if TYPE_CHECKING:
    from torch import Tensor

# Limits of a picture, which is then no larger than one slice of 512 x 512 with all its layers.
MOST_SLICES, MOST_PIXELS = 12, 144


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
    """All metrics of a case, with rows of these `names`, and pictures."""
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
    """Slices through the true structures, cropped to them, as bytes; a 2-D case is one slice.

    Only the truth selects what is shown, so the pictures of all methods show the same voxels.
    `outside` is the share of the predicted foreground that the pictures do not show.
    """
    target = np.asarray(case.target)
    volume = target if target.ndim == 3 else target[None]
    image = np.zeros(target.shape) if case.image is None else np.asarray(case.image)
    image = image[0] if image.ndim > target.ndim else image
    chosen, *box = _voxels_shown(volume > 0)
    shown = np.ix_(chosen, *box)
    at = shown[-target.ndim :]
    predicted: Any = case.probs  # numpy and torch have no common type of an index
    probs = predicted[(slice(None), *at)]
    truth = np.where((volume[shown] < 0) | (volume[shown] > 255), 0, volume[shown])
    if case.heads:
        values = to_numpy(probs)
        confidence = np.maximum(values, 1 - values).min(0)
        labels = _number_regions(head_masks(values), case.heads)
        masks = [np.isin(truth, members) for members in case.heads.values()]
        truth = _number_regions(np.stack(masks), case.heads)
    else:
        confidence = to_numpy(probs.max(0).values if is_tensor(probs) else probs.max(0))
        labels = predicted_labels(probs)
    steps = [(index[-1] - index[0]) / max(1, len(index) - 1) or 1 for index in box]
    return {
        "image": _window(image[at]),
        "truth": truth.astype(np.uint8),
        "labels": labels.astype(np.uint8),
        "confidence": np.rint(255 * np.clip(confidence, 0, 1)).astype(np.uint8),
        "spacing": np.array(case.spacing_mm[-2:], dtype=np.float64) * steps,
        "slices": chosen,
        "outside": np.array(_share_outside(case, [chosen, *box][-target.ndim :])),
    }


def _voxels_shown(true: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """Indices along each axis: evenly selected slices and, if the window is large, pixels.

    The slices reach beyond the structures by a sixth, and include the one with most foreground.
    """
    depth, area = len(true), true.sum(axis=(1, 2))
    low, high = 0, depth - 1
    if depth > MOST_SLICES and area.any():
        low, high = (int(end) for end in np.flatnonzero(area)[[0, -1]])
        margin = max(1, (high - low) // 6)
        low, high = max(0, low - margin), min(depth - 1, high + margin)
    chosen = np.linspace(low, high, min(MOST_SLICES, high - low + 1)).round().astype(int)
    chosen[abs(chosen - area.argmax()).argmin()] = area.argmax()
    out = [chosen]
    for side, length in zip(window_of(np.asarray(true.any(axis=0))), true.shape[1:], strict=True):
        low, high, _ = side.indices(length)
        out.append(np.linspace(low, high - 1, min(MOST_PIXELS, high - low)).round().astype(int))
    return out


def _share_outside(case: PredictedCase, shown: Sequence[NDArray[np.intp]]) -> float:
    """The share of the predicted foreground beyond the ends of `shown`, on a coarse grid."""
    grid = [np.arange(0, n, -(-n // 64)) for n in case.probs.shape[1:]]
    predicted: Any = case.probs
    probs = predicted[(slice(None), *np.ix_(*grid))]
    found = np.asarray(head_masks(probs).any(0) if case.heads else predicted_labels(probs) > 0)
    inside = [(at >= index[0]) & (at <= index[-1]) for at, index in zip(grid, shown, strict=True)]
    return float(1 - found[np.ix_(*inside)].sum() / max(1, found.sum())) if found.any() else 0.0


def _number_regions(masks: NDArray[np.bool_], heads: Heads) -> NDArray[np.uint8]:
    """The number of the smallest region at each pixel, from 1 on; 0 outside."""
    names = list(heads)
    return paint(masks, {(k := names.index(name)): k + 1 for name in region_labels(heads)})


def _window(image: NDArray[Any]) -> NDArray[np.uint8]:
    """The 1st to 99th percentile mapped to 0 to 255."""
    low, high = (float(value) for value in np.percentile(image, (1, 99)))
    scaled = (image.astype(np.float64) - low) / ((high - low) or 1.0)
    return np.asarray(np.rint(255 * np.clip(scaled, 0, 1)), dtype=np.uint8)
