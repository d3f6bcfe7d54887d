"""Means with intervals over patients."""

import numpy as np
from scipy import stats

from segcal.stats import mean_interval


def test_mean_interval() -> None:
    values = np.array([1.0, 2.0, 4.0, np.nan])
    expected = stats.ttest_1samp(values[:3], 0).confidence_interval(0.95)
    found = mean_interval(values)
    np.testing.assert_allclose(found[1:], expected)
    assert mean_interval([1, 3, 8], ["a", "a", "b"]).mean == 5.0
    assert np.isnan(mean_interval([1.0]).low)
