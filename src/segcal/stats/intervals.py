"""Means with their intervals; scans of one patient count once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit


class Estimate(NamedTuple):
    """A mean, or an expected value, with its interval; NaN where undefined."""

    mean: float
    low: float
    high: float


def mean_interval(
    values: ArrayLike,
    units: Sequence[str] | NDArray[np.str_] | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """Mean over patients and its Student interval; NaN values are left out.

    `units` names the patient of each value. None: each value is of one patient.
    """
    array = np.asarray(values, dtype=np.float64)
    known = np.isfinite(array)
    array = array[known]
    if units is not None:
        names, index = np.unique(np.asarray(units)[known], return_inverse=True)
        array = np.bincount(index, array, len(names)) / np.bincount(index, minlength=len(names))
    n = len(array)
    mean = float(array.mean()) if n else math.nan
    if n < 2:
        return Estimate(mean, math.nan, math.nan)
    half = float(stdtrit(n - 1, (1 + confidence) / 2) * array.std(ddof=1) / math.sqrt(n))
    return Estimate(mean, mean - half, mean + half)
