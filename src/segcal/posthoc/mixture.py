"""Distance scaling, mixed with the errors that a network makes however confident it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import expit, logit

from segcal.posthoc._blocks import Floats, Ints, softmax
from segcal.posthoc._linear import Derivatives, Parameters, finite_array
from segcal.posthoc.distance import DistanceScaling, sums_by_group
from segcal.posthoc.sample import Voxels

_RATES = (1e-8, 0.5)  # the smallest, which stands for 0, and the largest
_START = 1e-3
# Of the error distribution, the share that is even over the other classes.
_EVEN = 0.01


class MixtureScaling(DistanceScaling):
    """(1 − ε) · softmax(l / T) + ε · q_k with T = exp(a + b · exp(−d/δ)). Labels do not change.

    Some errors have nothing to do with the logits: a slice that the reader labeled differently, a
    structure that was overlooked. A temperature can allow for them only by making all voxels less
    confident. Here they have a rate of their own, ε with log-odds c + e · exp(−d/δ), where d is the
    distance to the predicted surface, as in T. All classes share a, b, c and e, which few patients
    determine better than one of each per class. q_k, for the predicted class k, is ½ for class k
    and ½ for the other classes, divided as the errors of the held-out cases are: class k stays the
    largest.

    Args:
        scales_mm, bounds, penalty, band_mm: as in `DistanceScaling`, with fewer scales.
    """

    _per_class = False

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
        found = super()._parameters(num_classes)
        low, high = (logit(rate) - logit(_START) for rate in _RATES)
        return Parameters(
            [*found.names, "rate c", "rate e"],
            np.append(found.identity, [0.0, 0.0]),
            np.append(found.lower, [low, low]),
            np.append(found.upper, [high, -low]),
            np.append(found.penalty, found.penalty),
        )

    def _rate(self, theta: Floats, close: Floats) -> Floats:
        return np.asarray(expit(theta[2] + theta[3] * close + logit(_START)))

    def _block(self, theta: Floats, rows: Floats, labels: Ints, weights: Floats) -> Derivatives:
        """`share` is the probability that a label comes from the network, not from its errors."""
        group, close, nll, first, second = self._scaled_nll(theta, rows, labels)
        rate = self._rate(theta, close)
        network = np.log1p(-rate) - nll
        predicted = rows[:-1].argmax(0)
        total = np.logaddexp(network, np.log(rate * self._errors[predicted, labels]))
        share = np.exp(network - total)
        spread = share * (1 - share)
        slopes = weights * share * first, weights * (share - 1 + rate)
        curves = (
            weights * (share * second - spread * first**2),
            -weights * spread * first,
            weights * (rate * (1 - rate) - spread),
        )
        (aa, ab, bb), (ac, ae, be), (cc, ce, ee) = (
            (values, values * close, values * close * close) for values in curves
        )
        return -float(weights @ total), *sums_by_group(
            group,
            1,
            [slope * f for slope in slopes for f in (1, close)],
            [[aa, ab, ac, ae], [bb, ae, be], [cc, ce], [ee]],
        )

    def _logits(self, theta: Floats, rows: Floats) -> Floats:
        logits, _, close, inverse = self._split(theta, rows)
        rate = self._rate(theta, close)
        mixed = (1 - rate) * softmax(logits * inverse) + rate * self._errors[logits.argmax(0)].T
        return np.asarray(np.log(mixed))

    def params(self) -> dict[str, Any]:
        self.check_fitted()
        named = dict(zip("abce", self._theta.tolist(), strict=True))
        named["c"] += float(logit(_START))
        return {"scale_mm": self._scale, **named, "errors": self._errors.tolist()}

    def set_params(self, params: dict[str, Any]) -> None:
        super().set_params(params)
        k = self.check_fitted()
        self._theta = np.append(self._theta, self._read("ce", params) - [logit(_START), 0.0])
        self._errors = finite_array("errors", params.get("errors"), (k, k))
        # With two classes both are ½.
        if (self._errors <= 0).any() or (self._errors.max(1) > self._errors.diagonal()).any():
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
