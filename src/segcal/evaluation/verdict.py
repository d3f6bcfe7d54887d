"""Did calibration help? Held-out scores before and after, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

METRICS = ("ece", "nll", "brier")


@dataclass(frozen=True)
class Change:
    """One metric in one region: means over held-out cases, and their difference with an interval.

    `low` and `high` bound the mean difference (after minus before) by a bootstrap over cases;
    below 0 is better. `cases` are those in which both are defined.
    """

    region: str
    metric: str
    before: float
    after: float
    low: float
    high: float
    cases: int

    @property
    def difference(self) -> float:
        """After minus before."""
        return self.after - self.before

    @property
    def direction(self) -> str:
        """ "better" or "worse" if the interval leaves out 0, else "unclear"."""
        if self.high < 0:
            return "better"
        return "worse" if self.low > 0 else "unclear"

    def as_dict(self) -> dict[str, Any]:
        """For the file."""
        return {**vars(self), "difference": self.difference}


@dataclass(frozen=True)
class Verdict:
    """`helped` is "yes", "no", "partly" or "harmed", in the region of the fit; `changes` say all.

    "yes" needs ECE *and* NLL better; ECE alone can be fooled, NLL alone is not calibration.
    """

    region: str
    changes: tuple[Change, ...]
    changed_labels: int
    voxels: int

    def change(self, metric: str, region: str | None = None) -> Change:
        """That of a metric, in the region of the fit unless told."""
        wanted = (region or self.region, metric)
        return next(c for c in self.changes if (c.region, c.metric) == wanted)

    @property
    def helped(self) -> str:
        found = {self.change(metric).direction for metric in ("ece", "nll")}
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
        }[self.helped]
        text = (
            f"{begin}: on held-out cases, region {self.region}, ECE {_moved(ece)}, "
            f"and NLL {_moved(nll)} ({ece.cases} cases, 95 % intervals)."
        )
        others = [c for c in self.changes if c.metric == "ece" and c.region != self.region]
        told = [f"{c.region} {c.before:.4f} → {c.after:.4f} ({c.direction})" for c in others]
        return text + (f" ECE elsewhere: {', '.join(told)}." if told else "")

    def as_dict(self) -> dict[str, Any]:
        """For the file."""
        return {
            "helped": self.helped,
            "words": self.words(),
            "changed_labels": self.changed_labels,
            "voxels": self.voxels,
            "changes": [change.as_dict() for change in self.changes],
        }


def _moved(change: Change) -> str:
    verb = {"better": "fell", "worse": "rose", "unclear": "went"}[change.direction]
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
    resamples: int = 2000,
    seed: int = 0,
) -> Change:
    """The change of one metric over paired cases; NaN pairs (an empty region) are left out.

    Example:
        >>> change = compare("all", "ece", [0.2, 0.3, 0.25], [0.1, 0.1, 0.1])
        >>> change.direction, round(change.difference, 2)
        ('better', -0.15)
    """
    pairs = np.array([before, after], dtype=np.float64)
    pairs = pairs[:, np.isfinite(pairs).all(0)]
    n = pairs.shape[1]
    if n == 0:
        nan = float("nan")
        return Change(region, metric, nan, nan, nan, nan, 0)
    difference: NDArray[np.float64] = pairs[1] - pairs[0]
    chosen = np.random.default_rng(seed).integers(0, n, (resamples, n))
    low, high = np.quantile(difference[chosen].mean(1), (0.025, 0.975))
    # One case has no spread to resample: it proves nothing.
    low, high = (-np.inf, np.inf) if n == 1 else (low, high)
    means = pairs.mean(1)
    return Change(region, metric, float(means[0]), float(means[1]), float(low), float(high), n)
