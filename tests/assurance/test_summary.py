"""One scan as histograms: equal to counting voxels; and phantoms with a known correlation."""

import numpy as np
import pytest
from sklearn.linear_model import QuantileRegressor

from helpers.assurance_phantoms import RHO, phantom
from segcal.assurance import (
    INTERVAL_TITLES,
    CaseSummary,
    Interval,
    conformal_quantile,
    fit_rho,
    summarize,
)
from segcal.assurance.histogram import BINS, EDGES
from segcal.assurance.intervals import METHODS, Band, plain_interval, volume_slopes
from segcal.posthoc import TemperatureScaling
from segcal.stats import clopper_pearson


def test_every_kind_of_interval_has_a_title() -> None:
    assert list(INTERVAL_TITLES) == list(METHODS)


def test_counts_are_those_of_the_voxels() -> None:
    probs, target = phantom(0)
    case = summarize(probs, target, (2.0, 1.0, 0.5), name="a")
    assert case.voxel_ml == pytest.approx(0.001)
    labels = probs.argmax(0)
    for s in (0, 1):
        mask, truth = labels == s + 1, target == s + 1
        assert case.hard_volume(s) == mask.sum()
        assert case.true_volume(s) == truth.sum()
        assert case.dice(s) == pytest.approx(2 * (mask & truth).sum() / (mask.sum() + truth.sum()))
        assert case.histogram(s).expected == pytest.approx(probs[s + 1].sum(dtype=float), rel=1e-6)
        assert case.inside(s).expected == pytest.approx(
            probs[s + 1][mask].sum(dtype=float), rel=1e-6
        )
        size, hits = case.above(s)
        for b in (1, 300, 740, BINS - 200):
            above = probs[s + 1] >= np.float32(EDGES[b])
            assert (size[b], hits[b]) == (above.sum(), (above & truth).sum())


def test_ignored_voxels_count_nowhere() -> None:
    probs, target = phantom(1)
    ignored = target.astype(np.int32)
    ignored[:5] = -100
    got, cut = summarize(probs, ignored), summarize(probs[:, 5:], target[5:])
    for name in ("count", "sums", "inside_count", "inside_sums", "truth", "overlap"):
        np.testing.assert_allclose(getattr(got, name), getattr(cut, name))


def test_half_precision_slices_and_a_calibrator() -> None:
    probs, _ = phantom(2)
    half = summarize(probs.astype(np.float16))
    assert half.histogram(0).expected == pytest.approx(probs[1].sum(dtype=float), rel=1e-3)
    assert summarize(probs[:, 7], None, (0.5, 0.5)).voxel_ml == pytest.approx(0.25e-3)
    model = TemperatureScaling()
    model.num_classes = 3
    model.set_params({"temperature": 2.0})
    warm = summarize(probs, calibrator=model)
    expected = model.transform(probs, from_probs=True)[1].sum(dtype=float)
    assert warm.histogram(0).expected == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="sum to 1"):
        summarize(probs[:2])


def test_intervals_by_hand() -> None:
    band = Band(10.0, 8.0, 14.0, 1.0, 2.0)
    assert band.scaled((0.5, 1.1, 2.0)).widened(2.0) == (11.0, 2.0, 32.0)
    assert band.widened(-9.0) == (10.0, 10.0, 10.0)
    assert band.widened(9.0).low == 0.0
    assert [band.factor(v) for v in (7.0, 8.0, 10.0, 15.0)] == [1.0, 0.0, -2.0, 0.5]
    interval = Interval(10.0, 8.0, 14.0)
    assert [interval.contains(v) for v in (7.9, 8.0, 14.1)] == [False, True, False]
    scores = [interval.score(v, 0.9) for v in (7.0, 9.0, 15.0)]
    np.testing.assert_allclose(scores, [26, 6, 26])
    case = summarize(*phantom(3))
    share, hard, constant = (
        plain_interval(case, 0, kind, 0.1, 0.9).widened(1) for kind in ("share", "hard", "constant")
    )
    expected = case.voxel_ml * case.histogram(0).expected
    np.testing.assert_allclose(share, (expected, 0, 2 * expected), atol=1e-12)
    assert hard.center == case.voxel_ml * case.hard_volume(0)
    np.testing.assert_allclose(constant, (expected, 0, expected + 1))


def test_slopes_by_hand() -> None:
    def middle(volumes: list[float], patients: list[str] | None = None) -> float:
        low, center, high = volume_slopes("share", [10.0] * len(volumes), volumes, 0.9, patients)
        assert low == center == high
        return center

    assert middle([11, 12, 9, 0, 12, 15]) == 1.2  # the absent one does not count
    assert middle([11, 12, 9, 15]) == 1.0
    # Three scans of one patient count once: the median of five patients.
    volumes, patients = [11, 12, 9, 8, 13, 15, 15, 15], [*"abcdeeee"]
    assert middle(volumes, patients) == 1.1
    assert middle(volumes) > 1.1


def test_slopes_are_quantile_regression_through_the_origin() -> None:
    rng = np.random.default_rng(0)
    x = rng.lognormal(0, 1, 200)
    y = np.where(rng.random(200) < 0.3, 0.0, x * rng.lognormal(0, 0.3, 200))
    found = volume_slopes("quantile", x, y, 0.8)
    for level, slope in zip((0.1, 0.5, 0.9), found, strict=True):
        model = QuantileRegressor(quantile=level, alpha=0.0, fit_intercept=False, solver="highs")
        assert slope == pytest.approx(model.fit(x[:, None], y).coef_[0], abs=1e-6)
    assert found[0] == 0.0  # absent in 30 %
    twice = volume_slopes("quantile", [*x, *x], [*y, *y], 0.8, [*map(str, range(200))] * 2)
    assert twice == found


@pytest.fixture(scope="module")
def phantoms() -> list[CaseSummary]:
    return [summarize(*phantom(seed), name=str(seed)) for seed in range(1000, 1300)]


def covered(cases: list[CaseSummary], rho: float, factor: float = 1.0) -> list[bool]:
    intervals = [plain_interval(c, 0, "factor", rho, 0.9).widened(factor) for c in cases]
    return [
        i.contains(c.voxel_ml * c.true_volume(0)) for i, c in zip(intervals, cases, strict=True)
    ]


def test_nominal_coverage_over_300_phantoms(phantoms: list[CaseSummary]) -> None:
    low, high = clopper_pearson(sum(covered(phantoms, RHO)), 300, 0.99)
    assert low < 0.9 < high
    assert np.mean(covered(phantoms, 0.0)) < 0.7
    assert np.mean(covered(phantoms, 1.0)) > 0.97


def test_fitted_coverage_of_phantoms(phantoms: list[CaseSummary]) -> None:
    fit, test = phantoms[:100], phantoms[100:]
    rho = fit_rho([c.histogram(0) for c in fit], [c.true_volume(0) for c in fit])
    assert rho == pytest.approx(RHO, rel=0.4)
    scores = [
        plain_interval(c, 0, "factor", rho, 0.9).factor(c.voxel_ml * c.true_volume(0)) for c in fit
    ]
    factor = conformal_quantile(scores, 0.9)
    assert factor == pytest.approx(1, abs=0.25)  # the model is right, so there is little to correct
    low, high = clopper_pearson(sum(covered(test, rho, factor)), 200, 0.99)
    assert low < 0.9 < high
