"""Sigmoid heads: regions that may overlap, each a union of labels with a probability of its own.

Every head is a problem of two classes, 0 outside and 1 inside the region. Heads are described by a
mapping from the name of each region to its labels, in the order of the network's channels; it is
empty for a network with a softmax over exclusive classes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import Array, is_tensor, to_numpy

Heads: TypeAlias = Mapping[str, tuple[int, ...]]
_HEAD = re.compile(r"(.*\S)\s*=\s*([1-9]\d*(?:\+[1-9]\d*)*)")


def parse_heads(text: str) -> dict[str, tuple[int, ...]]:
    """Heads from text, in the order of the network's channels.

    Example:
        >>> parse_heads("whole tumor=1+2+3, core=2+3")
        {'whole tumor': (1, 2, 3), 'core': (2, 3)}
    """
    found = [_HEAD.fullmatch(part.strip()) for part in text.split(",")]
    out = {match[1]: tuple(map(int, match[2].split("+"))) for match in found if match}
    if len(out) < len(found):
        expected = "expected NAME=LABEL+LABEL,… with different names and labels from 1 on"
        raise ValueError(f"--heads {text}: {expected}")
    return out


def two_classes(values: Array, *, from_probs: bool) -> Array:
    """One head (*S) as (2, *S), outside and inside: 1 − p and p, or the logits 0 and l.

    Half precision becomes float32, in which 1 − p is precise enough.

    Example:
        >>> two_classes(np.array([0.2, 1.0]), from_probs=True).tolist()
        [[0.8, 0.0], [0.2, 1.0]]
    """
    if is_tensor(values):
        torch: Any = sys.modules["torch"]
        inside = values.float() if values.element_size() < 4 else values
        return torch.stack([1 - inside if from_probs else torch.zeros_like(inside), inside])
    inside = to_numpy(values)
    return np.stack([1 - inside if from_probs else np.zeros_like(inside), inside])


def inside_labels(
    target: npt.NDArray[Any], labels: Sequence[int], ignore_index: int = -100
) -> npt.NDArray[np.int32]:
    """A label map as the target of one head: 1 for these labels, else 0; ignored voxels stay so.

    Example:
        >>> inside_labels(np.array([0, 1, 2, -100]), (1, 2)).tolist()
        [0, 1, 1, -100]
    """
    out = np.isin(target, list(labels)).astype(np.int32)
    out[target == ignore_index] = ignore_index
    return out


def head_masks(probs: Array) -> npt.NDArray[np.bool_]:
    """The predicted regions (R, *S): where the probability of a head is above 0.5."""
    return to_numpy(probs, widen_half=False) > 0.5


def region_labels(heads: Heads) -> dict[str, int]:
    """The label that represents each region in a label map, from the largest union to the smallest.

    Regions are painted in this order, so that nested ones remain visible. The label of a region is
    its smallest one that no later region has.

    Example:
        >>> region_labels({"core": (2, 3), "whole": (1, 2, 3), "enhancing": (3,)})
        {'whole': 1, 'core': 2, 'enhancing': 3}
    """
    ordered = sorted(heads, key=lambda name: -len(heads[name]))
    out = {}
    for i, name in enumerate(ordered):
        later = {label for other in ordered[i + 1 :] for label in heads[other]}
        out[name] = min(set(heads[name]) - later or heads[name])
    return out


def nnunet_regions(heads: Heads) -> dict[str, Any]:
    """The entries of nnU-Net's dataset.json that describe the maps of heads."""
    order = [region_labels(heads)[name] for name in heads]
    return {"labels": {"background": 0, **heads}, "regions_class_order": order}


def region_map(probs: Array, heads: Heads) -> npt.NDArray[np.uint8]:
    """One label map (*S) of the probabilities (R, *S) of heads; see `region_labels`."""
    names = list(heads)
    values = {names.index(name): label for name, label in region_labels(heads).items()}
    return paint(head_masks(probs), values)


def paint(masks: npt.NDArray[np.bool_], values: Mapping[int, int]) -> npt.NDArray[np.uint8]:
    """One label map (*S) of masks (R, *S): {head: label}, later ones over earlier ones."""
    out = np.zeros(masks.shape[1:], np.uint8)
    for head, label in values.items():
        out[masks[head]] = label
    return out
