"""Resampling, and the way back to the original grid."""

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import distance_transform_edt

from helpers.trees import blob, oblique
from segcal.data import Grid, GridRecipe, write_nifti
from segcal.data.grid import plan_grid
from segcal.data.resample import (
    area_weights,
    center_start,
    crop_or_pad,
    linear_weights,
    present,
    resize_labels,
    resize_linear,
)

sizes = st.integers(1, 40)


@given(sizes, sizes)
def test_weights_are_an_average(n_in: int, n_out: int) -> None:
    weights = linear_weights(n_in, n_out)
    assert weights.shape == (n_out, n_in)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-6)
    if n_in == n_out:
        np.testing.assert_array_equal(weights, np.eye(n_in, dtype=np.float32))


def test_linear_upsampling_by_hand() -> None:
    # Centres of 4 voxels over 2: -0.25, 0.25, 0.75, 1.25 in input coordinates.
    np.testing.assert_allclose(
        resize_linear(np.array([0.0, 4.0]), (4,)), [0.0, 1.0, 3.0, 4.0], atol=1e-6
    )


def test_downsampling_averages_instead_of_picking() -> None:
    stripes = np.tile([0.0, 1.0], 32)
    assert np.abs(resize_linear(stripes, (16,)) - 0.5).max() < 0.13
    constant = np.full((3, 9, 7), 2.5)
    np.testing.assert_allclose(resize_linear(constant, (4, 20)), 2.5, atol=1e-6)


def test_labels_take_the_largest_share() -> None:
    labels = np.array([1, 1, 0, 2, 2, 2])
    np.testing.assert_array_equal(resize_labels(labels, (2,)), [1, 2])
    np.testing.assert_array_equal(resize_labels(labels, (6,)), labels)
    # A tie goes to the voxel under the center, whichever label it has.
    np.testing.assert_array_equal(resize_labels(np.array([3, 1]), (1,)), [1])
    np.testing.assert_array_equal(resize_labels(np.array([1, 3]), (1,)), [3])


@pytest.mark.parametrize(("n_in", "n_out"), [(448, 224), (512, 192), (100, 30), (216, 224)])
def test_structures_keep_their_width(n_in: int, n_out: int) -> None:
    """Bars of every width and place: on average neither wider nor narrower, in input voxels."""
    off = []
    for width in range(4, 40, 3):
        for first in range(8, 24):
            labels = np.zeros(n_in, dtype=np.uint8)
            labels[first : first + width] = 1
            off.append(resize_labels(labels, (n_out,)).sum() * n_in / n_out - width)
    assert abs(np.mean(off)) < 0.1


@given(sizes, sizes)
def test_area_weights_distribute_every_voxel(n_in: int, n_out: int) -> None:
    weights = area_weights(n_in, n_out)
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(weights.sum(axis=0), n_out / n_in, rtol=1e-4)


def test_labels_present_are_counted_or_sorted() -> None:
    values = [-3, 0, 7, 120]
    for dtype in (np.int8, np.int16, np.int32, np.int64):
        assert present(np.array([values, values[::-1]], dtype=dtype)) == values
    assert present(np.array([255, 0, 4], dtype=np.uint8)) == [0, 4, 255]
    assert present(np.array([65535, 0], dtype=np.uint16)) == [0, 65535]


@given(st.lists(st.tuples(sizes, sizes), min_size=1, max_size=3))
def test_padding_undoes_cropping(pairs: list[tuple[int, int]]) -> None:
    size, shape = [p[0] for p in pairs], [p[1] for p in pairs]
    start = center_start(size, shape)
    array = np.arange(1, np.prod(size) + 1).reshape(size)
    box = crop_or_pad(array, start, shape, 0)
    back = crop_or_pad(box, [-s for s in start], size, 0)
    assert box.shape == tuple(shape)
    assert np.isin(back, [0, *array.ravel()]).all()
    np.testing.assert_array_equal(back[back > 0], array[back > 0])
    if all(s >= n for n, s in pairs):
        np.testing.assert_array_equal(back, array)


RECIPES = {
    "acdc": GridRecipe(resize=(None, 224, 224), crop=(None, 192, 192)),
    "flare": GridRecipe(resize=(30, 192, 192)),
    "msd": GridRecipe(crop=(None, 64, 64)),
    "native": GridRecipe(),
}


def make_grid(recipe: str, shape: tuple[int, int, int] = (17, 61, 53)) -> Grid:
    affine = oblique((0.9, 1.3, 4.0))
    return plan_grid(shape, (4.0, 1.3, 0.9), affine, RECIPES[recipe])


@pytest.mark.parametrize("recipe", RECIPES)
def test_voxels_keep_their_place_in_millimeters(recipe: str) -> None:
    """A stored image of world coordinates must agree with the stored affine."""
    grid = make_grid(recipe)
    z, y, x = np.meshgrid(*map(np.arange, grid.original_shape), indexing="ij")
    index = np.stack([x, y, z, np.ones_like(x)]).astype(float)
    world = np.einsum("ij,jzyx->izyx", np.array(grid.affine), index)[:3]
    stored = grid.apply_image(world)
    # Inside, away from borders where linear interpolation has only one neighbor, and padding.
    inner = [
        slice(max(0, -s) + 3, min(n, r - s) - 3)
        for s, n, r in zip(grid.start, grid.shape, grid.resized_shape, strict=True)
    ]
    z, y, x = np.meshgrid(*map(np.arange, grid.shape), indexing="ij")
    index = np.stack([x, y, z, np.ones_like(x)]).astype(float)
    expected = np.einsum("ij,jzyx->izyx", grid.stored_affine, index)[:3]
    box = (slice(None), *inner)
    assert stored[box].size > 0
    assert np.abs(stored - expected)[box].max() < 0.02
    norms = np.sqrt((grid.stored_affine[:3, :3] ** 2).sum(axis=0))
    np.testing.assert_allclose(norms[::-1], grid.spacing_mm, rtol=1e-6)


