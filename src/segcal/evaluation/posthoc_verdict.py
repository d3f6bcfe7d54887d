"""Did calibration help? Held-out scores before and after, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

METRICS = ("ece", "nll", "brier")
# With fewer independent cases there is no telling their spread: numbers, but no verdict.
MIN_UNITS = 6


@dataclass(frozen=True)
class Change:
    """One metric in one region: means over held-out cases, and their difference with an interval.

    `low` and `high` bound the mean difference (after minus before) by Student's t over `units`,
    which are independent: patients, each by the mean of its cases, or else cases. Below 0 is
    better. `cases` are those in which both are defined.
    """

    region: str
    metric: str
    before: float
    after: float
    low: float
    high: float
    cases: int
    units: int

    @property
    def difference(self) -> float:
        """After minus before."""
        return self.after - self.before

    @property
    def direction(self) -> str:
        """ "better" or "worse" if the interval leaves out 0, "unclear", or "too few"."""
        if 0 < self.units < MIN_UNITS:
            return "too few"
        if self.high < 0:
            return "better"
        return "worse" if self.low > 0 else "unclear"

    def as_dict(self) -> dict[str, Any]:
        """For the file."""
        return {**vars(self), "difference": self.difference}


@dataclass(frozen=True)
class Verdict:
    """`helped` is "yes", "no", "partly", "harmed" or "too few", in the region of the fit.

    "yes" needs ECE *and* NLL better; ECE alone can be fooled, NLL alone is not calibration.
    `changes` say all. `unit` is what counts once, "cases" or "patients"; `notes` say what befell
    the fits of single folds.
    """

    region: str
    changes: tuple[Change, ...]
    changed_labels: int
    voxels: int
    unit: str = "cases"
    notes: tuple[str, ...] = ()

    def change(self, metric: str, region: str | None = None) -> Change:
        """That of a metric, in the region of the fit unless told."""
        wanted = (region or self.region, metric)
        return next(c for c in self.changes if (c.region, c.metric) == wanted)

    @property
    def helped(self) -> str:
        found = {self.change(metric).direction for metric in ("ece", "nll")}
        if "too few" in found:
            return "too few"
        if found == {"better"}:
            return "yes"
        if "worse" in found:
            return "harmed" if "better" not in found else "partly"
        return "partly" if "better" in found else "no"

    def words(self) -> str:
        """One or two sentences."""
        ece, nll = self.change("ece"), self.change("nll")
        begin = {
            "yes": "Yes, it helped",
            "no": "No, there is no sign that it helped",
            "partly": "Only partly",
            "harmed": "No, it did harm",
            "too few": f"Too few {self.unit} to say ({MIN_UNITS} are needed)",
        }[self.helped]
        text = (
            f"{begin}: on held-out cases, region {self.region}, ECE {_moved(ece)}, "
            f"and NLL {_moved(nll)} ({self._count(ece)}, 95 % intervals)."
        )
        others = [c for c in self.changes if c.metric == "ece" and c.region != self.region]
        told = [
            f"{c.region} {c.before:.4f} → {c.after:.4f} ({c.direction})"
            if c.cases
            else f"{c.region} has no voxels"
            for c in others
        ]
        return text + (f" ECE elsewhere: {', '.join(told)}." if told else "")

    def _count(self, change: Change) -> str:
        cases = f"{change.cases} cases"
        return cases if self.unit == "cases" else f"{change.units} {self.unit}, {cases}"

    def as_dict(self) -> dict[str, Any]:
        """For the file."""
        return {
            "helped": self.helped,
            "words": self.words(),
            "changed_labels": self.changed_labels,
            "voxels": self.voxels,
            "unit": self.unit,
            "notes": list(self.notes),
            "changes": [change.as_dict() for change in self.changes],
        }


def _moved(change: Change) -> str:
    verb = {"better": "fell", "worse": "rose"}.get(change.direction, "went")
    return (
        f"{verb} from {change.before:.4f} to {change.after:.4f} "
        f"(by {change.difference:+.4f}, [{change.low:+.4f}, {change.high:+.4f}])"
    )


def compare(
    region: str,
    metric: str,
    before: Sequence[float],
    after: Sequence[float],
    *,
    units: Sequence[object] | None = None,
) -> Change:
    """The change of one metric over paired cases; NaN pairs (an empty region) are left out.

    Args:
        units: of each case, what it belongs to, such as its patient. Cases of one unit are
            averaged: they resemble each other, and would make the interval too narrow. None takes
            each case as its own.

    Example:
        >>> change = compare("all", "ece", [0.2, 0.3, 0.25] * 2, [0.1, 0.1, 0.1] * 2)
        >>> change.direction, round(change.difference, 2)
        ('better', -0.15)
    """
    pairs = np.array([before, after], dtype=np.float64)
    keep = np.asarray(np.isfinite(pairs).all(0))
    cases = int(keep.sum())
    if not cases:
        nan = float("nan")
        return Change(region, metric, nan, nan, nan, nan, 0, 0)
    pairs = pairs[:, keep]
    if units is not None:
        chosen = [unit for unit, kept in zip(units, keep, strict=True) if kept]
        pairs = _means(pairs, chosen)
    low, high = _interval(pairs[1] - pairs[0])
    means = pairs.mean(1)
    return Change(
        region, metric, float(means[0]), float(means[1]), low, high, cases, pairs.shape[1]
    )


def _means(pairs: NDArray[np.float64], units: Sequence[object]) -> NDArray[np.float64]:
    """(2, cases) to (2, units)."""
    number = {unit: i for i, unit in enumerate(dict.fromkeys(units))}
    index = np.array([number[unit] for unit in units])
    return np.stack([np.bincount(index, row) / np.bincount(index) for row in pairs])


def _interval(difference: NDArray[np.float64]) -> tuple[float, float]:
    """95 % interval of the mean, by Student's t."""
    from scipy.special import stdtrit

    n = len(difference)
    if n == 1:  # no spread to see: it proves nothing
        return -np.inf, np.inf
    half = float(stdtrit(n - 1, 0.975)) * float(difference.std(ddof=1)) / np.sqrt(n)
    return float(difference.mean() - half), float(difference.mean() + half)
