"""Random maps for the tests of the metrics."""

import numpy as np
import numpy.typing as npt

from segcal.metrics import ProperScores


def random_probs(
    rng: np.random.Generator, num_classes: int, *space: int, sharpness: float = 3.0
) -> npt.NDArray[np.float64]:
    logits = sharpness * rng.normal(size=(num_classes, *space))
    e = np.exp(logits - logits.max(0))
    return e / e.sum(0)


def random_case(
    rng: np.random.Generator, num_classes: int, *space: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Probabilities, and labels that follow them loosely."""
    probs = random_probs(rng, num_classes, *space)
    target = np.where(rng.random(space) < 0.6, probs.argmax(0), rng.integers(0, num_classes, space))
    return probs, target


def ellipsoid(
    shape: tuple[int, ...], centre: tuple[float, ...], radii: tuple[float, ...]
) -> npt.NDArray[np.bool_]:
    axes = np.meshgrid(*map(np.arange, shape), indexing="ij", sparse=True)
    return sum(((x - c) / r) ** 2 for x, c, r in zip(axes, centre, radii, strict=True)) < 1


def make_case(seed: int = 0) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Three classes, two nested structures, a prediction two voxels off."""
    rng = np.random.default_rng(seed)
    target = np.zeros((6, 40, 44), np.int64)
    target[ellipsoid(target.shape, (3, 20, 22), (3, 14, 15))] = 1
    target[ellipsoid(target.shape, (3, 20, 25), (3, 7, 8))] = 2
    near = np.eye(3)[np.roll(target, 2, 1)].transpose(3, 0, 1, 2)
    logits = 4 * near + rng.normal(size=near.shape)
    probs = np.exp(logits) / np.exp(logits).sum(0)
    return probs.astype(np.float32), target


def brier(probs: npt.ArrayLike, target: npt.ArrayLike, num_classes: int, *mask, **options) -> float:
    return ProperScores(num_classes).update(probs, target, *mask, **options).brier()


def nll(
    probs: npt.ArrayLike, target: npt.ArrayLike, num_classes: int, *mask, clip=1e-12, **options
) -> float:
    return ProperScores(num_classes, clip).update(probs, target, *mask, **options).nll()
