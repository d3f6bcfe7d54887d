"""The one-factor model: hand-worked values, limits, Monte Carlo, and the error of the bins."""

from itertools import product

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtri

from segcal.assurance import (
    ProbHistogram,
    crps,
    dice_optimal_threshold,
    expected_dice,
    expected_volume,
    fit_rho,
    volume_pit,
    volume_quantiles,
)
from segcal.assurance.histogram import BINS, EDGES, bin_index


def ball(rng: np.random.Generator, size: int = 24, soft: float = 1.2) -> np.ndarray:
    """Probabilities of a ball with a blurred surface."""
    grid = np.stack(np.meshgrid(*[np.arange(size)] * 3, indexing="ij"))
    center = size / 2 + rng.uniform(-2, 2, (3, 1, 1, 1))
    distance = np.sqrt(((grid - center) ** 2).sum(0)) - rng.uniform(5, 8)
    return (1 / (1 + np.exp(distance / soft))).astype(np.float32)


def exact(probs: np.ndarray) -> ProbHistogram:
    """Without binning: one group per voxel."""
    flat = np.sort(probs.astype(float).reshape(-1))
    return ProbHistogram(np.ones(flat.size), flat, flat)


def draw(rng: np.random.Generator, probs: np.ndarray, rho: float) -> np.ndarray:
    """A truth from the factor model."""
    z, e = rng.standard_normal(), rng.standard_normal(probs.shape)
    return np.sqrt(rho) * z + np.sqrt(1 - rho) * e < ndtri(probs)


def test_bins_are_ordered_and_their_edges_belong_to_them() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.random(20_000), 2.0 ** -rng.uniform(0, 30, 20_000), [0, 0.5, 1]])
    values = np.unique(np.concatenate([values, 1 - values]).astype(np.float32))
    index = bin_index(values)
    assert (np.diff(index) >= 0).all()
    assert index[0] == 0
    assert index[-1] == BINS - 1
    for t in (0.003, 0.4999, 0.5, 0.73, 0.9995):
        b = int(bin_index(np.array([t]))[0])
        assert ((values >= np.float32(EDGES[b])) == (index >= b)).all()
        assert EDGES[b] <= t + 1e-7


def test_histogram_keeps_exact_sums() -> None:
    probs = ball(np.random.default_rng(1))
    hist = ProbHistogram.of(probs)
    assert hist.voxels == probs.size
    assert hist.expected == pytest.approx(probs.sum(dtype=np.float64), rel=1e-9)
    assert (np.diff(hist.prob) > 0).all()
    assert expected_volume(probs, 0.5) == pytest.approx(0.5 * probs.sum(dtype=np.float64))


@pytest.mark.parametrize("rho", [0.0, 0.05, 0.5])
def test_the_error_of_the_bins_is_below_a_ten_thousandth(rho: float) -> None:
    probs = ball(np.random.default_rng(2), size=32)
    hist, fine = ProbHistogram.of(probs), exact(probs)
    inside = probs > 0.5
    levels = [0.05, 0.5, 0.95]
    np.testing.assert_allclose(
        volume_quantiles(hist, rho, levels), volume_quantiles(fine, rho, levels), rtol=1e-4
    )
    np.testing.assert_allclose(
        expected_dice(hist, probs[inside], rho),
        expected_dice(fine, exact(probs[inside]), rho),
        atol=1e-4,
    )
    (t, dice), (t_exact, dice_exact) = (dice_optimal_threshold(h, rho) for h in (hist, fine))
    assert dice == pytest.approx(dice_exact, abs=1e-4)
    assert t == pytest.approx(t_exact, abs=0.01)


def test_independent_voxels_are_binomial() -> None:
    n, p = 4000, 0.3
    found = volume_quantiles(np.full(n, p), 0.0, [0.05, 0.5, 0.95])
    np.testing.assert_allclose(found, stats.binom.ppf([0.05, 0.5, 0.95], n, p), atol=1)


