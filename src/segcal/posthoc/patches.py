"""Patches of held-out cases for the network of local temperature, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import to_numpy
from segcal.core.checks import check_int
from segcal.posthoc._blocks import (
    Array,
    Floats,
    HeldOut,
    Ints,
    ProbabilityWatch,
    as_held_out,
    check_block,
    check_case,
    check_labels,
    cut,
    take,
    to_rows,
)
from segcal.posthoc.sample import class_weights

Single = npt.NDArray[np.float32]


def check_image(image: Array | None, space: tuple[int, ...], channels: int | None) -> Single | None:
    """The image as (C, *S) float32, mean 0 and spread 1 in each channel; None if not wanted."""
    if channels == 0:
        return None
    if image is None:
        if channels is None:
            return None
        raise ValueError(
            "Expected argument `image`, since this calibrator was fitted with images, but got None."
        )
    values = to_numpy(image).astype(np.float32)
    values = values[None] if values.shape == space else values
    if values.shape[1:] != space or (channels is not None and len(values) != channels):
        count = "C" if channels is None else channels
        raise ValueError(
            f"Expected argument `image` to have shape ({count}, *S) or (*S) with S = {space}, "
            f"but got {values.shape}."
        )
    axes = tuple(range(1, values.ndim))
    mean, spread = values.mean(axes, keepdims=True), values.std(axes, keepdims=True)
    return np.asarray((values - mean) / np.maximum(spread, 1e-6), dtype=np.float32)


def around(array: npt.NDArray[Any], start: Sequence[int], stop: Sequence[int], halo: int) -> Any:
    """The box [start, stop) of (C, *S) and `halo` voxels about it; edges are repeated outside."""
    index = [
        np.clip(np.arange(a - halo, b + halo), 0, n - 1)
        for a, b, n in zip(start, stop, array.shape[1:], strict=True)
    ]
    return array[np.ix_(np.arange(len(array)), *index)]


@dataclass
class Patch:
    """A box of one case. `rows` (K, *P+2·halo) log-probabilities, `image` alike or None; `labels`
    (*P), −1 where a voxel does not count."""

    case: int
    key: float
    rows: Single
    image: Single | None
    labels: npt.NDArray[np.int16]


@dataclass
class PatchSet:
    """What a fit reads: patches and, per class, what a voxel of them stands for.

    `filled` counts the cases that have voxels to fit on.
    """

    patches: list[Patch]
    weights: Floats
    counts: Ints
    cases: int
    num_classes: int
    channels: int
    filled: int


class Patches:
    """Random boxes of every case: half about voxels of classes drawn alike, half anywhere.

    `of` weighs the voxels of each class so that together they stand for all voxels of the cases,
    whatever the draw favoured.
    """

    def __init__(
        self,
        *,
        size: int,
        halo: int,
        per_case: int,
        max_voxels: int,
        seed: int,
        from_probs: bool,
        ignore_index: int,
    ) -> None:
        self.size, self.halo, self.per_case = size, halo, per_case
        self.max_voxels = check_int("max_voxels", max_voxels, low=1)
        self.from_probs, self.ignore_index = from_probs, ignore_index
        self.num_classes: int | None = None
        self.channels: int | None = None
        self._rng = np.random.default_rng(check_int("seed", seed, low=0))
        self._patches: list[Patch] = []
        self._counts: list[Ints] = []
        self._watch = ProbabilityWatch()

    def __len__(self) -> int:
        """How many cases were added."""
        return len(self._counts)

    def add(self, case: object) -> Patches:
        """Read one case, once; returns itself."""
        held = as_held_out(case)
        logits, target, mask = check_case(held, self.num_classes)
        self._check(logits)
        self.num_classes = int(logits.shape[0])
        image = self._image(held, target.shape)
        labels = np.where(target == self.ignore_index, -1, target.astype(np.int64))
        if mask is not None:
            labels[~mask] = -1
        check_labels(labels[labels >= 0], self.num_classes)
        check_labels(-1 - labels[labels < 0], 1)
        counts = np.bincount(labels[labels >= 0], minlength=self.num_classes)
        number = len(self._counts)
        self._counts.append(counts)
        if counts.sum():
            for start in self._starts(labels, counts):
                self._patches.append(self._cut(number, logits, image, labels, start))
        self._fit_into_memory()
        return self

    def _check(self, logits: npt.NDArray[Any]) -> None:
        for where in cut(logits):
            block = take(logits, where, True)
            check_block(block, from_probs=self.from_probs, space="log_probs")
            if not self.from_probs:
                self._watch.see(block)

    def _image(self, held: HeldOut, space: tuple[int, ...]) -> Single | None:
        image = check_image(held.image, space, self.channels)
        channels = 0 if image is None else len(image)
        if self.channels is None:
            self.channels = channels
        return image

    def _starts(self, labels: Ints, counts: Ints) -> list[tuple[int, ...]]:
        """Corners of boxes; one box if the case is no larger."""
        sides = [min(self.size, n) for n in labels.shape]
        if tuple(sides) == labels.shape:
            return [tuple(0 for _ in sides)]
        flat = labels.ravel()
        anywhere = np.flatnonzero(flat >= 0)
        out = []
        for i in range(self.per_case):
            chosen = anywhere
            if i % 2 == 0:
                chosen = np.flatnonzero(flat == self._rng.choice(np.flatnonzero(counts)))
            centre = np.unravel_index(int(self._rng.choice(chosen)), labels.shape)
            out.append(
                tuple(
                    int(np.clip(c - side // 2, 0, n - side))
                    for c, side, n in zip(centre, sides, labels.shape, strict=True)
                )
            )
        return list(dict.fromkeys(out))

    def _cut(
        self, number: int, logits: Any, image: Single | None, labels: Ints, start: tuple[int, ...]
    ) -> Patch:
        stop = [min(a + self.size, n) for a, n in zip(start, labels.shape, strict=True)]
        block = around(logits, start, stop, self.halo)
        flat = to_rows(block.reshape(len(block), -1), from_probs=self.from_probs, space="log_probs")
        inside = tuple(slice(a, b) for a, b in zip(start, stop, strict=True))
        return Patch(
            number,
            float(self._rng.random()),
            flat.reshape(block.shape).astype(np.float32),
            None if image is None else around(image, start, stop, self.halo),
            labels[inside].astype(np.int16),
        )

    def _fit_into_memory(self) -> None:
        """Drop random patches, so that those kept are a random choice at any time."""
        total = sum(p.labels.size for p in self._patches)
        self._patches.sort(key=lambda p: p.key)
        while total > self.max_voxels and len(self._patches) > 1:
            total -= self._patches.pop().labels.size

    def of(self, cases: Sequence[int] | None = None, balance: str = "none") -> PatchSet:
        """The patches of some cases, by position; None is all."""
        self._watch.refuse()
        if self.num_classes is None:
            raise ValueError("Expected argument `cases` to hold a case or more, but got none.")
        chosen = set(range(len(self._counts)) if cases is None else cases)
        counts = np.sum([self._counts[i] for i in chosen], axis=0)
        patches = [p for p in self._patches if p.case in chosen]
        drawn = np.zeros(self.num_classes)
        for patch in patches:
            drawn += np.bincount(patch.labels[patch.labels >= 0], minlength=self.num_classes)
        stands_for = np.divide(counts, drawn, out=np.zeros_like(drawn), where=drawn > 0)
        weights = class_weights(counts, balance) * stands_for
        filled = sum(bool(self._counts[i].sum()) for i in chosen)
        return PatchSet(
            patches, weights, counts, len(chosen), self.num_classes, self.channels or 0, filled
        )
