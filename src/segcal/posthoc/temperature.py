"""Calibrators that are linear in the logits: what they share, and temperature scaling.

Their negative log-likelihood is convex, so that Newton's method finds *the* optimum within the
bounds, in a handful of passes over the voxels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from segcal.core.checks import check_number
from segcal.posthoc._blocks import Floats, Ints
from segcal.posthoc._newton import minimise
from segcal.posthoc.calibrator import Calibrator, FitReport
from segcal.posthoc.sample import Sample, Stream, Voxels

# Value, gradient and Hessian of a sum over voxels.
Parts = tuple[float, Floats, Floats]


class LinearCalibrator(Calibrator):
    """A calibrator with few parameters θ in a box, fitted by Newton's method."""

    def __init__(self) -> None:
        super().__init__()
        self._theta: Floats = np.empty(0)

    @abstractmethod
    def _start(self, num_classes: int) -> Floats:
        """The θ that changes nothing."""

    @abstractmethod
    def _box(self, num_classes: int) -> tuple[Floats, Floats]:
        """Lower and upper bounds of θ."""

    @abstractmethod
    def _names(self, num_classes: int) -> list[str]:
        """What to call each parameter."""

    @abstractmethod
    def _logits(self, theta: Floats, rows: Floats) -> Floats:
        """Calibrated logits (K, n) of rows (K, n)."""

    def _derivatives(
        self, rows: Floats, probs: Floats, miss: Floats, weights: Floats
    ) -> tuple[Floats, Floats]:
        """Gradient and Hessian; `miss` is probabilities minus one-hot labels, (K, n)."""
        raise NotImplementedError

    def _penalty(self, theta: Floats, num_classes: int) -> Parts:
        """The regularisation; none by default."""
        return 0.0, np.zeros_like(theta), np.zeros((len(theta), len(theta)))

    def gather(
        self,
        *,
        from_probs: bool = False,
        max_voxels: int = 1_000_000,
        seed: int = 0,
        ignore_index: int = -100,
    ) -> Sample:
        """A `Sample` in the space of this calibrator."""
        return Sample(
            max_voxels=max_voxels,
            seed=seed,
            from_probs=from_probs,
            space=self.space,
            ignore_index=ignore_index,
        )

    def fit(
        self,
        cases: Iterable[object],
        *,
        from_probs: bool = False,
        balance: str = "none",
        max_voxels: int | None = 1_000_000,
        seed: int = 0,
        ignore_index: int = -100,
    ) -> Self:
        """See `Calibrator.fit`."""
        if max_voxels is not None:
            return super().fit(
                cases,
                from_probs=from_probs,
                balance=balance,
                max_voxels=max_voxels,
                seed=seed,
                ignore_index=ignore_index,
            )
        stream = Stream(
            cases,
            from_probs=from_probs,
            space=self.space,
            ignore_index=ignore_index,
            balance=balance,
        )
        return self.fit_gathered(stream).note(balance, from_probs)

    def fit_gathered(self, data: Voxels) -> Self:
        """Fit on what `gather(...).of(cases, balance)` gives."""
        if not data.counts.sum():
            raise ValueError(
                f"Expected voxels to fit on, but the region is empty in all {data.cases} cases."
            )
        k = data.num_classes
        lower, upper = self._box(k)
        used = 0
        plain: dict[bytes, float] = {}  # the NLL at every θ that was tried, without the penalty

        def objective(theta: Floats) -> Parts:
            nonlocal used
            value, gradient, hessian, total, used = self._sums(theta, data)
            extra = self._penalty(theta, k)
            plain[theta.tobytes()] = value / total
            return (
                value / total + extra[0],
                gradient / total + extra[1],
                hessian / total + extra[2],
            )

        start = np.clip(self._start(k), lower, upper)
        found = minimise(objective, start, lower, upper)
        self.num_classes, self._theta = k, found.theta
        self.report = FitReport(
            cases=data.cases,
            voxels=int(data.counts.sum()),
            used=used,
            nll_before=plain[start.tobytes()],
            nll_after=plain[found.theta.tobytes()],
            iterations=found.iterations,
            converged=found.converged,
            at_bound=self._at_bound(found.theta, lower, upper),
        )
        return self

    def _sums(self, theta: Floats, data: Voxels) -> tuple[float, Floats, Floats, float, int]:
        """NLL, gradient and Hessian added over all voxels; the sum of weights; how many voxels."""
        value, total, used = 0.0, 0.0, 0
        gradient, hessian = np.zeros(len(theta)), np.zeros((len(theta), len(theta)))
        for rows, labels, weights in data.blocks():
            part = self._block(theta, rows, labels, weights)
            value, gradient, hessian = value + part[0], gradient + part[1], hessian + part[2]
            total += float(weights.sum())
            used += len(labels)
        return value, gradient, hessian, total, used

    def _block(self, theta: Floats, rows: Floats, labels: Ints, weights: Floats) -> Parts:
        """NLL, gradient and Hessian added over one block."""
        each, probs, miss = _likelihood(self._logits(theta, rows), labels)
        gradient, hessian = self._derivatives(rows, probs, miss, weights)
        return float(weights @ each), gradient, hessian

    def _at_bound(self, theta: Floats, lower: Floats, upper: Floats) -> list[str]:
        names = self._names(self.num_classes or 0)
        return [
            f"the {names[i]} reached its bound"
            for i in np.flatnonzero((theta <= lower) | (theta >= upper))
        ]

    def _scaled(self, rows: Floats) -> Floats:
        return self._logits(self._theta, rows)


