"""Correction of expected Dice by the Dice of held-out scans.

The model knows the errors that the probabilities admit. It does not know how often a structure that
the network marks is absent, or how over-confident the network remains after a calibrator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from segcal.assurance.conformal import CHOICE_NEEDS, unit_weights
from segcal.assurance.histogram import Floats, Ints

Kind: TypeAlias = Literal["none", "offset", "line"]
_NO_VARIANCE = 1e-12  # rounding: the same expected Dice in all scans says nothing about a slope


class DiceLine(NamedTuple):
    """The mean Dice of scans with the same expected Dice: offset + slope · expected Dice."""

    offset: float = 0.0
    slope: float = 1.0

    def corrected(self, expected: float) -> float:
        """A Dice in [0, 1]; NaN stays NaN, and 0, that of an empty mask, stays 0."""
        if not expected > 0:
            return expected
        return min(max(self.offset + self.slope * expected, 0.0), 1.0)

    def describe(self) -> str:
        """What the correction does.

        Example:
            >>> DiceLine(-0.03).describe(), DiceLine(0.1, 0.85).describe(), DiceLine().describe()
            ('expected Dice − 0.030', '0.100 + 0.85 · expected Dice', 'none')
        """
        if self == DiceLine():
            return "none"
        if self.slope == 1:
            return f"expected Dice {'−' if self.offset < 0 else '+'} {abs(self.offset):.3f}"
        return f"{self.offset:.3f} + {self.slope:.2f} · expected Dice".replace("-", "−")


def fit_dice_line(
    expected: Floats, true: Floats, units: NDArray[np.str_], folds: Sequence[tuple[Ints, Ints]]
) -> tuple[DiceLine, Floats]:
    """The correction of all scans, and the value of each scan corrected by folds without it.

    Compared are no correction, an offset, and a line whose slope is not negative; the smallest
    cross-validated mean squared error wins, and the simpler one of a tie. Fewer than 20 patients
    are too few to choose: no correction.

    Args:
        expected, true: Dice of each scan; NaN where it is undefined.
        units: the patient of each scan.
        folds: (scans, other scans).
    """
    usable = (expected > 0) & ~np.isnan(true)

    def line(kind: Kind, some: Ints) -> DiceLine:
        own = some[usable[some]]
        if kind == "none" or not len(own):
            return DiceLine()
        weights, _ = unit_weights(units[own], len(own))
        x, y = (float(np.average(each[own], weights=weights)) for each in (expected, true))
        slope = 1.0
        if kind == "line":
            deviation = expected[own] - x
            variance = float(weights @ deviation**2)
            if variance > _NO_VARIANCE:
                slope = max(float(weights @ (deviation * true[own])) / variance, 0.0)
        return DiceLine(y - slope * x, slope)

    def held_out(kind: Kind) -> Floats:
        out = expected.copy()
        for part, others in folds:
            found = line(kind, others)
            out[part] = [found.corrected(value) for value in expected[part]]
        return out

    weights, patients = unit_weights(units[usable], int(usable.sum()))
    if patients < CHOICE_NEEDS:
        return DiceLine(), expected
    tried = {kind: held_out(kind) for kind in get_args(Kind)}
    errors = {
        kind: float(weights @ (out[usable] - true[usable]) ** 2) for kind, out in tried.items()
    }
    best: Kind = min(tried, key=errors.__getitem__)
    return line(best, np.arange(len(expected))), tried[best]
