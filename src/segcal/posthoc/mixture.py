"""Distance scaling, mixed with the errors that a network makes however confident it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import expit, logit

from segcal.posthoc._blocks import Floats, Ints, softmax
from segcal.posthoc._linear import Derivatives, Parameters, finite_array
from segcal.posthoc.distance import DistanceScaling, sums_by_class
from segcal.posthoc.sample import Voxels

_RATES = (1e-8, 0.5)  # the smallest, which stands for 0, and the largest
_START = 1e-3
# Of the error distribution, the share that is even over the other classes.
_EVEN = 0.01


class MixtureScaling(DistanceScaling):
    """(1 − ε) · softmax(l / T) + ε · q_k, with T as in `DistanceScaling`. Labels do not change.

    Some errors have nothing to do with the logits: a slice that the reader labeled differently, a
    structure that was overlooked. A temperature can allow for them only by making all voxels less
    confident. Here they have a rate of their own, ε with log-odds c_k + e_k · exp(−d/δ): k is the
    predicted class and d the distance to the predicted surface, as in T. q_k is ½ for class k and
    ½ for the other classes, divided as the errors of the held-out cases are: class k stays the
    largest.

    Args:
        scales_mm, bounds, penalty, band_mm: as in `DistanceScaling`, with fewer scales.
    """

    def __init__(
        self,
        scales_mm: Sequence[float] = (2.0, 8.0),
        bounds: Sequence[float] = (0.01, 100.0),
        penalty: float = 1e-6,
        band_mm: float = 3.0,
    ) -> None:
        super().__init__(scales_mm, bounds, penalty, band_mm)
        self._errors = np.empty((0, 0))

    def estimate(self, voxels: Voxels) -> None:
        """Count the errors, then fit."""
        self._errors = _error_distribution(voxels)
        super().estimate(voxels)
        assert self.report is not None
        self.report.at_bound = [n for n in self.report.at_bound if not n.startswith("rate")]

    def _parameters(self, num_classes: int) -> Parameters:
        """θ is (a, b, c − log-odds of the starting rate, e)."""
        found, k = super()._parameters(num_classes), num_classes
        low, high = (logit(rate) - logit(_START) for rate in _RATES)
        return Parameters(
            [*found.names, *(f"rate {name} of class {i}" for name in "ce" for i in range(k))],
            np.append(found.identity, np.zeros(2 * k)),
            np.append(found.lower, np.repeat([low, low], k)),
            np.append(found.upper, np.repeat([high, -low], k)),
            np.append(found.penalty, found.penalty),
        )

    def _rate(self, theta: Floats, label: Ints, close: Floats) -> Floats:
        far, near = theta.reshape(4, -1)[2:]
        return np.asarray(expit(far[label] + near[label] * close + logit(_START)))

    def _block(self, theta: Floats, rows: Floats, labels: Ints, weights: Floats) -> Derivatives:
        """`share` is the probability that a label comes from the network, not from its errors."""
        label, close, nll, first, second = self._scaled_nll(theta, rows, labels)
        rate = self._rate(theta, label, close)
        network = np.log1p(-rate) - nll
        total = np.logaddexp(network, np.log(rate * self._errors[label, labels]))
        share = np.exp(network - total)
        spread = share * (1 - share)
        slopes = weights * share * first, weights * (share - 1 + rate)
        cross = -weights * spread * first
        curves = (
            (weights * (share * second - spread * first**2), cross),
            (cross, weights * (rate * (1 - rate) - spread)),
        )
        return -float(weights @ total), *sums_by_class(
            label,
            len(rows) - 1,
            [slope * f for slope in slopes for f in (1, close)],
            [
                [values * f * g for values in row for g in (1, close)]
                for row in curves
                for f in (1, close)
            ],
        )

    def _logits(self, theta: Floats, rows: Floats) -> Floats:
        logits, label, close, inverse = self._split(theta, rows)
        rate = self._rate(theta, label, close)
        mixed = (1 - rate) * softmax(logits * inverse) + rate * self._errors[label].T
        return np.asarray(np.log(mixed))

    def params(self) -> dict[str, Any]:
        self.check_fitted()
        named = dict(zip("abce", self._theta.reshape(4, -1).tolist(), strict=True))
        return {"scale_mm": self._scale, **named, "errors": self._errors.tolist()}

    def set_params(self, params: dict[str, Any]) -> None:
        super().set_params(params)
        k = self.check_fitted()
        self._theta = np.append(
            self._theta, [finite_array(name, params.get(name), (k,)) for name in "ce"]
        )
        self._errors = finite_array("errors", params.get("errors"), (k, k))
        if (self._errors <= 0).any() or (self._errors.argmax(1) != np.arange(k)).any():
            raise ValueError("Expected `errors` above 0, and largest on the diagonal.")


def _error_distribution(voxels: Voxels) -> Floats:
    """(K, K): row k is q_k, the classes of the voxels that are called k: ½ for k itself."""
    k = voxels.num_classes
    counts = np.zeros((k, k))
    for rows, labels, weights in voxels.blocks():
        cell = rows[:k].argmax(0) * k + labels
        counts += np.bincount(cell, weights, k * k).reshape(k, k)
    np.fill_diagonal(counts, 0.0)
    total, others = counts.sum(1, keepdims=True), 1 - np.eye(k)
    even = others / (k - 1)
    wrong = np.divide(counts, total, out=even.copy(), where=total > 0)
    return np.asarray(0.5 * np.eye(k) + 0.5 * ((1 - _EVEN) * wrong + _EVEN * even))
