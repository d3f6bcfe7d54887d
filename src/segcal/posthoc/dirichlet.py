"""Full matrices: Dirichlet calibration on log-probabilities, matrix scaling on logits."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from segcal.core.checks import check_number
from segcal.posthoc._blocks import Floats
from segcal.posthoc.temperature import LinearCalibrator, Parts, numbers, quadratic


class DirichletScaling(LinearCalibrator):
    """softmax(W log p + b), with ODIR regularisation (Kull et al., NeurIPS 2019).

    Every class may borrow from every other, so that systematic confusions are repaired; labels may
    change. ODIR draws the off-diagonal weights and the offsets to 0, and leaves the diagonal free:

        NLL + odir / (K(K−1)) · Σ_{i≠j} W_ij² + bias_penalty / K · Σ b_j²

    Args:
        odir: weight of the off-diagonal penalty; large values leave a scale per class.
        bias_penalty: weight of the offsets' penalty.
        max_weight: the diagonal stays in [0, max_weight], the others within ± max_weight.
        max_bias: the offsets stay within ± this.
    """

    method: ClassVar[str] = "dirichlet"
    changes_labels: ClassVar[bool] = True

    def __init__(
        self,
        odir: float = 1e-3,
        bias_penalty: float = 1e-3,
        max_weight: float = 100.0,
        max_bias: float = 50.0,
    ) -> None:
        super().__init__()
        self.odir = check_number("odir", odir, low=0)
        self.bias_penalty = check_number("bias_penalty", bias_penalty, low=0)
        self.max_weight = check_number("max_weight", max_weight, low=1)
        self.max_bias = check_number("max_bias", max_bias, low=0, open_low=True)

    # θ is (K, K+1), row k = (weights of class k, its offset), flattened.

    def _start(self, num_classes: int) -> Floats:
        return np.eye(num_classes, num_classes + 1).ravel()

    def _box(self, num_classes: int) -> tuple[Floats, Floats]:
        upper = np.full((num_classes, num_classes + 1), self.max_weight)
        upper[:, -1] = self.max_bias
        lower = -upper
        lower[np.arange(num_classes), np.arange(num_classes)] = 0.0
        return lower.ravel(), upper.ravel()

    def _names(self, num_classes: int) -> list[str]:
        return [
            f"bias of class {i}" if j == num_classes else f"weight of class {j} in class {i}"
            for i in range(num_classes)
            for j in range(num_classes + 1)
        ]

    def _logits(self, theta: Floats, rows: Floats) -> Floats:
        table = theta.reshape(len(rows), -1)
        return np.asarray(table[:, :-1] @ rows + table[:, -1:])

    def _derivatives(
        self, rows: Floats, probs: Floats, miss: Floats, weights: Floats
    ) -> tuple[Floats, Floats]:
        k, n = rows.shape
        inputs = np.concatenate([rows, np.ones((1, n))])
        gradient = (miss * weights) @ inputs.T
        features = (probs[:, None] * inputs).reshape(k * (k + 1), n)
        hessian = -(features * weights) @ features.T
        blocks = hessian.reshape(k, k + 1, k, k + 1)
        for i in range(k):
            blocks[i, :, i, :] += (inputs * (probs[i] * weights)) @ inputs.T
        return gradient.ravel(), hessian

    def _penalty(self, theta: Floats, num_classes: int) -> Parts:
        k = num_classes
        weight = np.full((k, k + 1), self.odir / (k * (k - 1)))
        weight[np.arange(k), np.arange(k)] = 0.0
        weight[:, -1] = self.bias_penalty / k
        return quadratic(theta, weight.ravel())

    def options(self) -> dict[str, Any]:
        return {
            "odir": self.odir,
            "bias_penalty": self.bias_penalty,
            "max_weight": self.max_weight,
            "max_bias": self.max_bias,
        }

    def params(self) -> dict[str, Any]:
        table = self._theta.reshape(self.check_fitted(), -1)
        return {"weight": table[:, :-1].tolist(), "bias": table[:, -1].tolist()}

    def set_params(self, num_classes: int, params: dict[str, Any]) -> None:
        weight = numbers("weight", params.get("weight"), (num_classes, num_classes))
        bias = numbers("bias", params.get("bias"), (num_classes,))
        self.num_classes = num_classes
        self._theta = np.concatenate([weight, bias[:, None]], axis=1).ravel()


class MatrixScaling(DirichletScaling):
    """softmax(W l + b) on the raw logits, regularised as `DirichletScaling`.

    It differs from Dirichlet in one input: log p is l minus a number per voxel, which softmax
    ignores and a matrix does not. So it needs logits and cannot be fitted on probabilities.
    """

    method: ClassVar[str] = "matrix"
    space: ClassVar[str] = "logits"
