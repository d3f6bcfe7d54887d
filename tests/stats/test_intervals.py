"""Means with intervals over patients."""

import numpy as np
import pytest
from scipy import stats

from segcal.stats import clustered_interval, mean_interval


def test_mean_interval() -> None:
    values = np.array([1.0, 2.0, 4.0, np.nan])
    expected = stats.ttest_1samp(values[:3], 0).confidence_interval(0.95)
    found = mean_interval(values)
    np.testing.assert_allclose(found[1:], expected)
    assert mean_interval([1, 3, 8], ["a", "a", "b"]).mean == 5.0
    assert np.isnan(mean_interval([1.0]).low)


def test_the_interval_of_a_mean_over_values_of_patients() -> None:
    """With as many values per patient it is `mean_interval`; else it is still around the mean."""
    rng = np.random.default_rng(0)
    values, units = rng.normal(size=24), np.repeat([*"abcdefgh"], 3)
    np.testing.assert_allclose(clustered_interval(values, units), mean_interval(values, units))
    single = clustered_interval(values, np.arange(24).astype(str), 0.8)
    np.testing.assert_allclose(single, mean_interval(values, confidence=0.8))
    values[0] = np.nan
    found = clustered_interval(values, units)
    assert found.mean == pytest.approx(np.nanmean(values))
    left = [np.nanmean(values[units != unit]) for unit in "abcdefgh"]  # the jackknife by hand
    error = np.sqrt(7 / 8 * ((np.array(left) - found.mean) ** 2).sum())
    assert found.high - found.mean == pytest.approx(stats.t.ppf(0.975, 7) * error)
    assert np.isnan(clustered_interval([1.0, 2.0], ["a", "a"]).low)


def test_coverage_where_patients_have_different_numbers_of_scans() -> None:
    """Patients with more scans have worse ones, so the mean over patients is another number."""
    rng = np.random.default_rng(1)
    covered = {clustered_interval: 0, mean_interval: 0}
    for _ in range(300):
        scans = rng.choice([1, 6], 20)
        units = np.repeat(np.arange(20), scans).astype(str)
        patient = np.where(scans == 6, -1.0, 0.0) + 0.5 * rng.normal(size=20)
        values = np.repeat(patient, scans) + 0.2 * rng.normal(size=len(units))
        for interval in covered:
            _, low, high = interval(values, units)
            covered[interval] += low < -6 / 7 < high
    assert covered[clustered_interval] > 0.9 * 300
    assert covered[mean_interval] < 0.5 * 300
