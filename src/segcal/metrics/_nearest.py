"""Nearest distances between two sets of voxels."""

import math

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.int64]  # (n, axes), voxel indices
Floats = npt.NDArray[np.float64]

# Most surfaces of a useful prediction lie within this many voxels of the truth.
_NEAR = 3


def nearest(points: Points, others: Points, scale: tuple[float, ...]) -> Floats:
    """Distance of each point to the nearest other: near ones by looking, the rest by a tree.

    Both are exact. Measured: a tree over surface voxels is several times faster than a distance
    transform of the box, and looking at a few neighbours first is twice as fast again where the
    surfaces are close.
    """
    from scipy.spatial import KDTree

    distances, far = _look_around(points, others, scale)
    if far.size:
        size: Floats = np.asarray(scale)
        tree = KDTree(others * size, leafsize=32, balanced_tree=False, compact_nodes=False)
        distances[far] = tree.query(points[far] * size)[0]
    return distances


def _look_around(
    points: Points, others: Points, scale: tuple[float, ...]
) -> tuple[Floats, npt.NDArray[np.intp]]:
    """Distances to others within `_NEAR` of the finest spacing, and the points without any."""
    low, high = others.min(0) - _NEAR, others.max(0) + _NEAR
    shape = tuple(high - low + 1 + 2 * _NEAR)  # a point in the box may look beyond it
    there = np.zeros(shape, dtype=bool)
    there[tuple((others - low + _NEAR).T)] = True
    there = there.ravel()
    distances = np.full(len(points), np.inf)
    left = np.flatnonzero(((points >= low) & (points <= high)).all(1))
    place = np.ravel_multi_index(tuple((points[left] - low + _NEAR).T), shape)
    for distance, step in _steps(shape, scale):
        hit = there.take(place + step)
        distances[left[hit]] = distance
        left, place = left[~hit], place[~hit]
        if left.size == 0:
            break
    return distances, np.flatnonzero(np.isinf(distances))


def _steps(shape: tuple[int, ...], scale: tuple[float, ...]) -> list[tuple[float, int]]:
    """The voxels within reach, nearest first: distance, and step in a flat array of this shape.

    The reach is `_NEAR` times the finest spacing: no voxel that near is further than `_NEAR` along
    any axis.
    """
    axes = len(shape)
    offsets = np.indices((2 * _NEAR + 1,) * axes).reshape(axes, -1).T - _NEAR
    distance = np.sqrt(((offsets * np.asarray(scale)) ** 2).sum(1))
    strides = np.array([math.prod(shape[axis + 1 :]) for axis in range(axes)])
    near = np.flatnonzero(distance <= _NEAR * min(scale))
    near = near[np.argsort(distance[near], kind="stable")]
    return list(zip(distance[near].tolist(), (offsets[near] @ strides).tolist(), strict=True))
