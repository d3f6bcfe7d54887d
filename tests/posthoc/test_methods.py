"""Temperature, vector, Dirichlet and matrix scaling: optima, limits, input and output."""

import numpy as np
import pytest
import torch

from helpers.posthoc_samples import calibrated, exactly_calibrated, softmax
from segcal.posthoc import (
    DirichletScaling,
    HeldOut,
    MatrixScaling,
    TemperatureScaling,
    VectorScaling,
    make_calibrator,
    to_probs,
)

LINEAR = ["temperature", "vector", "dirichlet", "matrix"]


@pytest.mark.parametrize("factor", [0.4, 1.0, 1.7, 3.0])
def test_a_known_temperature_is_recovered(factor: float) -> None:
    logits, target = exactly_calibrated()
    found = TemperatureScaling().fit([(logits * factor, target)])
    assert found.temperature == pytest.approx(factor, abs=1e-3)
    assert found.report is not None
    assert found.report.converged
    assert not found.report.at_bound


@pytest.mark.parametrize("max_voxels", [1_000_000, None])
def test_from_probabilities_as_from_logits(max_voxels: int | None) -> None:
    logits, target = exactly_calibrated(rows=200)
    logits = logits * 1.7
    one = TemperatureScaling().fit([(logits, target)], max_voxels=max_voxels)
    two = TemperatureScaling().fit(
        [(softmax(logits), target)], from_probs=True, max_voxels=max_voxels
    )
    assert two.temperature == pytest.approx(one.temperature, abs=1e-9)
    np.testing.assert_allclose(
        two.transform(softmax(logits), from_probs=True), one.transform(logits), atol=1e-9
    )


def test_half_precision_probabilities_with_zeros() -> None:
    logits, target = exactly_calibrated(rows=200)
    probs = softmax(logits * 4).astype(np.float16)
    assert (probs == 0).any()
    found = TemperatureScaling().fit([(probs, target)], from_probs=True)
    # Probabilities below the smallest float16 are clipped to it, so T is slightly too small.
    assert found.temperature == pytest.approx(4.0, abs=0.15)
    out = found.transform(probs, from_probs=True)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out.sum(0), 1, atol=1e-6)


@pytest.mark.parametrize("method", LINEAR)
def test_streaming_all_voxels_equals_keeping_all(method: str) -> None:
    cases = [calibrated((20, 25), seed=seed) for seed in range(3)]
    kept = make_calibrator(method).fit(cases)
    streamed = make_calibrator(method).fit(cases, max_voxels=None)
    assert kept.report is not None
    assert kept.report.used == 1500
    np.testing.assert_allclose(kept._theta, streamed._theta, atol=1e-7)  # type: ignore[attr-defined]


def test_vector_scaling_finds_scales_and_biases() -> None:
    logits, target = calibrated((200_000,), seed=1)
    log_probs = np.log(softmax(logits))
    scale, bias = np.array([0.5, 1.0, 2.0]), np.array([0.3, 0.0, -0.3])
    # Log-probabilities that are calibrated once scaled and shifted. The constant that makes them
    # sum to 1 is found by iteration.
    wrong = log_probs.copy()
    for _ in range(60):
        wrong = (log_probs - bias[:, None]) / scale[:, None]
        off = np.log(np.exp(wrong).sum(0))
        log_probs = log_probs - 0.5 * off
    found = VectorScaling().fit([(wrong, target)]).params()
    np.testing.assert_allclose(found["scale"], scale, atol=0.05)
    np.testing.assert_allclose(np.diff(found["bias"]), np.diff(bias), atol=0.05)


