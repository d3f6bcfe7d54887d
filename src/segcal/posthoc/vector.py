"""Vector scaling: every class has a scale and an offset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from segcal.core.checks import check_number
from segcal.posthoc._blocks import Floats
from segcal.posthoc._linear import LinearCalibrator, Parameters, check_bounds, finite_array


class VectorScaling(LinearCalibrator):
    """softmax(a ⊙ log p + b): a scale and an offset for each class. Labels may change.

    It works on log-probabilities rather than logits, so a constant that softmax ignores cannot
    change the result, and a file fitted on logits applies to probabilities too.

    Args:
        bounds: smallest and largest scale (a scale is like 1/T).
        bias_penalty: weight of the mean squared offset.
        max_bias: largest absolute offset.
        keep_argmax: keep the label of every voxel; see docs/how-to/posthoc.md.
    """

    def __init__(
        self,
        bounds: Sequence[float] = (0.01, 100.0),
        bias_penalty: float = 1e-6,
        max_bias: float = 50.0,
        keep_argmax: bool = False,
    ) -> None:
        super().__init__()
        self.bounds = check_bounds("bounds", bounds)
        self.bias_penalty = check_number("bias_penalty", bias_penalty, low=0)
        self.max_bias = check_number("max_bias", max_bias, low=0, open_low=True)
        self.keep_argmax = self.keeps_argmax = bool(keep_argmax)

    def _parameters(self, num_classes: int) -> Parameters:
        """θ is (scales, offsets)."""
        k = num_classes
        (low, high), bias = self.bounds, self.max_bias
        return Parameters(
            [f"{what} of class {i}" for what in ("scale", "bias") for i in range(k)],
            identity=np.repeat([1.0, 0.0], k),
            lower=np.repeat([low, -bias], k),
            upper=np.repeat([high, bias], k),
            penalty=np.repeat([0.0, self.bias_penalty / k], k),
        )

    def _logits(self, theta: Floats, rows: Floats) -> Floats:
        k = len(theta) // 2
        return rows * theta[:k, None] + theta[k:, None]

    def _derivatives(
        self, rows: Floats, probs: Floats, residual: Floats, weights: Floats
    ) -> tuple[Floats, Floats]:
        k = len(rows)
        gradient = np.concatenate([(residual * rows) @ weights, residual @ weights])
        features = np.concatenate([probs * rows, probs])
        hessian = -(features * weights) @ features.T
        own, scale, bias = probs * weights, np.arange(k), np.arange(k, 2 * k)
        hessian[scale, scale] += (own * rows * rows).sum(1)
        hessian[bias, bias] += own.sum(1)
        cross = (own * rows).sum(1)
        hessian[scale, bias] += cross
        hessian[bias, scale] += cross
        return gradient, hessian

    def params(self) -> dict[str, Any]:
        k = self.check_fitted()
        return {"scale": self._theta[:k].tolist(), "bias": self._theta[k:].tolist()}

    def set_params(self, params: dict[str, Any]) -> None:
        shape = (self.check_fitted(),)
        scale = finite_array("scale", params.get("scale"), shape)
        self._theta = np.concatenate([scale, finite_array("bias", params.get("bias"), shape)])
