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


def clustered_interval(
    values: ArrayLike, units: Sequence[str] | NDArray[np.str_], confidence: float = 0.95
) -> Estimate:
    """Mean over values and its interval, where the values of one patient are dependent.

    The standard error is the jackknife's over patients, with Student's t. If all patients have the
    same number of values, this is `mean_interval`; if not, that is about another mean.

    Args:
        values: NaN values are left out.
        units: the patient of each value.
        confidence: level of the interval.

    Example:
        >>> found = clustered_interval([0.9, 0.8, 0.7, 0.2, 0.2, 0.2], ["a", "b", "c", *"ddd"])
        >>> [round(value, 2) for value in found]  # the mean over patients is 0.65
        [0.5, -0.38, 1.38]
    """
    array = np.asarray(values, dtype=np.float64)
    known = np.isfinite(array)
    array = array[known]
    names, index = np.unique(np.asarray(units)[known], return_inverse=True)
    n = len(names)
    mean = float(array.mean()) if n else math.nan
    if n < 2:
        return Estimate(mean, math.nan, math.nan)
    without = array.sum() - np.bincount(index, array, n)
    without /= len(array) - np.bincount(index, minlength=n)
    error = math.sqrt((n - 1) / n * float(((without - mean) ** 2).sum()))
    half = float(stdtrit(n - 1, (1 + confidence) / 2)) * error
    return Estimate(mean, mean - half, mean + half)