def _likelihood(logits: Floats, labels: Ints) -> tuple[Floats, Floats, Floats]:
    """NLL (n,), probabilities (K, n), and probabilities minus one-hot labels (K, n)."""
    logits = logits - logits.max(0)
    e = np.exp(logits)
    total = e.sum(0)
    probs = e / total
    index = np.arange(len(labels))
    each = np.log(total) - logits[labels, index]
    miss = probs.copy()
    miss[labels, index] -= 1
    return each, probs, miss


class TemperatureScaling(LinearCalibrator):
    """Divide all logits by one number T: softmax(l / T). The labels stay as they are.

    The likelihood is convex in 1/T. T stays within `bounds`: where all voxels are right (or all
    wrong) the optimum is at 0 (or infinity), and the report says that the bound was reached.

    Args:
        bounds: smallest and largest T.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(size=(3, 50_000)) * 2
        >>> cdf = (np.exp(logits) / np.exp(logits).sum(0)).cumsum(0)
        >>> target = (rng.random(50_000) > cdf).sum(0).clip(max=2)  # calibrated by construction
        >>> scaling = TemperatureScaling().fit([(logits * 2.5, target)])  # too sure by 2.5
        >>> round(scaling.temperature, 1)
        2.5
    """

    method: ClassVar[str] = "temperature"
    changes_labels: ClassVar[bool] = False

    def __init__(self, bounds: Sequence[float] = (0.01, 100.0)) -> None:
        super().__init__()
        self.bounds = check_bounds("bounds", bounds, positive=True)

    @property
    def temperature(self) -> float:
        """T, once fitted."""
        self.check_fitted()
        return float(1 / self._theta[0])

    def _start(self, num_classes: int) -> Floats:
        return np.ones(1)

    def _box(self, num_classes: int) -> tuple[Floats, Floats]:
        return np.array([1 / self.bounds[1]]), np.array([1 / self.bounds[0]])

    def _names(self, num_classes: int) -> list[str]:
        return ["temperature"]

    def _logits(self, theta: Floats, rows: Floats) -> Floats:
        return np.asarray(rows * theta[0])

    def _block(self, theta: Floats, rows: Floats, labels: Ints, weights: Floats) -> Parts:
        # One parameter needs less than the general way: the moments of the logits.
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

    def options(self) -> dict[str, Any]:
        return {"bounds": list(self.bounds)}

    def params(self) -> dict[str, Any]:
        return {"temperature": self.temperature}

    def set_params(self, num_classes: int, params: dict[str, Any]) -> None:
        temperature = check_number("temperature", params.get("temperature"))
        slack = 1e-9  # T is kept as 1/T, and comes back rounded
        if not self.bounds[0] * (1 - slack) <= temperature <= self.bounds[1] * (1 + slack):
            raise ValueError(
                f"Expected `temperature` within its bounds {self.bounds}, but got {temperature}."
            )
        self.num_classes, self._theta = num_classes, np.array([1 / temperature])


def quadratic(theta: Floats, weight: Floats) -> Parts:
    """Σ weight · θ², its gradient and Hessian."""
    return float(weight @ theta**2), 2 * weight * theta, np.diag(2 * weight)


def check_bounds(name: str, value: Sequence[float], positive: bool) -> tuple[float, float]:
    """Two finite numbers around 1, the smaller first."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise TypeError(f"Expected argument `{name}` to be two numbers, but got {value!r}.")
    low, high = (check_number(name, v, low=0 if positive else None) for v in value)
    if not (1e-300 <= low <= 1 <= high):
        raise ValueError(
            f"Expected argument `{name}` to be (low, high) with 1e-300 ≤ low ≤ 1 ≤ high, "
            f"but got {tuple(value)}."
        )
    return low, high


def numbers(name: str, value: object, shape: tuple[int, ...]) -> Floats:
    """Nested lists of finite numbers of this shape, as an array."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"Expected `{name}` to hold finite numbers of shape {shape}.")
    return array