def test_dirichlet_corrects_a_confusion_that_temperature_cannot() -> None:
    logits, target = calibrated((100_000,), seed=2)
    mixed = np.array([[1, 0.5, 0], [0, 1, 0], [0.2, 0, 1.5]]) @ np.log(softmax(logits))
    nll = {}
    for method in ("temperature", "vector", "dirichlet"):
        report = make_calibrator(method).fit([(mixed, target)]).report
        assert report is not None
        nll[method] = report.nll_after
    truth = -np.log(softmax(logits)[target, np.arange(len(target))]).mean()
    assert nll["dirichlet"] < nll["vector"] - 1e-3 < nll["temperature"]
    assert nll["dirichlet"] == pytest.approx(truth, abs=2e-3)


def test_dirichlet_options_change_the_result() -> None:
    logits, target = calibrated((5000,), seed=3)
    mixed = np.array([[1, 0.5, 0], [0, 1, 0], [0.2, 0, 1.5]]) @ logits + np.array([[1], [0], [0]])
    case = [(mixed, target)]

    def off_diagonal(**options: float) -> float:
        weight = np.array(DirichletScaling(**options).fit(case).params()["weight"])
        return float(np.abs(weight - np.diag(np.diag(weight))).max())

    def offset(**options: float) -> float:
        return float(np.abs(DirichletScaling(**options).fit(case).params()["bias"]).max())

    assert off_diagonal(odir=1e3) < 1e-3 < off_diagonal(odir=1e-4)
    assert offset(bias_penalty=1e3) < 1e-3 < offset(bias_penalty=1e-4)
    assert offset(max_bias=0.1, bias_penalty=0) == pytest.approx(0.1)
    tight = DirichletScaling(max_weight=1.0).fit([(logits * 0.3, target)])
    assert tight.report is not None
    assert "weight of class 0's own score" in tight.report.at_bound


def test_vector_options_change_the_result() -> None:
    logits, target = calibrated((5000,), seed=3)
    case = [(logits * 2 + np.array([[1.0], [0], [0]]), target)]
    free = VectorScaling().fit(case).params()
    assert min(VectorScaling(bounds=(0.8, 2)).fit(case).params()["scale"]) >= 0.8
    assert np.ptp(free["bias"]) > np.ptp(VectorScaling(bias_penalty=1e3).fit(case).params()["bias"])
    assert max(map(abs, VectorScaling(max_bias=0.1).fit(case).params()["bias"])) <= 0.1


def test_matrix_depends_on_the_constant_that_dirichlet_ignores() -> None:
    logits, target = calibrated((2000,), seed=4)
    moved = logits + np.random.default_rng(0).normal(size=2000) * 3
    np.testing.assert_allclose(
        DirichletScaling().fit([(moved, target)])._theta,
        DirichletScaling().fit([(logits, target)])._theta,
        atol=1e-8,
    )
    one, two = (MatrixScaling().fit([(x, target)])._theta for x in (moved, logits))
    assert np.abs(one - two).max() > 1e-3


# No optimum: the parameters stay finite


def _right(margin: float) -> tuple[np.ndarray, np.ndarray]:
    target = np.random.default_rng(0).integers(0, 3, 3000)
    return margin * np.eye(3)[target].T + 0.01 * np.arange(3000) / 3000, target


@pytest.mark.parametrize("method", LINEAR)
@pytest.mark.parametrize("balance", ["none", "class"])
@pytest.mark.parametrize("kind", ["right", "wrong", "one class", "one class wrong"])
def test_parameters_stay_finite(method: str, balance: str, kind: str) -> None:
    logits, target = _right(2.0)
    if kind == "wrong":
        target = (target + 1) % 3
    if kind.startswith("one class"):
        logits, target = _right(2.0)
        logits, target = logits[:, target == 0], target[target == 0]
        target = target + (kind == "one class wrong")
    found = make_calibrator(method).fit([(logits, target)], balance=balance)
    assert found.report is not None
    assert found.report.converged
    assert found.report.nll_after <= found.report.nll_before + 1e-12
    theta = found._theta  # type: ignore[attr-defined]
    assert np.isfinite(theta).all()
    assert np.abs(theta).max() <= 100
    probs = found.transform(logits)
    assert np.isfinite(probs).all()
    np.testing.assert_allclose(probs.sum(0), 1, atol=1e-9)


