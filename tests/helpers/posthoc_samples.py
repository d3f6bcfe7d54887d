"""Synthetic logits whose best calibration is known."""

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def softmax(logits: npt.NDArray[Any]) -> Floats:
    e = np.exp(logits - logits.max(0))
    return np.asarray(e / e.sum(0))


def calibrated(
    shape: tuple[int, ...], num_classes: int = 3, seed: int = 0, spread: float = 2.0
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Logits (K, *S) and labels drawn from their softmax: calibrated by construction."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(num_classes, *shape)) * spread
    above = rng.random(shape) > softmax(logits).cumsum(0)
    return logits, above.sum(0).clip(max=num_classes - 1)


def exactly_calibrated(
    rows: int = 800, repeats: int = 800, num_classes: int = 3, seed: int = 0
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """(K, n) logits in which each row occurs `repeats` times with labels in its proportions.

    The labels have no noise except rounding to whole numbers, so the best temperature is 1.
    """
    rng = np.random.default_rng(seed)
    logits = np.repeat(rng.normal(size=(num_classes, rows)) * 2, repeats, axis=1)
    # One offset per row, so that rounding does not favor a class.
    level = (np.arange(repeats) + rng.random((rows, 1))) / repeats
    above = level.ravel() > softmax(logits).cumsum(0)
    return logits, above.sum(0).clip(max=num_classes - 1)


def blobs(
    name: int, *, too_sure: float = 3.0, shape: tuple[int, int, int] = (10, 16, 14)
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """Logits (3, *S) of two organs in background, over-confident by a factor, and the labels.

    Labels are drawn from the softmax of the logits before they are multiplied.
    """
    rng = np.random.default_rng(name)
    z, y, x = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij")
    first = 2.5 - 8 * np.hypot(np.hypot(z, y - 0.3 + 0.1 * rng.normal()), x)
    second = 2.5 - 8 * np.hypot(np.hypot(z, y + 0.3 + 0.1 * rng.normal()), x)
    logits = np.stack([np.zeros(shape), first, second]) + rng.normal(size=(3, *shape)) * 0.5
    above = rng.random(shape) > softmax(logits).cumsum(0)
    target = above.sum(0).clip(max=2)
    return (logits * too_sure).astype(np.float32), target.astype(np.uint8)
