"""Voxels to fit on: a class-balanced sample of every case in bounded memory, or all voxels.

Both count the voxels of each class in each case, and weight the voxels they return so that the
objective is that of all voxels (`balance="none"`) or of equally frequent classes (`"class"`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from segcal.core.blocks import BLOCK_VALUES
from segcal.core.checks import check_choice, check_int
from segcal.posthoc._blocks import BlockReader, FeatureMap, Floats, Ints, Space

Balance: TypeAlias = Literal["none", "class"]
# Rows (K + F, n), labels (n,), weights (n,). A weight is how many voxels the voxel represents.
WeightedBlock: TypeAlias = tuple[Floats, Ints, Floats]


@dataclass(frozen=True)
class Voxels:
    """What a fit reads: `blocks()` yields rows, labels and weights, as often as the fit needs.

    `counts` (K,) are the voxels of each class before sampling, `used` how many `blocks` yields.
    """

    num_classes: int
    counts: Ints
    cases: int
    used: int
    balance: Balance
    from_probs: bool
    blocks: Callable[[], Iterator[WeightedBlock]]

    def without_features(self) -> Voxels:
        """The same with the K rows only."""

        def blocks() -> Iterator[WeightedBlock]:
            for rows, labels, weights in self.blocks():
                yield rows[: self.num_classes], labels, weights

        return replace(self, blocks=blocks)


def class_weights(counts: Ints, balance: Balance) -> Floats:
    """(K,): the weight of a voxel of each class in the objective."""
    check_choice("balance", balance, get_args(Balance))
    if balance == "none":
        return np.ones(len(counts))
    present = counts > 0
    out = np.zeros(len(counts))
    out[present] = counts.sum() / (present.sum() * counts[present])
    return out


class _Stratum:
    """Voxels of one class in one case: those with the smallest random keys.

    Dropping the largest keys leaves a uniform sample again.
    """

    def __init__(self) -> None:
        self.count, self.size = 0, 0
        self.limit = np.inf  # voxels with larger keys can no longer enter
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
        self.size, self.limit = quota, float(self._keys[0].max())

    def rows(self) -> Floats:
        """(K + F, size)."""
        return np.concatenate(self._rows, axis=1)


class Sample:
    """At most `max_voxels` voxels of all cases, drawn evenly from every class of every case.

    At least one voxel of each class of each case is kept, so that no class is missing from the
    objective.

    Each voxel draws a random key; a class of a case keeps those with the smallest keys, up to a
    quota that is halved whenever the sample exceeds `max_voxels`. Memory is therefore bounded
    whatever the number and size of the cases, one pass is enough, and if all voxels fit, all are
    kept.

    Args:
        seed: seed of the keys.
        from_probs, space, ignore_index, features: as `BlockReader`.

    Example:
        >>> import numpy as np
        >>> logits = np.random.default_rng(0).normal(size=(3, 20, 20))
        >>> sample = Sample(max_voxels=90).add((logits, logits.argmax(0)))
        >>> int(sample.select([0]).counts.sum()), sample.size <= 90
        (400, True)
    """

    def __init__(
        self,
        *,
        max_voxels: int = 1_000_000,
        seed: int = 0,
        from_probs: bool = False,
        space: Space = "log_probs",
        ignore_index: int = -100,
        features: FeatureMap | None = None,
    ) -> None:
        self.max_voxels = check_int("max_voxels", max_voxels, low=1)
        self._reader = BlockReader(
            from_probs=from_probs, space=space, ignore_index=ignore_index, features=features
        )
        self._rng = np.random.default_rng(check_int("seed", seed, low=0))
        self._quota = self.max_voxels
        self._strata: list[list[_Stratum]] = []  # per case, per class

    def __len__(self) -> int:
        """Number of cases added."""
        return len(self._strata)

    @property
    def size(self) -> int:
        """Number of voxels kept."""
        return sum(s.size for case in self._strata for s in case)

    def add(self, case: object) -> Sample:
        """Read one `HeldOut` or tuple (logits, target[, mask]); returns itself."""
        strata: list[_Stratum] = []
        for block, labels, extra in self._reader.read(case):
            strata = strata or [_Stratum() for _ in range(len(block))]
            self._offer(strata, block, labels, extra)
        for stratum in strata:
            stratum.shrink(self._quota)
        self._strata.append(strata)
        self._limit_memory(self.max_voxels)
        return self

    def _offer(
        self, strata: list[_Stratum], block: Any, labels: Ints, extra: Floats | None
    ) -> None:
        keys = self._rng.random(len(labels))
        counts = np.bincount(labels, minlength=len(strata))
        candidate = keys < np.array([s.limit for s in strata])[labels]
        if not candidate.all():
            block, labels, keys = block[:, candidate], labels[candidate], keys[candidate]
            extra = None if extra is None else extra[:, candidate]
        rows = self._reader.rows(block, extra)
        for k, stratum in enumerate(strata):
            stratum.count += int(counts[k])
            here = labels == k
            if here.any():
                stratum.add(keys[here], rows[:, here], self._quota)
        # With many classes each may be below the quota while all together exceed the limit.
        self._limit_memory(2 * self.max_voxels, strata)

    def _limit_memory(self, limit: int, reading: Sequence[_Stratum] = ()) -> None:
        """Halve the quota until at most `limit` voxels are kept, with the case being read."""
        while self._quota > 1 and self.size + sum(s.size for s in reading) > limit:
            self._quota //= 2
            for case in (*self._strata, reading):
                for stratum in case:
                    stratum.shrink(self._quota)

    def select(self, cases: Sequence[int] | None = None, balance: Balance = "none") -> Voxels:
        """The voxels of some cases, by position; None selects all."""
        num_classes = self._reader.finish()
        chosen = self._strata if cases is None else [self._strata[i] for i in cases]
        strata = [(k, s) for case in chosen for k, s in enumerate(case) if s.size]
        counts = np.zeros(num_classes, np.int64)
        for k, stratum in strata:
            counts[k] += stratum.count
        each = class_weights(counts, balance)
        sizes = [s.size for _, s in strata]
        used = sum(sizes)
        parts = [s.rows() for _, s in strata] or [np.empty((num_classes, 0))]
        rows = np.empty((len(parts[0]), used))  # in C order, sums over classes are much faster
        np.concatenate(parts, axis=1, out=rows)
        labels = np.repeat(np.array([k for k, _ in strata], np.int64), sizes)
        weights = np.repeat(np.array([each[k] * s.count / s.size for k, s in strata]), sizes)

        def blocks() -> Iterator[WeightedBlock]:
            step = max(BLOCK_VALUES // num_classes, 1)
            for start in range(0, used, step):
                here = slice(start, start + step)
                yield rows[:, here], labels[here], weights[here]

        from_probs = self._reader.from_probs
        return Voxels(num_classes, counts, len(chosen), used, balance, from_probs, blocks)


def all_voxels(cases: Iterable[object], reader: BlockReader, balance: Balance = "none") -> Voxels:
    """All voxels of all cases, read again in every pass; nothing is kept in memory.

    `cases` is a list or another object that can be iterated repeatedly.
    """
    if iter(cases) is cases:
        raise TypeError(
            "Expected argument `cases` to be iterable more than once where all voxels are used "
            "(`max_voxels=None`), but got an iterator. Give a list, or set `max_voxels`."
        )
    read, counts = 0, np.zeros(0, np.int64)
    for case in cases:
        read += 1
        for _, labels, _ in reader.read(case):
            found = np.bincount(labels, minlength=reader.num_classes or 0)
            counts = counts + found if len(counts) else found
    num_classes = reader.finish()
    weights = class_weights(counts, balance)

    def blocks() -> Iterator[WeightedBlock]:
        for case in cases:
            for block, labels, extra in reader.read(case):
                yield reader.rows(block, extra), labels, weights[labels]

    return Voxels(num_classes, counts, read, int(counts.sum()), balance, reader.from_probs, blocks)
