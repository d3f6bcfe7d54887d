"""Vector scaling: every class has a temperature and an offset of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from segcal.core.checks import check_number
from segcal.posthoc._blocks import Floats
from segcal.posthoc.temperature import LinearCalibrator, Parts, check_bounds, numbers, quadratic


class VectorScaling(LinearCalibrator):
    """A scale and an offset for each class, on log-probabilities: softmax(a ⊙ log p + b).

    Log-probabilities rather than logits, so that a constant which softmax ignores cannot change
    the result, and a file fitted on logits serves probabilities too. Labels may change.

    Args:
        bounds: smallest and largest scale; a scale is like 1/T.
        bias_penalty: weight of the mean squared offset.
        max_bias: the offsets stay within ± this.
    """

    method: ClassVar[str] = "vector"
    changes_labels: ClassVar[bool] = True

    def __init__(
        self,
        bounds: Sequence[float] = (0.01, 100.0),
        bias_penalty: float = 1e-6,
        max_bias: float = 50.0,
    ) -> None:
        super().__init__()
        self.bounds = check_bounds("bounds", bounds, positive=True)
        self.bias_penalty = check_number("bias_penalty", bias_penalty, low=0)
        self.max_bias = check_number("max_bias", max_bias, low=0, open_low=True)

    def _start(self, num_classes: int) -> Floats:
        return np.concatenate([np.ones(num_classes), np.zeros(num_classes)])

    def _box(self, num_classes: int) -> tuple[Floats, Floats]:
        ones = np.ones(num_classes)
        lower = np.concatenate([self.bounds[0] * ones, -self.max_bias * ones])
        return lower, np.concatenate([self.bounds[1] * ones, self.max_bias * ones])

    def _names(self, num_classes: int) -> list[str]:
        return [f"{what} of class {k}" for what in ("scale", "bias") for k in range(num_classes)]

    def _logits(self, theta: Floats, rows: Floats) -> Floats:
        k = len(theta) // 2
        return rows * theta[:k, None] + theta[k:, None]

    def _derivatives(
        self, rows: Floats, probs: Floats, miss: Floats, weights: Floats
    ) -> tuple[Floats, Floats]:
        k = len(rows)
        gradient = np.concatenate([(miss * rows) @ weights, miss @ weights])
        features = np.concatenate([probs * rows, probs])
        hessian = -(features * weights) @ features.T
        own, scale, bias = probs * weights, np.arange(k), np.arange(k, 2 * k)
        hessian[scale, scale] += (own * rows * rows).sum(1)
        hessian[bias, bias] += own.sum(1)
        cross = (own * rows).sum(1)
        hessian[scale, bias] += cross
        hessian[bias, scale] += cross
        return gradient, hessian

    def _penalty(self, theta: Floats, num_classes: int) -> Parts:
        weight = np.zeros(len(theta))
        weight[num_classes:] = self.bias_penalty / num_classes
        return quadratic(theta, weight)

    def options(self) -> dict[str, Any]:
        return {
            "bounds": list(self.bounds),
            "bias_penalty": self.bias_penalty,
            "max_bias": self.max_bias,
        }

    def params(self) -> dict[str, Any]:
        k = self.check_fitted()
        return {"scale": self._theta[:k].tolist(), "bias": self._theta[k:].tolist()}

    def set_params(self, num_classes: int, params: dict[str, Any]) -> None:
        scale = numbers("scale", params.get("scale"), (num_classes,))
        bias = numbers("bias", params.get("bias"), (num_classes,))
        self.num_classes, self._theta = num_classes, np.concatenate([scale, bias])
