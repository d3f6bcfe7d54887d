"""Newton's method for smooth functions within bounds; convex ones have one minimum.

It is faster than scipy's optimizers and needs fewer passes over the voxels:
docs/decisions/0010.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from segcal.posthoc._blocks import Floats

Objective = Callable[[Floats], tuple[float, Floats, Floats]]  # value, gradient, Hessian

_SUFFICIENT_DECREASE = 1e-4
_CONVERGED = 1e-15  # nats
_NOISE = 1e-14  # relative rounding error of a value
_ROUNDING = 1e-10  # below this predicted decrease, a failed line search is due to rounding


@dataclass(frozen=True)
class Minimum:
    """Where a search ended; `converged` is False if it stopped before the optimum."""

    theta: Floats
    value: float
    iterations: int
    converged: bool


def minimize(
    objective: Objective, start: Floats, lower: Floats, upper: Floats, max_iter: int = 100
) -> Minimum:
    """The minimum of a convex `objective` within [lower, upper], by projected Newton steps.

    Parameters at a bound that the gradient pushes outwards are held; the others take a damped
    Newton step, halved until the value decreases enough. So the value never increases, the first
    value is that of `start`, and a function without a minimum (separable classes) ends at a bound.

    Example:
        >>> def parabola(x):
        ...     return float((x[0] - 3) ** 2), 2 * (x - 3), np.array([[2.0]])
        >>> minimize(parabola, np.zeros(1), np.array([-1.0]), np.array([2.0])).theta.tolist()
        [2.0]
    """
    theta = np.clip(start, lower, upper)
    value, gradient, hessian = objective(theta)
    decrease = np.inf
    for iteration in range(max_iter):
        free = ~(((theta <= lower) & (gradient > 0)) | ((theta >= upper) & (gradient < 0)))
        if not free.any():
            return Minimum(theta, value, iteration, True)
        step = np.zeros_like(theta)
        step[free] = _newton_step(gradient[free], hessian[np.ix_(free, free)])
        decrease = -float(gradient @ step)
        if 0 <= decrease <= _CONVERGED:
            return Minimum(theta, value, iteration, True)
        slope = np.where(free, -gradient, 0.0) / max(float(np.abs(np.diag(hessian)).max()), 1e-12)
        for direction in (step, slope):
            found = _line_search(objective, theta, value, gradient, direction, lower, upper)
            if found is not None:
                break
        if found is None:
            return Minimum(theta, value, iteration, decrease <= _ROUNDING)
        before, (theta, (value, gradient, hessian)) = value, found
        if decrease <= _ROUNDING and before - value <= _NOISE * max(abs(value), 1e-3):
            return Minimum(theta, value, iteration + 1, True)
    return Minimum(theta, value, max_iter, decrease <= _ROUNDING)


def _newton_step(gradient: Floats, hessian: Floats) -> Floats:
    """The Newton step; where the Hessian is indefinite, with absolute values of its curvatures."""
    curvature, directions = np.linalg.eigh(hessian)
    floor = 1e-12 * max(float(np.abs(curvature).sum()), 1e-3)
    curvature = np.maximum(np.abs(curvature), floor)
    return np.asarray(-directions @ ((directions.T @ gradient) / curvature))


def _line_search(
    objective: Objective,
    theta: Floats,
    value: float,
    gradient: Floats,
    direction: Floats,
    lower: Floats,
    upper: Floats,
) -> tuple[Floats, tuple[float, Floats, Floats]] | None:
    """The first of the steps 1, ½, ¼ … that decreases the value enough, with its derivatives."""
    for halvings in range(30):
        trial = np.clip(theta + direction * 0.5**halvings, lower, upper)
        moved = trial - theta
        if not moved.any():
            return None
        found = objective(trial)
        expected = _SUFFICIENT_DECREASE * float(gradient @ moved)
        if found[0] <= value + min(expected, 0.0) + _NOISE * max(abs(value), 1e-3):
            return trial, found
    return None
