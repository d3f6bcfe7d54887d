"""The inverse of label smoothing and NACL: no data, no fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from segcal.core.checks import check_int, check_number
from segcal.posthoc._blocks import Floats
from segcal.posthoc.calibrator import Calibrator
from segcal.posthoc.sample import Voxels


class InverseSmoothing(Calibrator):
    """p̂ = (p − α/K) / (1 − α), clipped and normalized. Labels do not change.

    Label smoothing trains a network towards (1 − α) · truth + α/K, whose inverse this is. Where
    all neighbors agree, the optimum of NACL (l1, λ) is that of label smoothing with α = λ/(K−1).

    Args:
        alpha: α of label smoothing; or
        nacl: λ of NACL.
        floor: smallest p̂ before it is normalized. An exact 0 would cost a wrong voxel 27.6 nats.
        num_classes: K; with it no fit is needed. Without, `fit` takes it from the cases.

    Example:
        >>> inverse = InverseSmoothing(alpha=0.1, num_classes=2)
        >>> inverse.transform(np.array([[0.05, 0.23], [0.95, 0.77]]), from_probs=True).round(3)
        array([[0. , 0.2],
               [1. , 0.8]])
    """

    keeps_argmax = True

    def __init__(
        self,
        alpha: float = 0.0,
        nacl: float = 0.0,
        floor: float = 1e-4,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        self.alpha = check_number("alpha", alpha, low=0)
        self.nacl = check_number("nacl", nacl, low=0)
        self.floor = check_number("floor", floor, low=0, high=0.01, open_low=True)
        if num_classes is not None:
            self.num_classes = check_int("num_classes", num_classes, low=2)
        if (self.alpha > 0) == (self.nacl > 0):
            raise ValueError(
                "Expected one of the arguments `alpha` (label smoothing) and `nacl` (λ of NACL) "
                f"above 0, but got {alpha} and {nacl}. (On the command line: segcal calibrate "
                "--method inverse --set alpha=0.1)"
            )

    def estimate(self, voxels: Voxels) -> None:
        """Nothing is estimated."""
        self._strength()

    def _strength(self) -> float:
        """α, for the number of classes."""
        alpha = self.alpha or self.nacl / (self.check_fitted() - 1)
        if alpha >= 1:
            raise ValueError(
                "Expected argument `alpha` below 1 (`nacl` below K − 1), but got "
                f"{self.alpha or self.nacl}."
            )
        return alpha

    def transform_rows(self, rows: Floats) -> Floats:
        """Logarithms of p̂ before it is normalized."""
        alpha = self._strength()
        probs = (np.exp(rows) - alpha / len(rows)) / (1 - alpha)
        return np.log(np.maximum(probs, self.floor))

    def params(self) -> dict[str, Any]:
        return {}

    def set_params(self, params: dict[str, Any]) -> None:
        self._strength()
