"""Conformal quantiles, controlled risks, bounds and referral: hand-worked and simulated."""

import math

import numpy as np
import pytest

from segcal.assurance import (
    cases_needed,
    conformal_quantile,
    first_controlled,
    margin_losses,
    operating_point,
    referral_cases_needed,
    referral_limit,
    risk_coverage,
)
from segcal.stats import clopper_pearson


def test_conformal_quantile_by_hand() -> None:
    assert conformal_quantile([5, 1, 3, 2, 4, 9, 8, 7, 6], 0.9) == 9  # 9 of 9
    assert conformal_quantile([5, 1, 3, 2, 4, 9, 8, 7, 6], 0.5) == 5
    assert conformal_quantile([1, 2, 3, 4, 5, 6, 7, 8], 0.9) == math.inf
    assert (cases_needed(0.9), cases_needed(0.95), cases_needed(0.5)) == (9, 19, 1)


def test_scans_of_one_patient_count_once() -> None:
    scores = list(range(1, 19))
    patients = [f"p{i // 2}" for i in range(18)]
    assert conformal_quantile(scores, 0.9) == 18
    assert conformal_quantile(scores[:9], 0.9, patients[:9]) == math.inf  # 5 patients
    assert conformal_quantile(scores, 0.5, patients) == 10  # 5 of 9 patients


def test_coverage_is_that_promised() -> None:
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(3000):
        scores = rng.exponential(size=20)
        hits.append(scores[-1] <= conformal_quantile(scores[:-1], 0.8))
    low, high = clopper_pearson(sum(hits), len(hits), 0.99)
    assert low < 16 / 20 < high  # ⌈20 · 0.8⌉ of 20 ranks


def test_risk_control_by_hand() -> None:
    losses = np.array([[0.0, 0.1, 0.4], [0.0, 0.3, 0.6]])
    # (n·R̂ + 1)/(n + 1) is 1/3, 1.4/3, 2/3; of one patient with two scans 0.5, 0.6, 0.75.
    edges = np.array([0.1, 0.5, 0.9])
    assert first_controlled(edges[::-1], losses[:, ::-1], 0.5) == 0.5
    assert first_controlled(edges[::-1], losses[:, ::-1], 0.4) == 0.1
    assert math.isnan(first_controlled(edges[::-1], losses[:, ::-1], 0.2))
    assert first_controlled(edges[::-1], losses[:, ::-1], 0.5, ["a", "a"]) == 0.1


def test_margins_in_millimeters() -> None:
    mask, truth = np.zeros((1, 1, 9), bool), np.zeros((1, 1, 9), bool)
    mask[..., 3:6] = truth[..., 2:8] = True
    spacing = (1.0, 1.0, 2.0)
    # Outside the mask: voxel 2 (2 mm), 6 (2 mm), 7 (4 mm) of six.
    np.testing.assert_allclose(margin_losses(mask, truth, spacing, [0, 2, 4]), [0.5, 1 / 6, 0])
    inner = margin_losses(truth, mask, spacing, [0, 2, 4, 9], "inner")
    # Depths of 2..7: 2, 4, 6, 6, 4, 2 mm; voxels 3, 4, 5 are right.
    np.testing.assert_allclose(inner, [0.5, 0.25, 0, 0])
    losses = np.stack([margin_losses(mask, truth, spacing, [0, 2, 4])] * 20)
    assert first_controlled(np.array([0.0, 2.0, 4.0]), losses, 0.25) == 2.0
    assert np.isnan(margin_losses(mask, truth & False, spacing, [1])).all()
    assert margin_losses(mask & False, truth, spacing, [100]) == [1.0]
    full = margin_losses(mask | True, truth, spacing, [0, 2, 4], "inner")
    np.testing.assert_allclose(full, (~truth).mean())  # nowhere to shrink from


def test_referral() -> None:
    rng = np.random.default_rng(1)
    expected = rng.uniform(0.5, 1, 400)
    failed = expected + rng.normal(0, 0.03, 400) < 0.7
    rule = referral_limit(expected, failed, 0.1)
    assert rule is not None
    assert 0.65 < rule.limit < 0.8
    assert rule.bound <= 0.1
    accepted = expected >= rule.limit
    assert (rule.accepted, rule.failures) == (accepted.sum(), failed[accepted].sum())
    assert referral_limit(expected, failed & False, 0.1).limit == expected.min()
    assert referral_limit(expected, failed | True, 0.1) is None
    need = referral_cases_needed(0.1)
    assert referral_limit(np.ones(need), np.zeros(need), 0.1) is not None
    assert referral_limit(np.ones(need - 1), np.zeros(need - 1), 0.1) is None
    pairs = [f"p{i // 2}" for i in range(need)]
    assert referral_limit(np.ones(need), np.zeros(need), 0.1, units=pairs) is None
    assert referral_limit(expected, failed, 0.1, confidence=0.999).limit >= rule.limit


def test_operating_point_by_hand() -> None:
    size, hits, true = (
        np.array([4.0, 0.0, 2.0]),
        np.array([3.0, 0.0, 0.0]),
        np.array([6.0, 5.0, 0.0]),
    )
    point = operating_point(0.3, size, hits, true)
    assert point.threshold == 0.3
    assert point.sensitivity.mean == pytest.approx((0.5 + 0) / 2)  # undefined in the third
    assert point.precision.mean == pytest.approx((0.75 + 0) / 2)  # undefined in the second
    assert point.dice.mean == pytest.approx((0.6 + 0 + 0) / 3)
    assert point.volume_error.mean == pytest.approx((-1 / 3 - 1) / 2)
    assert operating_point(0.3, size, hits, true, ["a", "a", "b"]).dice.mean == pytest.approx(0.15)


def test_risk_coverage_by_hand() -> None:
    curve = risk_coverage([0.1, 0.9, 0.5], [0.6, 0.0, 0.3])
    np.testing.assert_allclose(curve.risk, [0, 0.15, 0.3])
    np.testing.assert_allclose(curve.coverage, [1 / 3, 2 / 3, 1])
    assert curve.aurc == pytest.approx(0.15)
    weighted = risk_coverage([0.1, 0.9, 0.5], [0.6, 0.0, 0.3], [1, 0.5, 0.5])
    np.testing.assert_allclose(weighted.risk, [0, 0.15, 0.375])
    np.testing.assert_allclose(weighted.coverage, [0.25, 0.5, 1])
    assert weighted.aurc == pytest.approx(0.25 * 0 + 0.25 * 0.15 + 0.5 * 0.375)


def test_the_order_of_equal_confidences_does_not_matter() -> None:
    """A network of probabilities 0 and 1 is equally sure of all scans: no order is better."""
    risk = np.array([0.0, 0.0, 0.0, 1.0])
    best, worst = (risk_coverage(np.ones(4), values) for values in (risk, risk[::-1]))
    assert best.aurc == worst.aurc == pytest.approx(0.25)
    some = risk_coverage([0.9, 0.5, 0.5], [0.0, 0.2, 0.6])
    np.testing.assert_allclose(some.risk, [0, 0.4 / 2, 0.8 / 3])
    assert some.aurc == risk_coverage([0.5, 0.9, 0.5], [0.6, 0.0, 0.2]).aurc
    # Patients of one and of two scans; the mean over the orders of the two ties, by hand.
    weighted = risk_coverage([1, 1, 1], [0.0, 0.3, 0.6], [1, 0.5, 0.5])
    np.testing.assert_allclose(weighted.risk, [0.225] * 3)
