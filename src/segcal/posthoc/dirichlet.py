"""Full matrices: Dirichlet calibration on log-probabilities, matrix scaling on logits."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from segcal.core.checks import check_number
from segcal.posthoc._blocks import Floats, Space
from segcal.posthoc._linear import LinearCalibrator, Parameters, finite_array


class DirichletScaling(LinearCalibrator):
    """softmax(W log p + b) with ODIR regularization (Kull et al., NeurIPS 2019).

    Every class can depend on every other, so systematic confusions are corrected; labels may
    change. ODIR shrinks the off-diagonal weights and the offsets, and leaves the diagonal free:

        NLL + odir / (K(K−1)) · Σ_{i≠j} W_ij² + bias_penalty / K · Σ b_j²

    Args:
        odir: weight of the off-diagonal penalty; with a large value a scale per class remains.
        bias_penalty: weight of the offsets' penalty.
        max_weight: the diagonal stays in [0, max_weight], other weights within ± max_weight.
        max_bias: largest absolute offset.
        keep_argmax: keep the label of every voxel; see docs/how-to/posthoc.md.
    """

    def __init__(
        self,
        odir: float = 1e-3,
        bias_penalty: float = 1e-3,
        max_weight: float = 100.0,
        max_bias: float = 50.0,
        keep_argmax: bool = False,
    ) -> None:
        super().__init__()
        self.odir = check_number("odir", odir, low=0)
        self.bias_penalty = check_number("bias_penalty", bias_penalty, low=0)
        self.max_weight = check_number("max_weight", max_weight, low=1)
        self.max_bias = check_number("max_bias", max_bias, low=0, open_low=True)
        self.keep_argmax = self.keeps_argmax = bool(keep_argmax)

    def _parameters(self, num_classes: int) -> Parameters:
        """θ is (K, K+1), row k = (weights of class k, its offset), flattened."""
        k = num_classes
        names = []
        for i in range(k):
            for j in range(k):
                of = f"{i}'s own score" if i == j else f"{j}'s score in that of class {i}"
                names.append(f"weight of class {of}")
            names.append(f"bias of class {i}")
        upper = np.full((k, k + 1), self.max_weight)
        upper[:, -1] = self.max_bias
        lower = -upper
        np.fill_diagonal(lower, 0.0)
        penalty = np.full((k, k + 1), self.odir / (k * (k - 1)))
        np.fill_diagonal(penalty, 0.0)
        penalty[:, -1] = self.bias_penalty / k
        return Parameters(
            names,
            identity=np.eye(k, k + 1).ravel(),
            lower=lower.ravel(),
            upper=upper.ravel(),
            penalty=penalty.ravel(),
        )

    def _logits(self, theta: Floats, rows: Floats) -> Floats:
        table = theta.reshape(len(rows), -1)
        return np.asarray(table[:, :-1] @ rows + table[:, -1:])

    def _derivatives(
        self, rows: Floats, probs: Floats, residual: Floats, weights: Floats
    ) -> tuple[Floats, Floats]:
        k, n = rows.shape
        inputs = np.concatenate([rows, np.ones((1, n))])
        gradient = (residual * weights) @ inputs.T
        features = (probs[:, None] * inputs).reshape(k * (k + 1), n)
        hessian = -(features * weights) @ features.T
        blocks = hessian.reshape(k, k + 1, k, k + 1)
        for i in range(k):
            blocks[i, :, i, :] += (inputs * (probs[i] * weights)) @ inputs.T
        return gradient.ravel(), hessian

    def params(self) -> dict[str, Any]:
        table = self._theta.reshape(self.check_fitted(), -1)
        return {"weight": table[:, :-1].tolist(), "bias": table[:, -1].tolist()}

    def set_params(self, params: dict[str, Any]) -> None:
        k = self.check_fitted()
        weight = finite_array("weight", params.get("weight"), (k, k))
        bias = finite_array("bias", params.get("bias"), (k,))
        self._theta = np.concatenate([weight, bias[:, None]], axis=1).ravel()


class MatrixScaling(DirichletScaling):
    """softmax(W l + b) on the raw logits, regularized as `DirichletScaling`.

    Log-probabilities differ from logits by a constant per voxel, which softmax ignores and a
    matrix does not. So it needs logits and cannot be fitted on probabilities.
    """

    space: ClassVar[Space] = "logits"
