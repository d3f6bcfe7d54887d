"""Volume intervals of several kinds, each widened by a conformal factor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from segcal.assurance.conformal import Units, unit_weights
from segcal.assurance.factor import volume_quantiles
from segcal.assurance.summary import CaseSummary

Method: TypeAlias = Literal["factor", "share", "constant", "hard"]
METHODS: tuple[Method, ...] = get_args(Method)


class Interval(NamedTuple):
    """A volume with its interval, in ml."""

    center: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Of the interval, in ml."""
        return self.high - self.low

    def widened(self, factor: float) -> Interval:
        """Both sides times `factor`; a volume is not negative."""
        center, low, high = self
        return Interval(center, max(center - factor * (center - low), 0.0),
                        center + factor * (high - center))  # fmt: skip

    def scaled(self, bias: float) -> Interval:
        """All three numbers times `bias`."""
        return Interval(*(bias * part for part in self))

    def score(self, volume: float) -> float:
        """The factor at which the interval just contains `volume`."""
        side = self.center - self.low if volume < self.center else self.high - self.center
        return abs(volume - self.center) / side

    def contains(self, volume: float) -> bool:
        """Whether `volume` is inside."""
        return self.low <= volume <= self.high


def volume_bias(intervals: Sequence[Interval], volumes: ArrayLike, units: Units = None) -> float:
    """Median over patients of true volume / center where both are positive; 1 for few patients."""
    centers, true = np.array([one.center for one in intervals]), np.asarray(volumes, np.float64)
    known = (true > 0) & (centers > 0)
    ratios = true[known] / centers[known]
    weights, n = unit_weights(None if units is None else np.asarray(units)[known], len(ratios))
    if n < 5:
        return 1.0
    order = np.argsort(ratios)
    middle = np.searchsorted(weights[order].cumsum(), n / 2 - 1e-9)
    return float(ratios[order[middle]])


def plain_interval(
    case: CaseSummary, s: int, method: Method, rho: float, coverage: float
) -> Interval:
    """The interval of structure `s` before the conformal factor.

    "factor" is that of the one-factor model, around its median. The simple ones are ± 100 % of
    the expected volume ("share"), ± 1 ml around it ("constant"), and ± 100 % of the volume of the
    argmax mask ("hard"). Each side is at least half a voxel.
    """
    ml, hist = case.voxel_ml, case.histogram(s)
    if method == "factor":
        low, center, high = volume_quantiles(
            hist, rho, [(1 - coverage) / 2, 0.5, (1 + coverage) / 2], ml
        ).tolist()
        return Interval(center, min(low, center - ml / 2), max(high, center + ml / 2))
    center = ml * (case.hard_volume(s) if method == "hard" else hist.expected)
    side = 1.0 if method == "constant" else max(center, ml / 2)
    return Interval(center, center - side, center + side)
