"""Did calibration help? Held-out scores before and after, as numbers and as a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from segcal.stats import mean_interval

METRICS = ("ece", "nll", "brier")
# The region that `segcal audit` judges; its ECE is stated beside that of the fit's region.
AUDITED = "predicted"
# With fewer independent cases their spread is unknown: numbers, but no verdict.
MIN_UNITS = 6


@dataclass(frozen=True)
class Change:
    """One metric in one region: means over held-out cases, and the interval of their difference.

    `low` and `high` are the 95 % interval of the mean difference (after minus before) by Student's
    t over `units`, which are independent: patients, each with the mean of its cases, or else cases.
    Negative is better. `cases` are those in which both values are defined.
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
        return self.after - self.before

    @property
    def direction(self) -> Literal["better", "worse", "unclear", "too few"]:
        """ "better" or "worse" if the interval excludes 0."""
        if 0 < self.units < MIN_UNITS:
            return "too few"
        if self.high < 0:
            return "better"
        return "worse" if self.low > 0 else "unclear"

    def __str__(self) -> str:
        verb = {"better": "fell", "worse": "rose"}.get(self.direction, "changed")
        return (
            f"{self.metric.upper()} {verb} from {self.before:.4f} to {self.after:.4f} "
            f"(by {self.difference:+.4f} [{self.low:+.4f}, {self.high:+.4f}])"
        )


@dataclass(frozen=True)
class Verdict:
    """Whether a calibrator helped, by cross-validation.

    Attributes:
        region: the region of the fit, in which `helped` is decided.
        changes: every metric in every region.
        changed_labels, voxels: voxels whose label changed, and all voxels.
        unit: what counts as independent, "cases" or "patients".
        warnings: problems of the fits of single folds.
    """

    region: str
    changes: tuple[Change, ...]
    changed_labels: int
    voxels: int
    unit: Literal["cases", "patients"] = "cases"
    warnings: tuple[str, ...] = ()

    def change(self, metric: str, region: str | None = None) -> Change:
        """The change of a metric, by default in the region of the fit."""
        wanted = (region or self.region, metric)
        return next(c for c in self.changes if (c.region, c.metric) == wanted)

    @property
    def helped(self) -> Literal["yes", "no", "partly", "harmed", "too few"]:
        """ "yes" if ECE *and* NLL are better; a constant can lower ECE alone.

        And if ECE is not worse in the audited region.
        """
        found = {self.change(metric).direction for metric in ("ece", "nll")}
        if "too few" in found:
            return "too few"
        if found == {"better"}:
            return "partly" if any(c.direction == "worse" for c in self._audited) else "yes"
        if "worse" in found:
            return "harmed" if "better" not in found else "partly"
        return "partly" if "better" in found else "no"

    @property
    def _audited(self) -> list[Change]:
        """The change of ECE in the audited region, if it is another one and has voxels."""
        return [
            c for c in self.changes
            if (c.region, c.metric) == (AUDITED, "ece") and c.cases and self.region != AUDITED
        ]  # fmt: skip

    def summary(self) -> str:
        """The answer in the region of the fit, then the change of ECE in the audited region."""
        ece, nll = self.change("ece"), self.change("nll")
        answer = {
            "yes": "Yes, calibration helped",
            "no": "No, there is no evidence that calibration helped",
            "partly": "Calibration helped only partly",
            "harmed": "No, calibration is worse",
            "too few": f"Too few {self.unit} to decide ({MIN_UNITS} are needed)",
        }[self.helped]
        units = "" if self.unit == "cases" else f"{ece.units} {self.unit}, "
        return (
            f"{answer}: on held-out cases, region {self.region}, {ece} and {nll}; "
            f"{units}{ece.cases} cases, 95 % intervals."
            + "".join(
                f" In region {AUDITED}, which segcal audit judges, {c}." for c in self._audited
            )
        )

    def as_dict(self) -> dict[str, Any]:
        """The content of the calibrator's file."""
        return {
            "helped": self.helped,
            "summary": self.summary(),
            "changed_labels": self.changed_labels,
            "voxels": self.voxels,
            "unit": self.unit,
            "warnings": list(self.warnings),
            "changes": [{**vars(c), "difference": c.difference} for c in self.changes],
        }


def paired_change(
    region: str,
    metric: str,
    before: Sequence[float],
    after: Sequence[float],
    *,
    units: Sequence[object] | None = None,
) -> Change:
    """The change of one metric over paired cases; cases with NaN (an empty region) are skipped.

    Args:
        units: what each case belongs to, such as its patient. Cases of one unit are averaged: they
            are similar, and would make the interval too narrow. None: each case is independent.

    Example:
        >>> change = paired_change("all", "ece", [0.2, 0.3, 0.25] * 2, [0.1, 0.1, 0.1] * 2)
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
        number = {unit: i for i, unit in enumerate(dict.fromkeys(units))}
        index = np.array([number[unit] for unit in units])[keep]
        count = np.bincount(index)
        sums = np.stack([np.bincount(index, row) for row in pairs])
        pairs = sums[:, count > 0] / count[count > 0]
    _, low, high = mean_interval(pairs[1] - pairs[0])
    if pairs.shape[1] == 1:
        low, high = -np.inf, np.inf
    first, second = pairs.mean(1).tolist()
    return Change(region, metric, first, second, low, high, cases, pairs.shape[1])
