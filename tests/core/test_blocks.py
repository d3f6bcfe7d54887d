"""Blocks of voxels cover an array exactly once, in order, within the size limit."""

import numpy as np
import pytest
import torch

from segcal.core.blocks import iter_blocks, take_block


@pytest.mark.parametrize("space", [(1,), (7,), (5, 6), (4, 3, 5), (2, 50, 3), (3, 0, 2)])
@pytest.mark.parametrize("max_voxels", [1, 4, 10, 1000])
def test_blocks_partition_the_space(space: tuple[int, ...], max_voxels: int) -> None:
    array = np.arange(np.prod(space)).reshape(space)
    parts = [take_block(array, block, len(space)) for block in iter_blocks(space, max_voxels)]
    assert all(len(part) <= max_voxels for part in parts)
    np.testing.assert_array_equal(np.concatenate([[], *parts]), array.ravel())


def test_blocks_are_of_nearly_equal_size() -> None:
    sizes = [b[0].stop - b[0].start for b in iter_blocks((100,), 30)]  # type: ignore[union-attr]
    assert sizes == [25, 25, 25, 25]


def test_class_axis_and_tensors() -> None:
    values = np.random.default_rng(0).normal(size=(3, 4, 5))
    for block in iter_blocks((4, 5), 7):
        taken = take_block(values, block, 2)
        assert taken.shape[0] == 3
        np.testing.assert_array_equal(taken, take_block(torch.from_numpy(values), block, 2))
