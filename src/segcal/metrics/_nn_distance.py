"""Nearest distances between two sets of voxels."""

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.int64]  # (n, axes), voxel indices; fastest if columns are contiguous
Floats = npt.NDArray[np.float64]

# Most surface voxels of a useful prediction have a voxel of the truth among so many neighbors.
_NEIGHBORS, _CLOSE = 260, 33
# Fewer pairs of points than this are all compared: a tree takes longer to build.
_FEW_PAIRS = 100_000
# The largest distance of a sweep, in voxels; its cost grows with the distance.
_FAR = 40
# One point in this many is examined to choose the method.
_PROBE = 64
# A sweep is used if it has fewer voxel steps per point than this. Measured: one search of the tree
# takes as long as 400 steps where surfaces are close and small, and 10^4 where they are far apart;
# 4,000 was faster than 2,000 for large structures 14 voxels apart (0.19 instead of 0.53 s).
_SWEEP_PER_SEARCH = 4_000
# Marks voxels without a distance of at most _FAR. Its square plus the squares of two more axes fits
# into 16 bits.
_NOTHING = 180


def nearest(points: Points, others: Points, scale: tuple[float, ...]) -> Floats:
    """Exact distance of each point to the nearest of the others; infinite without others.

    Close surfaces: examine neighbors in order of distance. Surfaces some voxels apart, with cubic
    voxels: sweep a limited distance transform over the box. Remaining points: a k-d tree. Measured:
    8 voxels apart the sweep takes half of the time of the tree, 2 apart the neighbors half of it.
    """
    if not len(points) or not len(others):
        return np.full(len(points), np.inf)
    reach = _reach_of_sweep(points, others, scale)
    if reach:
        distances = scale[0] * _sweep(points, others, reach)
    else:
        distances = _examine_neighbors(points, others, scale)
    far = np.flatnonzero(np.isinf(distances))
    if far.size:
        distances[far] = _search(points[far], others, scale)
    return distances


def _search(points: Points, others: Points, scale: tuple[float, ...]) -> Floats:
    from scipy.spatial import KDTree
    from scipy.spatial.distance import cdist

    size: Floats = np.asarray(scale)
    if len(points) * len(others) < _FEW_PAIRS:
        return np.asarray(cdist(points * size, others * size).min(1))
    tree = KDTree(others * size, leafsize=64, balanced_tree=False, compact_nodes=False)
    return np.asarray(tree.query(points * size)[0])


def _reach_of_sweep(points: Points, others: Points, scale: tuple[float, ...]) -> int:
    """Distance of the sweep, in voxels; 0 if another method is faster or spacing is unequal."""
    some = points[::_PROBE]
    if len(some) < 16 or len(set(scale)) > 1:
        return 0
    unit = (1.0,) * len(scale)
    distances = _examine_neighbors(some, others, unit)
    far = np.flatnonzero(np.isinf(distances))
    if 3 * far.size < len(some):
        return 0
    # A sample of the others gives an upper bound.
    distances[far] = _search(some[far], others[::8], unit)
    reach = math.ceil(np.quantile(distances, 0.98)) + 1
    box = math.prod(_box_of_sweep(points, others, reach)[1])
    worth = box * (reach + 4) < _SWEEP_PER_SEARCH * len(points)
    return reach if reach <= _FAR and worth else 0


def _box_of_sweep(points: Points, others: Points, reach: int) -> tuple[Points, tuple[int, ...]]:
    """First voxel and shape of the box that holds the others and all points within `reach`."""
    (start, stop), (first, last) = _extent(others), _extent(points)
    low = np.maximum(start - reach, np.minimum(first, start))
    high = np.minimum(stop + reach, np.maximum(last, stop))
    low[-1], high[-1] = low[-1] - reach, high[-1] + reach  # neighbors may lie beyond the box
    return low, tuple((high - low + 1).tolist())


def _extent(points: Points) -> tuple[Points, Points]:
    """Smallest and largest index along each axis, by columns, which is many times faster."""
    return np.array([c.min() for c in points.T]), np.array([c.max() for c in points.T])


def _within(points: Points, low: Points, high: Points) -> npt.NDArray[np.intp]:
    """Indices of the points in a box, ends included."""
    inside = np.ones(len(points), dtype=bool)
    for column, start, stop in zip(points.T, low, high, strict=True):
        inside &= (column >= start) & (column <= stop)
    return np.flatnonzero(inside)


def _flat(points: Points, origin: Points, shape: tuple[int, ...]) -> Points:
    """Index of each point in the flattened box; points outside have one without a meaning."""
    flat = np.zeros(len(points), np.int64)
    for column, start, size in zip(points.T, origin, shape, strict=True):
        flat *= size
        flat += column - start
    return flat


