"""Cutting large arrays into blocks of voxels that fit a CPU's cache."""

import math
from collections.abc import Iterator
from typing import TypeAlias

from segcal.core.arrays import Array

Block: TypeAlias = tuple[int | slice, ...]  # an index into the spatial axes

# Values of one block. Measured: 2^17 stays in the cache and takes 0.6 of the time of 2^20.
BLOCK_VALUES = 1 << 17


def iter_blocks(space: tuple[int, ...], max_voxels: int) -> Iterator[Block]:
    """Indices of blocks of at most `max_voxels` voxels, in order, of nearly equal size.

    Example:
        >>> list(iter_blocks((3, 4), 8))
        [(slice(0, 2, None),), (slice(2, 4, None),)]
    """
    if not space:
        yield ()
        return
    row = max(math.prod(space[1:]), 1)
    if row > max_voxels:
        for i in range(space[0]):
            yield from ((i, *rest) for rest in iter_blocks(space[1:], max_voxels))
        return
    parts = max(math.ceil(space[0] / (max_voxels // row)), 1)
    rows = max(math.ceil(space[0] / parts), 1)
    for start in range(0, space[0], rows):
        yield (slice(start, start + rows),)


def take_block(array: Array, block: Block, spatial_axes: int) -> Array:
    """The voxels of a block: (n,), or (K, n) of an array with a class axis first."""
    if array.ndim == spatial_axes:
        return array[block].reshape(-1)
    return array[(slice(None), *block)].reshape(array.shape[0], -1)