def test_a_limit_that_was_reached_is_reported() -> None:
    logits, target = _right(2.0)
    sure = TemperatureScaling(bounds=(0.2, 5)).fit([(logits, target)])
    assert sure.temperature == pytest.approx(0.2)
    wrong = TemperatureScaling(bounds=(0.2, 5)).fit([(logits, (target + 1) % 3)])
    assert wrong.temperature == pytest.approx(5)
    for found in (sure, wrong):
        assert found.report is not None
        assert found.report.at_bound == ["temperature"]


def test_a_confident_and_correct_network_is_not_changed() -> None:
    logits, target = _right(800.0)  # exp(-800) is 0 in float64
    found = TemperatureScaling().fit([(logits, target)])
    assert found.temperature == pytest.approx(1.0)


def test_a_case_without_voxels_has_no_effect() -> None:
    logits, target = calibrated((40, 40), seed=5)
    empty = HeldOut(logits * 9, np.zeros((40, 40), int), np.zeros((40, 40), bool))
    alone = TemperatureScaling().fit([(logits, target, target != 0)])
    both = TemperatureScaling().fit([empty, (logits, target, target != 0)])
    assert both.temperature == pytest.approx(alone.temperature, rel=1e-9)
    with pytest.raises(ValueError, match="empty in all 2 cases"):
        TemperatureScaling().fit([empty, empty])


# Output


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("factor", [0.02, 1.0, 60.0])
def test_temperature_keeps_every_label(dtype: type, factor: float) -> None:
    logits, target = calibrated((30_000,), num_classes=5, seed=6)
    found = TemperatureScaling().fit([(logits * factor, target)])
    # Pairs so close that dividing them makes them equal in the dtype.
    source = (logits * factor).astype(dtype)
    source[4, :1000] = np.nextafter(source[:4, :1000].max(0), dtype(1e9))
    out = found.transform(source)
    assert out.dtype == dtype
    np.testing.assert_array_equal(out.argmax(0), source.argmax(0))
    assert found.keeps_argmax


def test_transform_of_batches_and_tensors() -> None:
    logits, target = calibrated((2, 6, 7), seed=7)
    found = VectorScaling().fit([(logits, target)])
    plain = found.transform(logits)
    batch = torch.from_numpy(np.moveaxis(logits, 0, 1)).float()
    out = found.transform(batch, class_axis=1)
    assert isinstance(out, torch.Tensor)
    assert out.dtype == torch.float32
    np.testing.assert_allclose(np.moveaxis(out.numpy(), 1, 0), plain, atol=1e-6)
    half = found.transform(batch.bfloat16(), class_axis=1)
    assert half.dtype == torch.float32


def test_transform_is_block_by_block_and_does_not_touch_its_input() -> None:
    logits, target = calibrated((70, 70, 30), seed=8)
    found = DirichletScaling().fit([(logits, target)])
    before = logits.copy()
    whole = found.transform(logits)
    np.testing.assert_array_equal(logits, before)
    np.testing.assert_allclose(whole[:, 33:35], found.transform(logits[:, 33:35]), atol=1e-12)
    turned = found.transform(logits.transpose(0, 3, 2, 1))  # Fortran order
    np.testing.assert_allclose(turned.transpose(0, 3, 2, 1), whole, atol=1e-12)


# Invalid input


