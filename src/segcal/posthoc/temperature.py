"""Temperature scaling: all logits are divided by one number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from segcal.core.checks import check_number
from segcal.posthoc._blocks import Floats, Ints
from segcal.posthoc._linear import Derivatives, LinearCalibrator, Parameters, check_bounds


class TemperatureScaling(LinearCalibrator):
    """softmax(l / T) with one temperature T (Guo et al., ICML 2017). Labels do not change.

    The likelihood is convex in 1/T. T stays within `bounds`: where all voxels are right (or all
    are wrong) the optimum is at 0 (or infinity), and the report states that the limit was reached.

    Args:
        bounds: smallest and largest T.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(size=(3, 50_000)) * 2
        >>> cdf = (np.exp(logits) / np.exp(logits).sum(0)).cumsum(0)
        >>> target = (rng.random(50_000) > cdf).sum(0).clip(max=2)  # calibrated by construction
        >>> scaling = TemperatureScaling().fit([(logits * 2.5, target)])  # over-confident
        >>> round(scaling.temperature, 1)
        2.5
    """

    keeps_argmax = True

    def __init__(self, bounds: Sequence[float] = (0.01, 100.0)) -> None:
        super().__init__()
        self.bounds = check_bounds("bounds", bounds)

    @property
    def temperature(self) -> float:
        """T, once fitted."""
        self.check_fitted()
        return float(1 / self._theta[0])

    def _parameters(self, num_classes: int) -> Parameters:
        """θ is 1/T."""
        low, high = self.bounds
        limits = np.array([1 / high]), np.array([1 / low])
        return Parameters(["temperature"], np.ones(1), *limits, np.zeros(1))

    def _logits(self, theta: Floats, rows: Floats) -> Floats:
        return np.asarray(rows * theta[0])

    def _block(self, theta: Floats, rows: Floats, labels: Ints, weights: Floats) -> Derivatives:
        # Faster than the general form: one parameter needs only two moments of the logits.
        shifted = rows - rows.max(0)
        e = np.exp(theta[0] * shifted)
        total = e.sum(0)
        e *= shifted
        mean = e.sum(0) / total
        square = np.einsum("kn,kn->n", e, shifted) / total
        own = shifted[labels, np.arange(len(labels))]
        value = float(weights @ (np.log(total) - theta[0] * own))
        gradient, curvature = float(weights @ (mean - own)), float(weights @ (square - mean**2))
        return value, np.array([gradient]), np.array([[curvature]])

    def params(self) -> dict[str, Any]:
        return {"temperature": self.temperature}

    def set_params(self, params: dict[str, Any]) -> None:
        temperature = check_number("temperature", params.get("temperature"))
        tolerance = 1e-9  # 1/T is stored as T, so it is rounded
        low, high = self.bounds
        if not low * (1 - tolerance) <= temperature <= high * (1 + tolerance):
            raise ValueError(
                f"Expected `temperature` within its bounds {self.bounds}, but got {temperature}."
            )
        self._theta = np.array([1 / temperature])
