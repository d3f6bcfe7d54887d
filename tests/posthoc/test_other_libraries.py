"""The same optimum as other libraries, and the differences."""

import numpy as np
import pytest
from scipy.optimize import minimize

from helpers.posthoc_samples import calibrated, softmax
from segcal.posthoc import DirichletScaling, TemperatureScaling, VectorScaling


def nll(probs: np.ndarray, target: np.ndarray) -> float:
    return float(-np.log(probs[target, np.arange(len(target))]).mean())


@pytest.mark.parametrize("factor", [0.5, 2.5])
def test_temperature_of_two_classes_equals_netcal(factor: float) -> None:
    """netcal scales the log-odds of two classes, which equals dividing both logits by T."""
    from netcal.scaling import TemperatureScaling as Netcal

    logits, target = calibrated((20_000,), num_classes=2, seed=1, spread=1.5)
    probs = softmax(logits * factor)
    ours = TemperatureScaling().fit([(probs, target)], from_probs=True)
    other = Netcal()
    other.fit(probs[1], target)
    theirs = other.transform(probs[1])
    np.testing.assert_allclose(ours.transform(probs, from_probs=True)[1], theirs, atol=1e-3)


def test_temperature_of_many_classes_is_at_least_as_good_as_netcal() -> None:
    """Both minimize a convex function of one number; netcal stops at scipy's default tolerance,
    Newton's method at rounding. No probability is small enough to be clipped."""
    from netcal.scaling import TemperatureScaling as Netcal

    logits, target = calibrated((20_000,), num_classes=4, seed=2, spread=1.0)
    probs = softmax(logits * 2)
    assert probs.min() > 1e-7
    ours = TemperatureScaling().fit([(probs, target)], from_probs=True)
    other = Netcal()
    other.fit(probs.T, target)
    theirs = other.transform(probs.T).T
    mine = ours.transform(probs, from_probs=True)
    assert nll(mine, target) <= nll(theirs, target) + 1e-9
    assert nll(mine, target) == pytest.approx(nll(theirs, target), abs=1e-5)
    np.testing.assert_allclose(mine, theirs, atol=2e-3)


def test_unpenalized_matrix_equals_logistic_regression() -> None:
    """Dirichlet calibration is multinomial logistic regression on log-probabilities; scikit-learn
    finds the same probabilities without a penalty."""
    from sklearn.linear_model import LogisticRegression

    logits, target = calibrated((8000,), seed=3)
    mixed = np.array([[1, 0.4, 0], [0, 2, 0], [0.3, 0, 1]]) @ logits
    log_probs = np.log(softmax(mixed))
    ours = DirichletScaling(odir=0, bias_penalty=0).fit([(mixed, target)])
    theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000).fit(log_probs.T, target)
    np.testing.assert_allclose(
        ours.transform(mixed), theirs.predict_proba(log_probs.T).T, atol=1e-4
    )


def test_penalized_optimum_equals_scipy() -> None:
    """The ODIR objective, minimized by scipy's BFGS without derivatives."""
    logits, target = calibrated((1500,), seed=4)
    rows = np.log(softmax(np.array([[1, 0.4, 0], [0, 2, 0], [0.3, 0, 1]]) @ logits))
    odir, bias_penalty = 0.05, 0.02

    def objective(theta: np.ndarray) -> float:
        weight, bias = theta[:9].reshape(3, 3), theta[9:]
        off = (weight**2).sum() - (np.diag(weight) ** 2).sum()
        fit = nll(softmax(weight @ rows + bias[:, None]), target)
        return fit + odir * off / 6 + bias_penalty * (bias**2).sum() / 3

    start = np.concatenate([np.eye(3).ravel(), np.zeros(3)])
    best = minimize(objective, start, method="BFGS", options={"gtol": 1e-7, "maxiter": 2000})
    ours = DirichletScaling(odir=odir, bias_penalty=bias_penalty).fit([(rows, target)]).params()
    found = np.concatenate([np.ravel(ours["weight"]), ours["bias"]])
    np.testing.assert_allclose(found, best.x, atol=2e-4)
    assert objective(found) <= best.fun + 1e-9


def test_vector_optimum_equals_scipy() -> None:
    logits, target = calibrated((1500,), seed=5)
    rows = np.log(softmax(logits * np.array([[2.0], [1.0], [0.5]])))

    def objective(theta: np.ndarray) -> float:
        scaled = rows * theta[:3, None] + theta[3:, None]
        return nll(softmax(scaled), target) + 0.01 * (theta[3:] ** 2).sum() / 3

    best = minimize(objective, np.array([1.0, 1, 1, 0, 0, 0]), method="BFGS")
    ours = VectorScaling(bias_penalty=0.01).fit([(rows, target)]).params()
    np.testing.assert_allclose(np.concatenate([ours["scale"], ours["bias"]]), best.x, atol=5e-4)


@pytest.mark.parametrize("method", [TemperatureScaling, VectorScaling, DirichletScaling])
def test_derivatives_are_those_of_the_value(method: type) -> None:
    """Gradient and Hessian against finite differences at a random point."""
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(3, 40)), rng.integers(0, 3, 40)
    weights = rng.random(40)

    class Data:
        num_classes, cases, counts = 3, 1, np.bincount(labels, minlength=3)

        def blocks(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
            return [(rows, labels, weights)]

    model = method()
    start = model._parameters(3).identity
    theta = start + rng.normal(size=len(start)) * 0.2
    _, gradient, hessian = model._mean(theta, Data())
    for i in range(len(theta)):
        step = np.zeros(len(theta))
        step[i] = 1e-5
        high, low = (model._mean(theta + s * step, Data()) for s in (1, -1))
        assert gradient[i] == pytest.approx((high[0] - low[0]) / 2e-5, abs=1e-6)
        np.testing.assert_allclose(hessian[i], (high[1] - low[1]) / 2e-5, atol=1e-5)