def _sweep(points: Points, others: Points, reach: int) -> Floats:
    """Distances in voxels of points to others that are within `reach`; infinite for the rest."""
    # The square of a distance is a sum over axes, so its minimum is found axis by axis: the first
    # by a sweep up and down, the second in slabs (which stay in the cache), the last at the points.
    axes = points.shape[1]
    low, shape = _box_of_sweep(points, others, reach)
    steps = np.full(shape, _NOTHING, np.uint8)
    steps.ravel()[_flat(others, low, shape)] = 0
    if axes > 1:
        for i in range(1, shape[0]):
            np.minimum(steps[i], steps[i - 1] + np.uint8(1), out=steps[i])
        for i in range(shape[0] - 2, -1, -1):
            np.minimum(steps[i], steps[i + 1] + np.uint8(1), out=steps[i])
        # From here on only planes with points are needed.
        begin, end = max(int(points[:, 0].min() - low[0]), 0), int(points[:, 0].max() - low[0]) + 1
        steps, low[0] = steps[begin:end], low[0] + begin
        shape = steps.shape
    squares = steps.astype(np.uint16)
    squares *= squares
    if axes > 2:
        for slab in squares:
            _minimize_along_rows(slab, reach)
    margin = np.array([0] * (axes - 1) + [reach])
    inside = _within(points, low + margin, low + np.array(shape) - 1 - margin)
    place = _flat(points, low, shape)[inside]
    flat = squares.ravel()
    best = flat.take(place)
    for k in range(1, reach + 1):
        square = np.uint16(k * k)
        np.minimum(best, flat.take(place - k) + square, out=best)
        np.minimum(best, flat.take(place + k) + square, out=best)
    distances = np.full(len(points), np.inf)
    distances[inside] = np.where(best <= reach**2, np.sqrt(best, dtype=np.float64), np.inf)
    return distances


def _minimize_along_rows(slab: npt.NDArray[np.uint16], reach: int) -> None:
    """slab[i] = min over |j| <= reach of slab[i + j] + j², in place."""
    before, raised = slab.copy(), np.empty_like(slab)
    for j in range(1, min(reach, len(slab) - 1) + 1):
        np.add(before, np.uint16(j * j), out=raised)
        np.minimum(slab[j:], raised[:-j], out=slab[j:])
        np.minimum(slab[:-j], raised[j:], out=slab[:-j])


def _examine_neighbors(points: Points, others: Points, scale: tuple[float, ...]) -> Floats:
    """Distances to the nearest of the others if it is in the `_neighborhood`; else infinite."""
    offsets, away = _neighborhood(scale)
    margin = offsets.max(0)
    start, stop = _extent(others)
    low, high = start - margin, stop + margin
    shape = tuple((high - low + 1 + 2 * margin).tolist())  # neighbors may lie beyond the box
    occupied = np.zeros(math.prod(shape), dtype=bool)
    occupied[_flat(others, low - margin, shape)] = True
    steps = _flat(offsets, np.zeros_like(low), shape)
    distances = np.full(len(points), np.inf)
    left = _within(points, low, high)
    place = _flat(points, low - margin, shape)[left]
    ends = sorted({min(end, len(steps)) for end in (0, 1, 7, _CLOSE, _NEIGHBORS)})
    for first, last in pairwise(ends):
        # Several neighbors at a time: one numpy call each would take longer than looking at some
        # in vain.
        hit = occupied.take(place[:, None] + steps[first:last])
        closest = hit.argmax(1)
        found = hit[np.arange(len(hit)), closest]
        distances[left[found]] = away[first + closest[found]]
        left, place = left[~found], place[~found]
        if left.size == 0 or (last == _CLOSE and 2 * left.size > len(points)):
            break  # if most of them are farther away, a tree is faster
    return distances


@lru_cache
def _neighborhood(scale: tuple[float, ...]) -> tuple[Points, Floats]:
    """Offsets and distances of all voxels within a radius of some voxels, nearest first.

    The radius is the largest with at most `_NEIGHBORS` voxels: 4 voxels if they are cubic, 9 in the
    slice if slices are thick.
    """
    for radius in range(9, 0, -1):
        reach = [math.floor(radius * min(scale) / s) for s in scale]
        offsets = np.indices([2 * n + 1 for n in reach]).reshape(len(scale), -1).T - reach
        distances = np.sqrt(((offsets * np.asarray(scale)) ** 2).sum(1))
        order = np.argsort(distances, kind="stable")
        order = order[distances[order] <= radius * min(scale)]
        if len(order) <= _NEIGHBORS:
            break
    return offsets[order], distances[order]
