"""An affine map for each predicted class that keeps the predicted class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from segcal.core.checks import check_number
from segcal.posthoc._blocks import Floats, Ints
from segcal.posthoc._linear import Parameters, check_bounds, finite_array
from segcal.posthoc.calibrator import Calibrator
from segcal.posthoc.sample import Voxels
from segcal.posthoc.vector import VectorScaling


class ClassAffineScaling(Calibrator):
    """For predicted class k, l'_j − l'_k = α_kj (l_j − l_k) − β_kj, with α > 0 and β ≥ 0.

    Log-odds against the predicted class are scaled and shifted, for each predicted class anew.
    They stay at or below 0, so labels do not change. The NLL is convex; the classes are fitted
    separately. A class that is never predicted is left as it is.

    Args:
        bounds: smallest and largest α.
        max_bias: largest β.
        bias_penalty: weight of the mean square of the β of a predicted class.
    """

    keeps_argmax = True

    def __init__(
        self,
        bounds: Sequence[float] = (0.01, 100.0),
        max_bias: float = 50.0,
        bias_penalty: float = 1e-6,
    ) -> None:
        super().__init__()
        self.bounds = check_bounds("bounds", bounds)
        self.max_bias = check_number("max_bias", max_bias, low=0, open_low=True)
        self.bias_penalty = check_number("bias_penalty", bias_penalty, low=0)
        self._alpha = self._beta = np.empty((0, 0))

    def estimate(self, voxels: Voxels) -> None:
        assert self.report is not None
        k = voxels.num_classes
        self._alpha, self._beta = np.ones((k, k)), np.zeros((k, k))
        for label in range(k):
            own = _predicted_as(voxels, label)
            if not any(len(labels) for _, labels, _ in own.blocks()):
                continue
            part = _AwayFrom(label, self.bounds, self.bias_penalty, self.max_bias)
            part.fit_voxels(own)
            assert part.report is not None
            self._alpha[label], self._beta[label] = part._theta[:k], -part._theta[k:]
            self.report.iterations += part.report.iterations
            self.report.converged &= part.report.converged
            # An offset of 0 is no limit of the data, but of labels that must not change.
            scales = [name for name in part.report.at_bound if name.startswith("scale")]
            self.report.at_bound += [f"{name} where {label} is predicted" for name in scales]

    def transform_rows(self, rows: Floats) -> Floats:
        """Log-odds (K, n) against the predicted class."""
        label, odds = _odds(rows)
        return np.asarray(odds * self._alpha[label].T - self._beta[label].T)

    def params(self) -> dict[str, Any]:
        return {"alpha": self._alpha.tolist(), "beta": self._beta.tolist()}

    def set_params(self, params: dict[str, Any]) -> None:
        k = self.check_fitted()
        self._alpha = finite_array("alpha", params.get("alpha"), (k, k))
        self._beta = finite_array("beta", params.get("beta"), (k, k))


class _AwayFrom(VectorScaling):
    """Vector scaling of the log-odds against one class, whose own row is 0 and stays so."""

    def __init__(
        self, label: int, bounds: Sequence[float], bias_penalty: float, max_bias: float
    ) -> None:
        super().__init__(bounds, bias_penalty, max_bias)
        self.label = label

    def _parameters(self, num_classes: int) -> Parameters:
        found = super()._parameters(num_classes)
        found.upper[num_classes:] = 0.0
        found.lower[num_classes + self.label] = 0.0
        return found


def _odds(rows: Floats) -> tuple[Ints, Floats]:
    """The predicted class, and the log-odds (K, n) against it."""
    return rows.argmax(0), rows - rows.max(0)


def _predicted_as(voxels: Voxels, label: int) -> Voxels:
    """The voxels of a predicted class, as log-odds against it."""

    def blocks() -> Any:
        for rows, labels, weights in voxels.blocks():
            predicted, odds = _odds(rows)
            own = predicted == label
            if own.any():
                yield odds[:, own], labels[own], weights[own]

    return replace(voxels, blocks=blocks)
