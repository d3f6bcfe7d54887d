"""Calibrators that keep the label: distance, class_affine, inverse, and variants of the others."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from helpers.posthoc_samples import calibrated, softmax
from segcal.losses import make_loss
from segcal.posthoc import (
    ClassAffineScaling,
    DistanceScaling,
    HeldOut,
    InverseSmoothing,
    MixtureScaling,
    TemperatureScaling,
    load_calibrator,
    make_calibrator,
    surface_distance,
)

SPACING = (2.0, 1.0, 1.5)


def smooth_case(seed: int = 0, shape: tuple[int, ...] = (6, 20, 18)) -> HeldOut:
    """Logits of smooth organs, and labels drawn from them: calibrated by construction."""
    rng = np.random.default_rng(seed)
    logits = gaussian_filter(rng.normal(size=(3, *shape)), (0, 1, 2, 2)) * 25
    logits[0] += 1.0
    above = rng.random(shape) > softmax(logits).cumsum(0)
    return HeldOut(logits, above.sum(0).clip(max=2), spacing_mm=SPACING)


def spoiled(case: HeldOut, a: Any, b: Any, scale: float) -> HeldOut:
    """The case with logits whose right correction is T = exp(a_k + b_k · exp(−d/δ))."""
    label = case.logits.argmax(0)
    close = np.exp(-surface_distance(label, SPACING)[0] / scale)
    factor = np.exp(np.asarray(a)[label] + np.asarray(b)[label] * close)
    return HeldOut(case.logits * factor, case.target, spacing_mm=SPACING)


def nll(logits: np.ndarray, target: np.ndarray) -> float:
    probs = softmax(logits).reshape(len(logits), -1)
    return float(-np.log(probs[target.ravel(), np.arange(target.size)]).mean())


def test_surface_distance_agrees_with_brute_force() -> None:
    rng = np.random.default_rng(0)
    for labels in (rng.integers(0, 3, (5, 6, 7)), np.pad(np.ones((2, 2, 2), int), 3) * 2):
        places = np.argwhere(np.ones(labels.shape, bool)) * np.array(SPACING)
        other = labels.ravel()[:, None] != labels.ravel()[None]
        wanted = np.where(other, cdist(places, places), np.inf).min(1).clip(max=40)
        np.testing.assert_allclose(surface_distance(labels, SPACING).ravel(), wanted)
    assert (surface_distance(np.zeros((4, 4), int), (1.0, 1.0)) == 40).all()
    line = np.zeros(100, int)
    line[0] = 1
    np.testing.assert_allclose(surface_distance(line, (1.0,))[0, [0, 1, 30, 99]], [1, 1, 30, 40])


def test_distance_recovers_its_parameters() -> None:
    a, b = np.array([0.2, 0.5, -0.3]), np.array([0.8, -0.4, 0.6])
    cases = [spoiled(smooth_case(seed), a, b, 2.0) for seed in range(24)]
    found = DistanceScaling().fit(cases)
    params = found.params()
    assert params["scale_mm"] == 2.0
    np.testing.assert_allclose(params["a"], a, atol=0.12)
    np.testing.assert_allclose(params["b"], b, atol=0.25)
    assert found.report is not None
    assert found.report.converged
    # One temperature cannot.
    alone = TemperatureScaling().fit(cases)
    assert alone.report is not None
    assert found.report.nll_after < alone.report.nll_after - 0.005
    assert found.report.nll_after == pytest.approx(
        np.mean([nll(smooth_case(s).logits, smooth_case(s).target) for s in range(24)]), abs=2e-3
    )


@pytest.mark.parametrize("band_mm", [0.0, 3.0])
def test_distance_is_the_optimum_of_scipy(band_mm: float) -> None:
    """Over all voxels, and with a band whose relative NLL counts as much."""
    case = spoiled(smooth_case(3), [0.3, 0.1, 0.6], [0.5, 0.5, -0.2], 4.0)
    found = DistanceScaling(scales_mm=(4.0,), penalty=0.0, band_mm=band_mm).fit([case])
    label = case.logits.argmax(0)
    distance = surface_distance(label, SPACING)[0]
    close, band = np.exp(-distance / 4.0), distance <= band_mm
    plain = nll(case.logits, case.target)

    def objective(theta: np.ndarray) -> float:
        new = case.logits * np.exp(-theta[:3][label] - theta[3:][label] * close)
        total = nll(new, case.target) / plain
        if band_mm:
            parts = (x[:, band] for x in (new, case.logits))
            total += np.divide(*(nll(part, case.target[band]) for part in parts))
        return total

    starts = np.random.default_rng(0).normal(size=(4, 6)) * 0.7
    best = min((minimize(objective, s, method="BFGS", tol=1e-9) for s in starts),
               key=lambda r: r.fun)  # fmt: skip
    theta = np.array([*found.params()["a"], *found.params()["b"]])
    assert objective(theta) == pytest.approx(best.fun, abs=1e-7)
    np.testing.assert_allclose(theta, best.x, atol=3e-3)
    assert found.report is not None
    assert found.report.nll_before == pytest.approx(plain, abs=1e-10)
    after = found.transform(case.logits, spacing_mm=SPACING)
    assert found.report.nll_after == pytest.approx(nll(np.log(after), case.target), abs=1e-8)


def test_limits_of_distance() -> None:
    """b = 0 is a temperature per predicted class; a = b = 0 changes nothing."""
    case = smooth_case(1)
    found = DistanceScaling().fit([case])
    found.set_params({"scale_mm": 2.0, "a": [0.0] * 3, "b": [0.0] * 3})
    same = found.transform(case.logits, spacing_mm=SPACING)
    np.testing.assert_allclose(same, softmax(case.logits), atol=1e-12)
    temperatures = np.array([2.0, 0.5, 1.5])
    found.set_params({"scale_mm": 2.0, "a": np.log(temperatures).tolist(), "b": [0.0] * 3})
    wanted = softmax(case.logits / temperatures[case.logits.argmax(0)])
    for spacing in (SPACING, 7.0):
        out = found.transform(case.logits, spacing_mm=spacing)
        np.testing.assert_allclose(out, wanted, atol=1e-12)
    found.set_params({"scale_mm": 2.0, "a": [0.0] * 3, "b": [1.0] * 3})
    near, far = (found.transform(case.logits, spacing_mm=s).max(0).mean() for s in (0.5, 7.0))
    assert near < far


def with_errors(case: HeldOut, rate: float, seed: int) -> HeldOut:
    """The case with a share of its labels wrong, whatever the logits are."""
    wrong = np.random.default_rng(seed).random(case.target.shape) < rate
    other = (case.logits.argmax(0) + 1) % 3
    return HeldOut(case.logits, np.where(wrong, other, case.target), spacing_mm=SPACING)


def test_mixture_finds_the_rate_of_errors(tmp_path: Any) -> None:
    cases = [with_errors(smooth_case(seed), 0.04, seed) for seed in range(12)]
    found, plain = MixtureScaling().fit(cases), DistanceScaling().fit(cases)
    assert found.report is not None
    assert plain.report is not None
    assert found.report.converged
    assert found.report.nll_after < plain.report.nll_after - 0.005
    # Wherever the network is certain of class 0, it is right in 96 %.
    certain = np.tile(np.array([60.0, 0, 0])[:, None], 10)
    assert found.transform(certain, spacing_mm=1.0)[0] == pytest.approx(0.96, abs=0.015)
    assert plain.transform(certain, spacing_mm=1.0)[0].min() > 0.99
    for case in cases:
        after = found.transform(case.logits, spacing_mm=SPACING)
        assert (after.argmax(0) == case.logits.argmax(0)).all()
    found.save(tmp_path / "mixture.json")
    loaded = load_calibrator(tmp_path / "mixture.json")
    np.testing.assert_array_equal(loaded.transform(certain, spacing_mm=1.0),
                                  found.transform(certain, spacing_mm=1.0))  # fmt: skip


@pytest.mark.parametrize("classes", [2, 3])
def test_rate_of_mixture_in_a_file(classes: int, tmp_path: Any) -> None:
    """Log-odds c + e · exp(−d/δ): with c = log(0.04/0.96) and e = 0 it is 4 % everywhere."""
    case = smooth_case(1)
    target = np.minimum(case.target, classes - 1)
    found = MixtureScaling().fit([HeldOut(case.logits[:classes], target, spacing_mm=SPACING)])
    rate = {"a": 0.0, "b": 0.0, "c": float(np.log(0.04 / 0.96)), "e": 0.0}
    found.set_params({**found.params(), **rate})
    found.save(tmp_path / "m.json")
    loaded = load_calibrator(tmp_path / "m.json")
    assert loaded.params()["errors"] == found.params()["errors"]
    assert loaded.params()["c"] == pytest.approx(rate["c"])
    certain = np.zeros((classes, 5))
    certain[1] = 60
    probs = loaded.transform(certain, spacing_mm=1.0)
    assert probs[1] == pytest.approx(0.96 + 0.04 / 2)
    assert probs.sum(0) == pytest.approx(1)


def test_mixture_shares_its_rate_between_classes() -> None:
    """Errors of one predicted class only: the fitted rate is between those of the classes."""
    cases = []
    for seed in range(12):
        case = smooth_case(seed)
        wrong = np.random.default_rng(seed).random(case.target.shape) < 0.04
        target = np.where(wrong & (case.logits.argmax(0) == 0), 2, case.target)
        cases.append(HeldOut(case.logits, target, spacing_mm=SPACING))
    found = MixtureScaling().fit(cases)
    certain = np.full((3, 2), -60.0)
    certain[0, 0] = certain[1, 1] = 0
    assert (found.transform(certain, spacing_mm=1.0).max(0) > 0.96).all()
    assert (found.transform(certain, spacing_mm=1.0).max(0) < 0.999).all()


def test_mixture_without_errors_is_distance() -> None:
    """The rate of a calibrated network is nearly 0, and 0 gives the map of `distance`."""
    cases = [spoiled(smooth_case(seed), [0.4] * 3, [0.6] * 3, 2.0) for seed in range(12)]
    found, plain = MixtureScaling().fit(cases), DistanceScaling().fit(cases)
    assert found.params()["a"] == pytest.approx(0.4, abs=0.1)
    assert found.params()["b"] == pytest.approx(0.6, abs=0.2)
    assert found.report is not None
    assert plain.report is not None
    assert abs(found.report.nll_after - plain.report.nll_after) < 1e-3
    shared = {"scale_mm": 2.0, "a": 0.4, "b": 0.6}
    found.set_params({**found.params(), **shared, "c": -40.0, "e": 0.0})
    plain.set_params({"scale_mm": 2.0, "a": [0.4] * 3, "b": [0.6] * 3})
    with pytest.raises(ValueError, match="largest on the diagonal"):
        found.set_params({**found.params(), "errors": np.roll(found.params()["errors"], 1, 0)})
    logits = cases[0].logits
    np.testing.assert_allclose(
        found.transform(logits, spacing_mm=SPACING), plain.transform(logits, spacing_mm=SPACING)
    )


def test_derivatives_of_mixture() -> None:
    rng = np.random.default_rng(0)
    case = smooth_case(2)
    found = MixtureScaling().fit([case])
    rows = rng.normal(size=(3, 200)) * 3
    rows = np.concatenate([rows, rng.uniform(1, 20, (1, 200))])
    labels, weights, theta = rng.integers(0, 3, 200), rng.random(200), rng.normal(size=4) * 0.3
    _, gradient, hessian = found._block(theta, rows, labels, weights)
    for i, step in enumerate(np.eye(4) * 1e-6):
        up, down = (found._block(theta + s, rows, labels, weights) for s in (step, -step))
        assert gradient[i] == pytest.approx((up[0] - down[0]) / 2e-6, abs=1e-5)
        np.testing.assert_allclose(hessian[i], (up[1] - down[1]) / 2e-6, atol=1e-5)


def test_distance_needs_a_voxel_size_and_single_images(tmp_path: Any) -> None:
    case = spoiled(smooth_case(2), [0.5] * 3, [0.5] * 3, 1.0)
    with pytest.raises(ValueError, match="`spacing_mm` to be the voxel size"):
        DistanceScaling().fit([(case.logits, case.target)])
    found = DistanceScaling().fit([case])
    with pytest.raises(ValueError, match="`spacing_mm` to be the voxel size"):
        found.transform(case.logits)
    out = found.transform(case.logits, spacing_mm=SPACING)
    batch = torch.tensor(np.stack([case.logits, case.logits[:, ::-1].copy()]))
    both = found.transform(batch, class_axis=1, spacing_mm=SPACING)
    np.testing.assert_allclose(both[0], out, atol=1e-12)
    np.testing.assert_allclose(both[1].flip(1), out, atol=1e-12)
    # A sample, all voxels read again in every pass, and probabilities find the same.
    again = DistanceScaling().fit([case], max_voxels=None)
    probs = HeldOut(softmax(case.logits), case.target, spacing_mm=SPACING)
    third = DistanceScaling().fit([probs], from_probs=True)
    for other in (again, third):
        np.testing.assert_allclose(other.params()["b"], found.params()["b"], atol=1e-5)
    few = DistanceScaling().fit([case], max_voxels=1500)
    assert few.report is not None
    assert few.report.used <= 1500
    assert few.params()["a"] != found.params()["a"]
    found.save(tmp_path / "distance.json")
    loaded = load_calibrator(tmp_path / "distance.json")
    np.testing.assert_array_equal(loaded.transform(case.logits, spacing_mm=SPACING), out)


def test_every_option_of_distance_changes_the_result() -> None:
    case = spoiled(smooth_case(4), [0.9, 0.4, 0.2], [1.0, 0.5, 0.5], 2.0)
    plain = DistanceScaling().fit([case]).params()
    for options in (
        {"scales_mm": (8.0,)},
        {"bounds": (0.9, 1.2)},
        {"penalty": 1.0},
        {"band_mm": 0.0},
    ):
        assert DistanceScaling(**options).fit([case]).params() != plain
    assert max(DistanceScaling(bounds=(0.9, 1.2)).fit([case]).params()["a"]) <= np.log(1.2) + 1e-9
    # A mask, and another voxel size, change it as well.
    mask = surface_distance(case.logits.argmax(0), SPACING)[0] <= 3
    masked = HeldOut(case.logits, case.target, mask, SPACING)
    wide = HeldOut(case.logits, case.target, spacing_mm=3.0)
    assert DistanceScaling().fit([masked]).params() != plain
    assert DistanceScaling().fit([wide]).params() != plain


def test_class_affine_is_the_optimum_of_scipy_and_keeps_labels() -> None:
    logits, target = calibrated((4000,), seed=5)
    mixed = np.array([[1.6, 0, 0], [0, 2.0, 0], [0.3, 0, 1.0]]) @ logits - [[0], [0.7], [0.0]]
    found = ClassAffineScaling(bias_penalty=0.0).fit([(mixed, target)])
    out = found.transform(mixed)
    np.testing.assert_array_equal(out.argmax(0), mixed.argmax(0))
    assert found.report is not None
    assert found.report.nll_after < found.report.nll_before
    total = 0.0
    for k in range(3):
        own = mixed.argmax(0) == k
        odds = (mixed - mixed.max(0))[:, own]
        others = [j for j in range(3) if j != k]

        def objective(theta: np.ndarray, odds: Any = odds, others: Any = others, own: Any = own):
            new = odds.copy()
            new[others] = odds[others] * theta[:2, None] - theta[2:, None]
            return nll(new, target[own])

        best = minimize(objective, [1, 1, 0.1, 0.1], bounds=[(0.01, 100)] * 2 + [(0, 50)] * 2,
                        tol=1e-12)  # fmt: skip
        total += best.fun * own.sum()
    assert found.report.nll_after == pytest.approx(total / 4000, abs=1e-6)
    for options in ({"bounds": (0.9, 1.1)}, {"max_bias": 0.01}, {"bias_penalty": 1.0}):
        assert ClassAffineScaling(**options).fit([(mixed, target)]).params() != found.params()


def test_class_affine_of_one_slope_is_a_temperature() -> None:
    logits, target = calibrated((500,), seed=6)
    found = ClassAffineScaling().fit([(logits, target)])
    found.set_params({"alpha": [[0.5] * 3] * 3, "beta": [[0.0] * 3] * 3})
    np.testing.assert_allclose(found.transform(logits), softmax(logits / 2), atol=1e-12)
    found.set_params({"alpha": [[1.0] * 3] * 3, "beta": [[0.0] * 3] * 3})
    np.testing.assert_allclose(found.transform(logits), softmax(logits), atol=1e-12)
    # A class that is never predicted is left as it is.
    never = logits.copy()
    never[2] -= 50
    alpha = ClassAffineScaling().fit([(never, target.clip(max=1))]).params()["alpha"]
    assert alpha[2] == [1.0] * 3


@pytest.mark.parametrize("loss", ["ls", "nacl"])
def test_inverse_undoes_the_flat_optimum_of_the_loss(loss: str) -> None:
    """In a flat image of one class the optimum of the loss is found by torch, and inverted."""
    k, strength = 4, 0.1
    options = {"alpha" if loss == "ls" else "penalty_weight": strength}
    criterion = make_loss(loss, **options)
    # One free number: the logit of the true class against the others.
    grid = torch.linspace(0.0, 12.0, 4801, dtype=torch.float64)
    target = torch.ones((1, 5, 5), dtype=torch.long)
    values = []
    for logit in grid:
        logits = torch.zeros((1, k, 5, 5), dtype=torch.float64)
        logits[:, 1] = logit
        values.append(float(criterion(logits, target)))
    top = float(grid[int(np.argmin(values))])
    probs = softmax(np.array([0.0, top, 0.0, 0.0]))[:, None]
    key = {"alpha": strength} if loss == "ls" else {"nacl": strength}
    out = InverseSmoothing(**key, num_classes=k).transform(probs, from_probs=True)
    assert out[1, 0] > 0.998
    assert probs[1, 0] < 0.98


def test_inverse_by_hand_and_its_options() -> None:
    truth = softmax(np.random.default_rng(0).normal(size=(4, 300)) * 2)
    smooth = 0.8 * truth + 0.2 / 4
    exact = InverseSmoothing(alpha=0.2, num_classes=4).transform(smooth, from_probs=True)
    np.testing.assert_allclose(exact, truth, atol=4e-4)
    small = InverseSmoothing(alpha=0.2, floor=1e-9, num_classes=4)
    np.testing.assert_allclose(small.transform(smooth, from_probs=True), truth, atol=1e-9)
    # λ = 0.6 of NACL is α = 0.2 for four classes.
    nacl = InverseSmoothing(nacl=0.6, num_classes=4).transform(smooth, from_probs=True)
    np.testing.assert_allclose(nacl, exact, atol=1e-12)
    fitted = InverseSmoothing(alpha=0.2).fit([(smooth, truth.argmax(0))], from_probs=True)
    np.testing.assert_array_equal(fitted.transform(smooth, from_probs=True), exact)
    rough = softmax(np.random.default_rng(1).normal(size=(4, 300)))
    kept = fitted.transform(rough, from_probs=True)
    np.testing.assert_array_equal(kept.argmax(0), rough.argmax(0))
    for wrong in ({}, {"alpha": 0.1, "nacl": 0.1}):
        with pytest.raises(ValueError, match="one of the arguments `alpha`"):
            InverseSmoothing(**wrong)
    with pytest.raises(ValueError, match="below 1"):
        InverseSmoothing(alpha=1.0).fit([(smooth, truth.argmax(0))], from_probs=True)


@pytest.mark.parametrize("method", ["vector", "dirichlet", "matrix"])
def test_variants_keep_every_label_and_change_no_other_voxel(method: str) -> None:
    logits, target = calibrated((20_000,), seed=7)
    logits = logits + np.array([[0.0], [0.8], [0.0]])
    free = make_calibrator(method).fit([(logits, target)])
    kept = make_calibrator(method, keep_argmax=True).fit([(logits, target)])
    assert (free.keeps_argmax, kept.keeps_argmax) == (False, True)
    assert free.params() == kept.params()
    moved = free.transform(logits).argmax(0) != logits.argmax(0)
    assert 0.01 < moved.mean() < 0.5
    out = kept.transform(logits)
    np.testing.assert_array_equal(out.argmax(0), logits.argmax(0))
    np.testing.assert_array_equal(out[:, ~moved], free.transform(logits)[:, ~moved])
    assert kept.report is not None
    assert free.report is not None
    assert free.report.nll_after < kept.report.nll_after < kept.report.nll_before
