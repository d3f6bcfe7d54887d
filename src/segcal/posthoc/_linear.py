"""What calibrators that are linear in the logits share.

Their negative log-likelihood is convex, so Newton's method finds the optimum within the bounds in
a few passes over the voxels.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from segcal.core.checks import check_number
from segcal.posthoc._blocks import Floats, Ints
from segcal.posthoc._newton import minimize
from segcal.posthoc.calibrator import Calibrator
from segcal.posthoc.sample import Voxels

# Value, gradient and Hessian of a sum over voxels.
Derivatives = tuple[float, Floats, Floats]


class Parameters(NamedTuple):
    """The parameters θ of a calibrator: `identity` is the θ that changes nothing.

    `penalty` is the weight of each θ² in the objective.
    """

    names: list[str]
    identity: Floats
    lower: Floats
    upper: Floats
    penalty: Floats


class LinearCalibrator(Calibrator):
    """A calibrator with few parameters θ within bounds, fitted by Newton's method.

    `keep_argmax` is an option of the calibrators that may move the label: where the fitted map
    would, the logit of the predicted class is raised to the largest. The fit ignores this.
    """

    keep_argmax = False

    def __init__(self) -> None:
        super().__init__()
        self._theta: Floats = np.empty(0)

    @abstractmethod
    def _parameters(self, num_classes: int) -> Parameters:
        """What θ is for this number of classes."""

    @abstractmethod
    def _logits(self, theta: Floats, rows: Floats) -> Floats:
        """Calibrated logits (K, n) of rows (K, n)."""

    def _derivatives(
        self, rows: Floats, probs: Floats, residual: Floats, weights: Floats
    ) -> tuple[Floats, Floats]:
        """Gradient and Hessian; `residual` is probabilities minus one-hot labels, (K, n)."""
        raise NotImplementedError

    def estimate(self, voxels: Voxels) -> None:
        """Minimize the mean NLL plus the penalty."""
        assert self.report is not None
        names, start, lower, upper, penalty = self._parameters(voxels.num_classes)
        nll: dict[bytes, float] = {}  # without the penalty, at every θ

        def objective(theta: Floats) -> Derivatives:
            value, gradient, hessian = self._mean(theta, voxels)
            nll[theta.tobytes()] = value
            return (
                value + float(penalty @ theta**2),
                gradient + 2 * penalty * theta,
                hessian + np.diag(2 * penalty),
            )

        found = minimize(objective, start, lower, upper)
        self._theta = found.theta
        self.report.nll_before = nll[start.tobytes()]
        self.report.nll_after = nll[found.theta.tobytes()]
        self.report.iterations, self.report.converged = found.iterations, found.converged
        if self.keep_argmax:  # that is not the NLL of the fitted map
            self.report.nll_after = math.nan
        at_limit = np.flatnonzero((found.theta <= lower) | (found.theta >= upper))
        self.report.at_bound = [names[i] for i in at_limit]

    def _mean(self, theta: Floats, voxels: Voxels) -> Derivatives:
        """NLL, gradient and Hessian, averaged over the voxels with their weights."""
        value, total = 0.0, 0.0
        gradient, hessian = np.zeros(len(theta)), np.zeros((len(theta), len(theta)))
        for rows, labels, weights in voxels.blocks():
            part = self._block(theta, rows, labels, weights)
            value, gradient, hessian = value + part[0], gradient + part[1], hessian + part[2]
            total += float(weights.sum())
        return value / total, gradient / total, hessian / total

    def _block(self, theta: Floats, rows: Floats, labels: Ints, weights: Floats) -> Derivatives:
        """NLL, gradient and Hessian, summed over one block."""
        logits = self._logits(theta, rows)
        logits = logits - logits.max(0)
        e = np.exp(logits)
        total = e.sum(0)
        probs = e / total
        index = np.arange(len(labels))
        nll = np.log(total) - logits[labels, index]
        residual = probs.copy()
        residual[labels, index] -= 1
        gradient, hessian = self._derivatives(rows, probs, residual, weights)
        return float(weights @ nll), gradient, hessian

    def transform_rows(self, rows: Floats) -> Floats:
        """Calibrated logits (K, n) of rows (K, n)."""
        out = self._logits(self._theta, rows)
        if self.keep_argmax:
            label, index = rows.argmax(0), np.arange(rows.shape[1])
            out[label, index] = out.max(0)
        return out


def check_bounds(name: str, value: Sequence[float]) -> tuple[float, float]:
    """Two positive finite numbers around 1, the smaller first."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise TypeError(f"Expected argument `{name}` to be two numbers, but got {value!r}.")
    low, high = (check_number(name, v, low=0) for v in value)
    if not (1e-300 <= low <= 1 <= high):
        raise ValueError(
            f"Expected argument `{name}` to be (low, high) with 1e-300 ≤ low ≤ 1 ≤ high, "
            f"but got {tuple(value)}."
        )
    return low, high


def finite_array(name: str, value: object, shape: tuple[int, ...]) -> Floats:
    """Nested lists of finite numbers of this shape, as an array."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"Expected `{name}` to hold finite numbers of shape {shape}.")
    return array
