"""Means with their intervals; scans of one patient count once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtri, stdtrit

Floats = NDArray[np.float64]
Units = Sequence[str] | NDArray[np.str_]


class Estimate(NamedTuple):
    """A mean, or an expected value, with its interval; NaN where undefined."""

    mean: float
    low: float
    high: float

    def within(self, limits: tuple[float, float]) -> Estimate:
        """With ends that are possible values.

        Example:
            >>> Estimate(0.9, 0.7, 1.1).within((0, 1))
            Estimate(mean=0.9, low=0.7, high=1)
        """
        lowest, highest = limits
        return Estimate(self.mean, max(self.low, lowest), min(self.high, highest))


def mean_interval(
    values: ArrayLike, units: Units | None = None, confidence: float = 0.95
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
    values: ArrayLike, units: Units, seeds: Units | None = None, confidence: float = 0.95
) -> Estimate:
    """Mean over values and its interval, where the values of one patient are dependent.

    The standard error is the jackknife's over patients, with Student's t. If all patients have the
    same number of values, this is `mean_interval`; if not, that is about another mean.

    Args:
        values: NaN values are left out.
        units: the patient of each value.
        seeds: the training seed of each value; the mean is over seeds of the mean over values.
            None: one seed.
        confidence: level of the interval.

    Example:
        >>> found = clustered_interval([0.9, 0.8, 0.7, 0.2, 0.2, 0.2], ["a", "b", "c", *"ddd"])
        >>> [round(value, 2) for value in found]  # the mean over patients is 0.65
        [0.5, -0.38, 1.38]
    """
    return jackknife_interval(*_pooled_mean(values, units, seeds), confidence)


def unpaired_difference(
    before: ArrayLike,
    after: ArrayLike,
    units: tuple[Units, Units],
    seeds: tuple[Units | None, Units | None] = (None, None),
    confidence: float = 0.95,
) -> Estimate:
    """Mean of `after` minus mean of `before`, of different patients, and its interval.

    Welch's interval with the standard errors of the jackknife over the patients of each side. It is
    NaN if a side has only one patient.

    Args:
        before, after: NaN values are left out.
        units: the patient of each value of both sides.
        seeds: the training seed of each value of both sides; see `clustered_interval`.
        confidence: level of the interval.

    Example:
        >>> found = unpaired_difference([0.9, 0.7], [0.5, 0.5], (["a", "b"], ["c", "d"]))
        >>> [round(value, 2) for value in found]
        [-0.3, -1.57, 0.97]
    """
    sides = [_pooled_mean(*side) for side in zip((before, after), units, seeds, strict=True)]
    difference = sides[1][0] - sides[0][0]
    freedom = [len(without) - 1 for _, without in sides]
    if min(freedom) < 1:
        return Estimate(difference, math.nan, math.nan)
    squares = [_jackknife_error(*side) ** 2 for side in sides]
    total = sum(squares)
    terms = sum(square**2 / f for square, f in zip(squares, freedom, strict=True))
    quantile = float(stdtrit(total**2 / terms, (1 + confidence) / 2)) if terms else 0.0
    half = quantile * math.sqrt(total)
    return Estimate(difference, difference - half, difference + half)


def _pooled_mean(
    values: ArrayLike, units: Units, seeds: Units | None = None
) -> tuple[float, Floats]:
    """Mean over seeds of the mean over values without NaN, and the same without each patient."""
    array = np.asarray(values, dtype=np.float64)
    known = np.isfinite(array)
    patients, of = np.unique(np.asarray(units)[known], return_inverse=True)
    runs, run = np.unique(
        np.zeros(len(of)) if seeds is None else np.asarray(seeds)[known], return_inverse=True
    )
    if not len(patients):
        return math.nan, np.empty(0)
    shape = len(patients), len(runs)
    place = np.ravel_multi_index((of, run), shape)
    total, count = (
        np.bincount(place, weights, math.prod(shape)).reshape(shape)
        for weights in (array[known], None)
    )
    rest, left = total.sum(0) - total, count.sum(0) - count
    means = np.divide(rest, left, out=np.zeros(shape), where=left > 0)
    with np.errstate(invalid="ignore"):  # a single patient
        without = means.sum(1) / (left > 0).sum(1)
    return float((total.sum(0) / count.sum(0)).mean()), without


def jackknife_interval(value: float, without: ArrayLike, confidence: float = 0.95) -> Estimate:
    """A statistic of all patients and its interval: the jackknife's standard error, Student's t.

    The interval is NaN for fewer than two patients. A percentile bootstrap of few patients is too
    narrow (decision 26).

    Args:
        value: the statistic.
        without: the statistic without each patient (n).
        confidence: level of the interval.

    Example:
        >>> patients = np.array([1.0, 2.0, 6.0])
        >>> found = jackknife_interval(3.0, (9 - patients) / 2)
        >>> np.allclose(found, mean_interval(patients))
        True
    """
    left_out = np.asarray(without, dtype=np.float64)
    n = len(left_out)
    if n < 2:
        return Estimate(value, math.nan, math.nan)
    half = float(stdtrit(n - 1, (1 + confidence) / 2)) * _jackknife_error(value, left_out)
    return Estimate(value, value - half, value + half)


def _jackknife_error(value: float, without: Floats) -> float:
    n = len(without)
    return math.sqrt((n - 1) / n * float(((without - value) ** 2).sum()))


def clopper_pearson(
    successes: float, trials: float, confidence: float = 0.95
) -> tuple[float, float]:
    """Exact two-sided interval of a proportion; (NaN, NaN) without trials.

    Example:
        >>> low, high = clopper_pearson(0, 29, 0.9)
        >>> low, round(high, 3)
        (0.0, 0.098)
    """
    if not trials:
        return math.nan, math.nan
    tail, k, n = (1 - confidence) / 2, successes, trials
    low = float(betaincinv(k, n - k + 1, tail)) if k > 0 else 0.0
    high = float(betaincinv(k + 1, n - k, 1 - tail)) if k < n else 1.0
    return low, high


def pooled_proportion(hits: ArrayLike, trials: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Proportion of hits in the pooled trials of all patients; trials of a patient are dependent.

    The interval is that of Korn and Graubard (1998): Clopper–Pearson with as many trials as would
    have the standard error of the jackknife over patients if they were independent, fewer by the
    ratio of normal and t quantiles squared. If no patient differs from the others, this number is
    not known, and a patient counts as one trial. NaN for fewer than two patients with trials.

    Args:
        hits, trials: of each patient (n).
        confidence: level of the interval.

    Example:
        >>> found = pooled_proportion([90, 99, 96], [100, 100, 100])
        >>> [round(value, 3) for value in found]
        [0.95, 0.692, 1.0]
    """
    right, counted = np.asarray(hits, np.float64), np.asarray(trials, np.float64)
    right, counted = right[counted > 0], counted[counted > 0]
    total, n = float(counted.sum()), len(counted)
    p = float(right.sum()) / total if n else math.nan
    if n < 2:
        return Estimate(p, math.nan, math.nan)
    found = jackknife_interval(p, (right.sum() - right) / (total - counted), confidence)
    half, effective = found.high - p, float(n)
    if half > 1e-12:
        z = float(ndtri((1 + confidence) / 2))
        effective = min(p * (1 - p) * (z / half) ** 2, total)
    return Estimate(p, *clopper_pearson(p * effective, effective, confidence))