def test_nested_outlines_are_level_sets() -> None:
    probs = ball(np.random.default_rng(3))
    for level in (0.1, 0.5, 0.9):
        nested = volume_quantiles(exact(probs), 1.0, level)
        assert nested == np.count_nonzero(probs > 1 - level)
        near = volume_quantiles(probs, 0.999, level)
        assert near == pytest.approx(float(nested), rel=0.03)


@pytest.mark.parametrize("rho", [0.02, 0.3])
def test_quantiles_and_dice_agree_with_monte_carlo(rho: float) -> None:
    rng = np.random.default_rng(4)
    probs = ball(rng, size=18)
    mask = probs > 0.5
    truths = [draw(rng, probs, rho) for _ in range(1000)]
    volumes = np.array([t.sum() for t in truths])
    dice = [2 * (t & mask).sum() / (mask.sum() + t.sum()) for t in truths]
    predicted = volume_quantiles(probs, rho, [0.05, 0.25, 0.5, 0.75, 0.95])
    np.testing.assert_allclose(
        predicted, np.quantile(volumes, [0.05, 0.25, 0.5, 0.75, 0.95]), rtol=0.05
    )
    found = expected_dice(probs, probs[mask], rho)
    assert found == pytest.approx(np.mean(dice), abs=0.004)
    pit = [volume_pit(probs, rho, v) for v in volumes[:300]]
    assert stats.kstest(pit, "uniform").pvalue > 0.01


def test_crps_of_samples() -> None:
    """E|X − y| − E|X − X'|/2, by its definition."""
    rng = np.random.default_rng(5)
    x = np.sort(rng.normal(3, 2, 801))
    by_definition = np.abs(x - 1).mean() - 0.5 * np.abs(x[:, None] - x).mean()
    assert crps(x, 1.0) == pytest.approx(by_definition, rel=1e-6)
    assert crps(x, 3.0) < crps(x, 9.0)


@pytest.mark.parametrize("rho", [0.03, 0.2])
def test_rho_is_recovered(rho: float) -> None:
    rng = np.random.default_rng(6)
    cases = [ball(rng, size=18) for _ in range(120)]
    volumes = [float(draw(rng, probs, rho).sum()) for probs in cases]
    assert fit_rho(cases, volumes) == pytest.approx(rho, rel=0.3)


def test_optimal_mask_is_the_best_of_all_subsets() -> None:
    """Brute force over all masks and all truths of seven voxels, independent voxels."""
    probs = np.array([0.95, 0.8, 0.55, 0.45, 0.3, 0.2, 0.05])
    truths = np.array(list(product([0, 1], repeat=7)))
    weight = np.where(truths, probs, 1 - probs).prod(1)
    masks = truths[1:]
    both = 2 * masks @ truths.T / np.maximum(masks.sum(1)[:, None] + truths.sum(1), 1)
    best = masks[(both @ weight).argmax()].astype(bool)
    threshold, dice = dice_optimal_threshold(exact(probs), 0.0)
    assert ((probs >= threshold) == best).all()
    assert dice == pytest.approx((both @ weight).max(), abs=0.05)  # seven voxels only
    assert threshold < 0.5


def test_optimal_mask_depends_on_rho_and_beats_one_half() -> None:
    probs = ball(np.random.default_rng(7), soft=6.0) * 0.6
    thresholds = [dice_optimal_threshold(probs, rho)[0] for rho in (0.0, 0.3, 0.9)]
    assert len(set(thresholds)) == 3
    for rho, t in zip((0.0, 0.3, 0.9), thresholds, strict=True):
        best, half = (expected_dice(probs, probs[probs >= c], rho) for c in (t, 0.5))
        assert best > half


def test_an_absent_structure_has_no_dice() -> None:
    nothing = np.full((4, 4), 1e-4, np.float32)
    assert np.isnan(expected_dice(nothing, nothing[:0], 0.1))
    assert dice_optimal_threshold(nothing)[0] == np.inf
    half = np.full((4, 4), 0.4, np.float32)
    assert expected_dice(half, half[:0], 0.1) == 0.0
