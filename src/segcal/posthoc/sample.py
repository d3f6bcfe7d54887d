"""Voxels to fit on: a class-balanced sample of every case in bounded memory, or all of them.

Both know how many voxels each class has in each case, and weigh what they give so that the
objective is that of all voxels (`balance="none"`) or of equally frequent classes (`"class"`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from segcal.core.checks import check_choice, check_int
from segcal.posthoc._blocks import (
    BLOCK_VALUES,
    Floats,
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

BALANCE = ("none", "class")
Block = tuple[Floats, Ints, Floats]  # rows (K, n), labels (n,), weights (n,)


class Voxels(Protocol):
    """What a fit reads, as often as it wants."""

    num_classes: int
    counts: Ints  # (K,) voxels of each class, before any sampling
    cases: int

    def blocks(self) -> Iterator[Block]:
        """Rows, labels and weights; a weight is how many voxels this one stands for."""
        ...


def class_weights(counts: Ints, balance: str) -> Floats:
    """(K,): what a voxel of each class weighs in the objective."""
    check_choice("balance", balance, BALANCE)
    if balance == "none":
        return np.ones(len(counts))
    present = counts > 0
    out = np.zeros(len(counts))
    out[present] = counts.sum() / (present.sum() * counts[present])
    return out


class _Stratum:
    """Voxels of one class in one case: those with the smallest random keys.

    Keeping fewer of the smallest leaves a uniform sample again.
    """

    def __init__(self) -> None:
        self.count, self.size = 0, 0
        self.bar = np.inf  # keys from here on can no longer enter
        self._keys: list[Floats] = []
        self._rows: list[Floats] = []

    def add(self, keys: Floats, rows: Floats, quota: int) -> None:
        self._keys.append(keys)
        self._rows.append(rows)
        self.size += len(keys)
        if self.size > 2 * quota:
            self.shrink(quota)

    def shrink(self, quota: int) -> None:
        if self.size <= quota:
            return
        keys, rows = np.concatenate(self._keys), self.rows()
        chosen = np.argpartition(keys, quota - 1)[:quota]
        self._keys, self._rows = [keys[chosen]], [rows[:, chosen]]
        self.size, self.bar = quota, float(self._keys[0].max())

    def rows(self) -> Floats:
        """(K, size)."""
        return np.concatenate(self._rows, axis=1)


class Sample:
    """At most `max_voxels` voxels of all cases, evenly from every class of every case.

    One of each class of each case is kept in any event: none may be missing from the objective.

    Each voxel draws a random key; a class of a case keeps those with the smallest, up to a quota
    that halves when the whole would outgrow `max_voxels`. So memory is bounded whatever the number
    and the size of the cases, one pass suffices, and if all voxels fit, all are kept.

    Args:
        max_voxels: of the whole sample.
        seed: of the keys.
        from_probs: cases hold probabilities in place of logits.
        space: `"log_probs"` or `"logits"`, what the calibrator works in.
        ignore_index: label of voxels that do not count.

    Example:
        >>> import numpy as np
        >>> logits = np.random.default_rng(0).normal(size=(3, 20, 20))
        >>> sample = Sample(max_voxels=90).add((logits, logits.argmax(0)))
        >>> int(sample.of([0]).counts.sum()), sample.voxels <= 90
        (400, True)
    """

    def __init__(
        self,
        *,
        max_voxels: int = 1_000_000,
        seed: int = 0,
        from_probs: bool = False,
        space: str = "log_probs",
        ignore_index: int = -100,
    ) -> None:
        self.max_voxels = check_int("max_voxels", max_voxels, low=1)
        self.from_probs, self.space, self.ignore_index = from_probs, space, ignore_index
        self.num_classes: int | None = None
        self._rng = np.random.default_rng(check_int("seed", seed, low=0))
        self._quota = self.max_voxels
        self._strata: list[list[_Stratum]] = []  # per case, per class
        self._watch = ProbabilityWatch()

    def __len__(self) -> int:
        """How many cases were added."""
        return len(self._strata)

    @property
    def voxels(self) -> int:
        """How many voxels are kept."""
        return sum(s.size for case in self._strata for s in case)

    def add(self, case: object) -> Sample:
        """Read one case, once; returns itself."""
        held = as_held_out(case)
        logits, target, mask = check_case(held, self.num_classes)
        self.num_classes = num_classes = int(logits.shape[0])
        strata = [_Stratum() for _ in range(num_classes)]
        for rows, labels in self._read(logits, target, mask):
            self._offer(strata, rows, labels)
        for stratum in strata:
            stratum.shrink(self._quota)
        self._strata.append(strata)
        self._fit_into_memory(self.max_voxels)
        return self

    def _read(
        self, logits: Any, target: Any, mask: Any
    ) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        for where in cut(logits):
            labels = take(target, where, False)
            keep = labels != self.ignore_index
            if mask is not None:
                keep &= take(mask, where, False)
            if not keep.any():
                continue
            block = take(logits, where, True)
            if not keep.all():
                block, labels = block[:, keep], labels[keep]
            check_labels(labels, int(logits.shape[0]))
            check_block(block, from_probs=self.from_probs, space=self.space)
            if not self.from_probs:
                self._watch.see(block)
            yield block, labels

    def _offer(self, strata: list[_Stratum], block: Any, labels: Any) -> None:
        keys = self._rng.random(len(labels))
        bars = np.array([s.bar for s in strata])
        counts = np.bincount(labels, minlength=len(strata))
        chance = keys < bars[labels]
        if not chance.all():
            block, labels, keys = block[:, chance], labels[chance], keys[chance]
        rows = to_rows(block, from_probs=self.from_probs, space=self.space)
        for k, stratum in enumerate(strata):
            stratum.count += int(counts[k])
            here = labels == k
            if here.any():
                stratum.add(keys[here], rows[:, here], self._quota)
        # Many classes may each be below the quota. The end of the case would halve it anyway.
        self._fit_into_memory(2 * self.max_voxels, strata)

    def _fit_into_memory(self, limit: int, reading: Sequence[_Stratum] = ()) -> None:
        """Halve the quota until `limit` is kept, with the case that is being read."""
        while self._quota > 1 and self.voxels + sum(s.size for s in reading) > limit:
            self._quota //= 2
            for case in (*self._strata, reading):
                for stratum in case:
                    stratum.shrink(self._quota)

    def of(self, cases: Sequence[int] | None = None, balance: str = "none") -> Voxels:
        """The voxels of some cases, by position; None is all."""
        self._watch.refuse()
        chosen = range(len(self._strata)) if cases is None else cases
        if self.num_classes is None:
            raise ValueError("Expected argument `cases` to hold a case or more, but got none.")
        return _Gathered.of([self._strata[i] for i in chosen], self.num_classes, balance)


@dataclass
class _Gathered:
    num_classes: int
    counts: Ints
    cases: int
    rows: Floats
    labels: Ints
    weights: Floats

    @classmethod
    def of(cls, cases: list[list[_Stratum]], num_classes: int, balance: str) -> _Gathered:
        counts = np.array([sum(case[k].count for case in cases) for k in range(num_classes)])
        each = class_weights(counts, balance)
        parts = [(k, s) for case in cases for k, s in enumerate(case) if s.size]
        if not parts:
            return cls(num_classes, counts, len(cases), np.empty((num_classes, 0)),
                       np.empty(0, np.int64), np.empty(0))  # fmt: skip
        sizes = [s.size for _, s in parts]
        weight = [each[k] * s.count / s.size for k, s in parts]
        return cls(
            num_classes,
            counts,
            len(cases),
            np.concatenate([s.rows() for _, s in parts], axis=1),
            np.repeat([k for k, _ in parts], sizes),
            np.repeat(weight, sizes),
        )

    def blocks(self) -> Iterator[Block]:
        step = max(BLOCK_VALUES // self.num_classes, 1)
        for start in range(0, len(self.labels), step):
            here = slice(start, start + step)
            yield self.rows[:, here], self.labels[here], self.weights[here]


class Stream:
    """All voxels of all cases, read anew in every pass: nothing is kept.

    Args:
        cases: a re-iterable (list, or an object whose `__iter__` starts anew) of HeldOut or tuples.
        from_probs, space, ignore_index: as `Sample`.
        balance: see `class_weights`.
    """

    def __init__(
        self,
        cases: Iterable[object],
        *,
        from_probs: bool = False,
        space: str = "log_probs",
        ignore_index: int = -100,
        balance: str = "none",
    ) -> None:
        if iter(cases) is cases:
            raise TypeError(
                "Expected argument `cases` to be iterable more than once where all voxels are "
                "streamed (`max_voxels=None`), but got a one-way iterator. Give a list, or sample."
            )
        self._cases = cases
        # It is used for what it reads, and keeps nothing here.
        self._reader = Sample(from_probs=from_probs, space=space, ignore_index=ignore_index)
        self.num_classes, self.cases = 0, 0
        counts: Ints = np.zeros(0, np.int64)
        for case in cases:
            logits, target, mask = check_case(as_held_out(case), self.num_classes or None)
            self.num_classes = int(logits.shape[0])
            self.cases += 1
            counts = counts if len(counts) else np.zeros(self.num_classes, np.int64)
            for _, labels in self._reader._read(logits, target, mask):
                counts = counts + np.bincount(labels, minlength=self.num_classes)
        if not self.cases:
            raise ValueError("Expected argument `cases` to hold a case or more, but got none.")
        self._reader._watch.refuse()
        self.counts = counts
        self._weights = class_weights(counts, balance)

    def blocks(self) -> Iterator[Block]:
        """Rows, labels and weights of every voxel that counts."""
        for case in self._cases:
            logits, target, mask = check_case(as_held_out(case), self.num_classes)
            for block, labels in self._reader._read(logits, target, mask):
                rows = to_rows(block, from_probs=self._reader.from_probs, space=self._reader.space)
                whole = labels.astype(np.int64)
                yield rows, whole, self._weights[whole]