def test_invalid_input_is_named() -> None:
    logits, target = calibrated((10, 10))
    fit = TemperatureScaling().fit
    with pytest.raises(ValueError, match=r"\(K, \*S\) .* but got \(3, 10, 10\) and \(10, 9\)"):
        fit([(logits, target[:, :9])])
    with pytest.raises(ValueError, match="look like probabilities"):
        fit([(softmax(logits), target)])
    with pytest.raises(ValueError, match="divide them by 100"):
        fit([(100 * softmax(logits), target)], from_probs=True)
    with pytest.raises(ValueError, match="look like logits"):
        fit([(logits, target)], from_probs=True)
    with pytest.raises(ValueError, match="sigmoid"):
        fit([(1 / (1 + np.exp(-logits)), target)], from_probs=True)
    with pytest.raises(ValueError, match=r"labels 0 to 2 .* but got 7"):
        fit([(logits, np.where(target == 1, 7, target))])
    with pytest.raises(ValueError, match="3 classes in every case"):
        fit([(logits, target), (logits[:2], np.minimum(target, 1))])
    with pytest.raises(ValueError, match="finite"):
        fit([(np.where(logits > 3, np.nan, logits), target)])
    with pytest.raises(ValueError, match="a case or more"):
        fit([])
    with pytest.raises(TypeError, match="integer labels"):
        fit([(logits, target.astype(float))])
    with pytest.raises(TypeError, match="more than once"):
        fit(iter([(logits, target)]), max_voxels=None)
    with pytest.raises(ValueError, match="'none', 'class'"):
        fit([(logits, target)], balance="classes")
    with pytest.raises(ValueError, match="method dirichlet"):
        MatrixScaling().fit([(softmax(logits), target)], from_probs=True)
    with pytest.raises(ValueError, match="call `fit`"):
        TemperatureScaling().transform(logits)
    with pytest.raises(ValueError, match="3 classes on axis 0"):
        fit([(logits, target)]).transform(logits[:2])
    with pytest.raises(ValueError, match="low ≤ 1"):
        TemperatureScaling(bounds=(2.0, 3.0))
    with pytest.raises(ValueError, match="Did you mean 'temperature'"):
        make_calibrator("temprature")


def test_ignored_voxels_are_skipped() -> None:
    logits, target = calibrated((40, 40), seed=9)
    partly_ignored = np.where(np.arange(40) < 20, 255, target)
    cut = TemperatureScaling().fit([(logits[..., 20:], target[:, 20:])])
    found = TemperatureScaling().fit([(logits, partly_ignored)], ignore_index=255)
    assert found.temperature == pytest.approx(cut.temperature, rel=1e-9)


def test_probabilities_given_as_logits_are_rejected() -> None:
    logits, target = calibrated((50, 60))
    probs = softmax(logits)
    scaling = TemperatureScaling().fit([(logits, target)])
    for use in (lambda: scaling.transform(probs), lambda: to_probs(probs)):
        with pytest.raises(ValueError, match="look like probabilities"):
            use()
    np.testing.assert_allclose(to_probs(logits), probs)


def test_parameters_that_are_too_large_are_rejected() -> None:
    logits, target = calibrated((50,))
    huge = VectorScaling().fit([(logits, target)])
    huge.set_params({"scale": [-1e308] * 3, "bias": [0.0] * 3})
    with pytest.raises(ValueError, match="VectorScaling does not give finite"):
        huge.transform(logits * 100)


@pytest.mark.parametrize("method", ["dirichlet", "matrix"])
def test_convergence_with_huge_logits(method: str) -> None:
    """Rounding makes the Hessian indefinite; the optimizer must not stop there."""
    logits, target = calibrated((2000,))
    small, large, larger, largest = (
        make_calibrator(method).fit([(logits * factor, target)]).report
        for factor in (1, 1e4, 1e5, 1e6)
    )
    assert small is not None
    assert large is not None
    assert large.converged
    assert large.nll_after < small.nll_after + 1e-3
    for report in (larger, largest):
        assert report is not None
        # Rounding may hide the distance to the optimum, then the fit is not reported as converged.
        assert not report.converged or report.nll_after == pytest.approx(large.nll_after, abs=1e-9)
    assert larger is not None
    assert larger.nll_after < small.nll_after + 1e-3
