"""A calibrator: it estimates its parameters on voxels, and transforms log-probabilities."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from segcal.posthoc import Calibrator, Voxels


class UniformMixing(Calibrator):
    """(1 − a)·p + a/K with one number a in [0, 1), fitted by likelihood. Labels do not change."""

    keeps_argmax = True

    def __init__(self) -> None:
        super().__init__()
        self.share = 0.0

    def estimate(self, voxels: Voxels) -> None:
        def mean_nll(share: float) -> float:
            total = weight = 0.0
            for rows, labels, weights in voxels.blocks():
                own = np.exp(rows[labels, np.arange(len(labels))])
                total -= float(weights @ np.log((1 - share) * own + share / len(rows)))
                weight += float(weights.sum())
            return total / weight

        self.share = float(minimize_scalar(mean_nll, bounds=(1e-6, 0.5), method="bounded").x)

    def transform_rows(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.log((1 - self.share) * np.exp(rows) + self.share / len(rows))

    def params(self) -> dict[str, Any]:
        return {"share": self.share}

    def set_params(self, params: dict[str, Any]) -> None:
        share = float(params["share"])
        if not 0 <= share < 1:
            raise ValueError(f"Expected `share` in [0, 1), but got {share}.")
        self.share = share
