"""Means with intervals over patients."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from segcal.stats import (
    clopper_pearson,
    clustered_interval,
    jackknife_interval,
    mean_interval,
    pooled_proportion,
    unpaired_difference,
)


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
    single = clustered_interval(values, np.arange(24).astype(str), confidence=0.8)
    np.testing.assert_allclose(single, mean_interval(values, confidence=0.8))
    values[0] = np.nan
    found = clustered_interval(values, units)
    assert found.mean == pytest.approx(np.nanmean(values))
    left = [np.nanmean(values[units != unit]) for unit in "abcdefgh"]  # the jackknife by hand
    error = np.sqrt(7 / 8 * ((np.array(left) - found.mean) ** 2).sum())
    assert found.high - found.mean == pytest.approx(stats.t.ppf(0.975, 7) * error)
    assert np.isnan(clustered_interval([1.0, 2.0], ["a", "a"]).low)


def test_the_mean_over_seeds_where_values_are_undefined() -> None:
    """Seed 1 has no value of two patients; each jackknife sample is the mean of both seeds."""
    rng = np.random.default_rng(5)
    values = rng.normal(size=(2, 6))
    values[1, :2] = np.nan
    patients, seeds = np.tile([*"abcdef"], 2), np.repeat([0, 1], 6)
    found = clustered_interval(values.ravel(), patients, seeds)
    assert found.mean == pytest.approx(np.nanmean(values, axis=1).mean())
    left = [np.nanmean(np.delete(values, i, axis=1), axis=1).mean() for i in range(6)]
    error = np.sqrt(5 / 6 * ((np.array(left) - found.mean) ** 2).sum())
    assert found.high - found.mean == pytest.approx(stats.t.ppf(0.975, 5) * error)
    assert found.low != pytest.approx(clustered_interval(values.ravel(), patients).low)
    # Without undefined values it is that of the means over seeds.
    full = rng.normal(size=(3, 6))
    names = np.tile([*"abcdef"], 3), np.repeat([0, 1, 2], 6)
    np.testing.assert_allclose(
        clustered_interval(full.ravel(), *names), mean_interval(full.mean(0), names[0][:6])
    )
    # A patient who alone has values with a seed.
    assert np.isfinite(clustered_interval([1, 2, 3], [*"aba"], [0, 0, 1])).all()


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


def test_the_jackknife_of_a_ratio() -> None:
    """Close to the linearized standard error, and Student's interval of a mean."""
    rng = np.random.default_rng(2)
    size = rng.uniform(50, 100, 40)
    hits = size * rng.uniform(0.6, 0.9, 40)
    ratio = hits.sum() / size.sum()
    found = jackknife_interval(ratio, (hits.sum() - hits) / (size.sum() - size), 0.9)
    linear = np.sqrt(40 / 39 * ((hits - ratio * size) ** 2).sum()) / size.sum()
    assert found.high - ratio == pytest.approx(stats.t.ppf(0.95, 39) * linear, rel=0.05)
    assert ratio - found.low == pytest.approx(found.high - ratio)
    assert np.isnan(jackknife_interval(1.0, [1.0]).low)


@pytest.mark.parametrize(("k", "n"), [(0, 12), (7, 12), (12, 12), (3, 200)])
def test_clopper_pearson_agrees_with_scipy(k: int, n: int) -> None:
    expected = stats.binomtest(k, n).proportion_ci(0.9)
    np.testing.assert_allclose(clopper_pearson(k, n, 0.9), expected, rtol=1e-9)


def test_a_proportion_by_hand() -> None:
    """Two patients with 80 and 100 of 100: the jackknife's error is .1, and z / t is .154."""
    found = pooled_proportion([80, 100], [100, 100])
    effective = 0.9 * 0.1 / 0.1**2 * (stats.norm.ppf(0.975) / stats.t.ppf(0.975, 1)) ** 2
    assert found == pytest.approx((0.9, *clopper_pearson(0.9 * effective, effective)))
    narrow = pooled_proportion([80, 100], [100, 100], 0.5)
    assert found.low < narrow.low < 0.9 < narrow.high < found.high
    # Patients without trials do not count, one patient has no interval.
    assert pooled_proportion([80, 100, 0], [100, 100, 0]) == pytest.approx(tuple(found))
    assert pooled_proportion([80], [100]).mean == 0.8
    assert np.isnan(pooled_proportion([80], [100])[1:]).all()
    assert np.isnan(pooled_proportion([], [])).all()
    # Without a difference between patients each counts as one trial.
    assert pooled_proportion([50] * 9, [50] * 9) == pytest.approx((1, *clopper_pearson(9, 9)))
    # It never counts as more trials than there are.
    alternating = pooled_proportion([5, 5, 5, 4], [10, 10, 10, 9])
    assert alternating.low <= clopper_pearson(19, 39)[0] + 1e-9


def test_proportions_hold_their_promise() -> None:
    """Accuracies near 1 that differ between 10 patients; the percentile bootstrap covers 86 %."""
    rng = np.random.default_rng(3)
    trials = np.round(2000 * np.exp(0.5 * rng.normal(size=(600, 10)))).astype(int)
    right = rng.binomial(trials, expit(3.5 + 0.5 * rng.normal(size=(600, 10))))
    truth = expit(3.5 + 0.5 * rng.normal(size=400_000)).mean()
    found = [pooled_proportion(*each) for each in zip(right, trials, strict=True)]
    assert sum(low < truth < high for _, low, high in found) > 0.92 * 600


def test_the_difference_of_other_patients() -> None:
    """Welch's interval; scans of one patient count together."""
    rng = np.random.default_rng(0)
    before, after = rng.normal(0.8, 0.1, 12), rng.normal(0.6, 0.2, 7)
    names = [f"a{i}" for i in range(12)], [f"b{i}" for i in range(7)]
    found = unpaired_difference(before, after, names, confidence=0.9)
    expected = stats.ttest_ind(after, before, equal_var=False).confidence_interval(0.9)
    assert found == pytest.approx((after.mean() - before.mean(), *expected))
    wide = unpaired_difference(before, after, names)
    assert wide.low < found.low
    # Four equal scans of each patient are as uncertain as one scan of each.
    scans = np.repeat(after, 4), [name for name in names[1] for _ in range(4)]
    assert unpaired_difference(before, scans[0], (names[0], scans[1])) == pytest.approx(tuple(wide))
    # Of several seeds: the mean over seeds of the mean over values, as in `clustered_interval`.
    some = [after[0], np.nan, *after[1:3]], ["b0", "b1", "b0", "b1"], [0, 0, 1, 1]
    seeded = unpaired_difference(before, some[0], (names[0], some[1]), (None, some[2]))
    assert seeded.mean == pytest.approx((after[0] + after[1:3].mean()) / 2 - before.mean())
    # Undefined values are left out; one patient gives no interval.
    after[1:] = np.nan
    single = unpaired_difference(before, after, names)
    assert single.mean == pytest.approx(after[0] - before.mean())
    assert np.isnan(single[1:]).all()
    assert unpaired_difference([1, 1], [2, 2], (["a", "b"], ["c", "d"])) == (1, 1, 1)