@pytest.mark.parametrize("recipe", RECIPES)
def test_labels_return_within_half_a_voxel(recipe: str) -> None:
    """Every boundary voxel of the round trip is at most half a (coarser) voxel off."""
    grid = make_grid(recipe)
    labels = blob((53, 61, 17), (1, 2)).T.copy()
    # Voxels that the ACDC crop removes are lost.
    labels[:, :6], labels[:, -6:], labels[..., :6], labels[..., -6:] = 0, 0, 0, 0
    back = grid.restore_labels(grid.apply_labels(labels))
    assert back.shape == labels.shape
    if recipe in ("native", "msd"):
        np.testing.assert_array_equal(back, labels)
    step = np.maximum(1.0, np.array(grid.original_shape) / np.array(grid.resized_shape))
    for value in (1, 2):
        # Distances between voxel centers and the mask's edge, in voxels of the coarser grid.
        before, after = labels == value, back == value
        outside = distance_transform_edt(~before, sampling=1 / step)[after]
        inside = distance_transform_edt(~after, sampling=1 / step)[before]
        # A voxel center one step outside the mask lies half a voxel from its edge.
        assert max(outside.max(), inside.max()) - 0.5 <= 0.5 + 1e-9


def test_coordinates_return_within_half_a_voxel() -> None:
    shape = (17, 61, 53)
    ramps = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij")).astype(float)
    recipe = GridRecipe(resize=(12, 40, 200))
    grid = plan_grid(shape, (4.0, 1.3, 0.9), oblique((0.9, 1.3, 4.0)), recipe)
    back = resize_linear(grid.apply_image(ramps), shape)
    assert np.abs(back - ramps).max() <= 0.5


def test_restored_probabilities_sum_to_one() -> None:
    grid = make_grid("acdc")
    probs = np.random.default_rng(0).dirichlet([1, 1, 1], size=grid.shape).transpose(3, 0, 1, 2)
    back = grid.restore_probs(probs.astype(np.float32))
    assert back.shape == (3, *grid.original_shape)
    np.testing.assert_allclose(back.sum(axis=0), 1, atol=1e-5)
    # Outside the crop it is background with certainty.
    np.testing.assert_allclose(back[0, :, 0, 0], 1, atol=1e-5)


def test_wrong_shapes_are_named() -> None:
    grid = make_grid("acdc")
    with pytest.raises(ValueError, match="`labels`"):
        grid.restore_labels(np.zeros((3, 3, 3), dtype=np.uint8))
    with pytest.raises(ValueError, match="`probs`"):
        grid.restore_probs(np.zeros((2, 3, 3, 3), dtype=np.float32))
    with pytest.raises(ValueError, match="`array`"):
        write_nifti("x.nii.gz", np.zeros((3, 3, 3)), grid)
    with pytest.raises(ValueError, match="`path`"):
        write_nifti("x.png", np.zeros(grid.original_shape), grid)


@settings(max_examples=20, deadline=None)
@given(st.tuples(*[st.integers(2, 30)] * 3), st.tuples(*[st.integers(2, 30)] * 3))
def test_extent_in_millimeters_never_changes(
    shape: tuple[int, int, int], resized: tuple[int, int, int]
) -> None:
    grid = plan_grid(shape, (3.0, 1.0, 0.5), np.diag([0.5, 1, 3, 1]), GridRecipe(resize=resized))
    np.testing.assert_allclose(
        np.array(grid.spacing_mm) * resized, np.array([3.0, 1.0, 0.5]) * shape
    )


def test_written_file_has_the_source_header(tmp_path: Path) -> None:
    """Also where the affine is a placeholder and pixdim holds the spacing (ACDC)."""
    grid = plan_grid((4, 6, 5), (10.0, 1.5, 1.25), np.eye(4), GridRecipe())
    labels = np.arange(120, dtype=np.uint8).reshape(4, 6, 5)
    write_nifti(tmp_path / "out.nii.gz", labels, grid)
    image = nib.load(tmp_path / "out.nii.gz")
    np.testing.assert_array_equal(np.asanyarray(image.dataobj), labels.T)
    np.testing.assert_array_equal(image.affine, np.eye(4))
    np.testing.assert_allclose(image.header.get_zooms(), (1.25, 1.5, 10.0))
    for before, kept in ((np.int64, np.int32), (np.bool_, np.uint8), (np.float16, np.float32)):
        write_nifti(tmp_path / "out.nii.gz", labels.astype(before), grid)
        stored = nib.load(tmp_path / "out.nii.gz")
        assert stored.get_data_dtype() == kept
        np.testing.assert_array_equal(np.asanyarray(stored.dataobj), labels.astype(before).T)
    with pytest.raises(ValueError, match="32-bit"):
        write_nifti(tmp_path / "out.nii.gz", labels.astype(np.int64) << 40, grid)
    probs = np.random.default_rng(0).random((3, 4, 6, 5)).astype(np.float32)
    write_nifti(tmp_path / "probs.nii", probs, grid)
    assert nib.load(tmp_path / "probs.nii").shape == (5, 6, 4, 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.nii.gz", "probs.nii"]


def test_a_common_spacing_keeps_single_slices() -> None:
    recipe = GridRecipe(spacing_mm=(4.0, 1.0, 2.0))
    assert recipe.shapes((6, 10, 10), (8.0, 1.5, 1.0))[0] == (12, 15, 5)
    assert recipe.shapes((1, 10, 10), (8.0, 1.0, 2.0))[0] == (1, 10, 10)
