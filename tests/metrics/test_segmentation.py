"""Overlap and surfaces, worked by hand and against brute force."""

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import binary_erosion
from scipy.spatial.distance import cdist

from helpers.metric_samples import ellipsoid
from segcal.metrics import _nn_distance, all_surface_distances, confusion, dsc, surface_distances
from segcal.metrics.surface import SurfaceDistances

EMPTY = np.zeros((6, 8), dtype=bool)


def square(top: int, left: int, size: int = 3) -> np.ndarray:
    mask = EMPTY.copy()
    mask[top : top + size, left : left + size] = True
    return mask


# Overlap


def test_dsc_by_hand_for_classes_and_groups() -> None:
    labels = np.array([0, 1, 1, 2, 3, 3, 0, 0])
    target = np.array([0, 1, 2, 2, 3, 0, 3, 3])
    assert dsc(labels, target, 5) == pytest.approx({"1": 2 / 3, "2": 2 / 3, "3": 2 / 5, "4": 1.0})
    groups = {"whole": (1, 2, 3), "core": (1, 3)}
    assert dsc(labels, target, 5, groups=groups) == pytest.approx(
        {"whole": 2 * 4 / (5 + 6), "core": 2 * 2 / (4 + 4)}
    )
    assert confusion(labels, target, 5).sum() == 8
    assert confusion(labels, target, 5)[2].tolist() == [0, 1, 1, 0, 0]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_dsc_knows_neither_the_order_of_voxels_nor_the_names_of_classes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, target = rng.integers(0, 4, (2, 100))
    one = dsc(labels, target, 4, groups={str(k): (k,) for k in range(4)})
    voxels, names = rng.permutation(100), rng.permutation(4)
    assert dsc(labels[voxels], target[voxels], 4) == {k: one[k] for k in "123"}
    renamed = dsc(
        names[labels], names[target], 4, groups={str(k): (int(names[k]),) for k in range(4)}
    )
    assert renamed == one


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32, np.uint64])
def test_any_integer_holds_labels(dtype: type) -> None:
    labels, target = np.array([0, 1, 1, 2]), np.array([0, 1, 2, 2])
    expected = dsc(labels, target, 3)
    assert dsc(labels.astype(dtype), target.astype(dtype), 3) == expected
    assert dsc(labels.astype(dtype), target, 3) == expected
    surfaces = all_surface_distances(labels.astype(dtype), target.astype(dtype), 3)
    assert surfaces["1"].hausdorff() == 1.0


def test_dsc_of_empty_masks() -> None:
    nothing, something = np.zeros(4, int), np.array([0, 0, 1, 1])
    for policy in ("nan", "diagonal"):
        assert dsc(nothing, nothing, 2, empty=policy) == {"1": 1.0}
        assert dsc(something, nothing, 2, empty=policy) == {"1": 0.0}
        assert dsc(nothing, something, 2, empty=policy) == {"1": 0.0}
    assert dsc(something, nothing, 2, empty="paper") == {"1": 1.0}
    assert dsc(nothing, something, 2, empty="paper") == {"1": 0.0}


def test_ignored_voxels_leave_dsc_and_surfaces() -> None:
    labels, target = np.array([1, 1, 0, 0, 0]), np.array([-100, 1, 0, 0, 0])
    assert dsc(labels, target, 2) == {"1": 1.0}
    assert all_surface_distances(labels, target, 2)["1"].hausdorff() == 0.0
    seven = np.where(target == -100, 7, target)
    assert dsc(labels, seven, 2, ignore_index=7) == {"1": 1.0}
    assert all_surface_distances(labels, seven, 2, ignore_index=7)["1"].hausdorff() == 0.0


def test_wrong_label_maps_are_refused() -> None:
    a = np.array([0, 1, 2])
    for function in (dsc, all_surface_distances, confusion):
        with pytest.raises(ValueError, match=r"`labels` to hold labels in 0..1 .*but got 2"):
            function(a, a.clip(0, 1), 2)
        with pytest.raises(ValueError, match=r"`target` to hold labels .*but got -3, 9"):
            function(a, np.array([-3, 9, 0]), 3)
        with pytest.raises(ValueError, match="`labels` to have the shape"):
            function(a, a[1:], 3)
        with pytest.raises(TypeError, match="`labels` to hold integer labels"):
            function(a / 2, a, 3)
        with pytest.raises(ValueError, match="`num_classes`"):
            function(a, a, 0)
    for function in (dsc, all_surface_distances):
        with pytest.raises(ValueError, match="`empty` to be one of 'nan', 'diagonal', 'paper'"):
            function(a, a, 3, empty="zero")
        with pytest.raises(ValueError, match="distinct labels"):
            function(a, a, 3, groups={"x": (1, 1)})
        with pytest.raises(ValueError, match=r"`groups\['x'\]` to be an integer .* at most 2"):
            function(a, a, 3, groups={"x": (3,)})
        with pytest.raises(TypeError, match="`groups` to map names to labels"):
            function(a, a, 3, groups=[1, 2])


# Surfaces


def test_surface_read_outs_by_hand() -> None:
    """Two 1×4 bars, the second two voxels longer: directed distances 0 0 0 0 and 0 0 0 0 1 2."""
    a, b = np.zeros((2, 10), dtype=bool)
    a, b = a.reshape(1, 10), b.reshape(1, 10)
    a[0, 2:6], b[0, 2:8] = True, True
    d = surface_distances(a, b, spacing_mm=(5.0, 0.5))
    assert d.to_target.tolist() == [0, 0, 0, 0]
    assert d.to_labels.tolist() == [0, 0, 0, 0, 0.5, 1.0]
    assert d.hausdorff() == 1.0
    assert d.hausdorff(50.0) == 0.0
    assert d.hd95() == pytest.approx(0.5 + 0.5 * 0.55)  # rank .95·9 = 8.55 of ten distances
    assert d.hd95("max") == pytest.approx(0.5 + 0.5 * 0.75)  # rank .95·5 = 4.75 of six
    assert d.assd() == pytest.approx(1.5 / 10)
    assert d.nsd(0.0) == pytest.approx(8 / 10)
    assert d.nsd(0.5) == pytest.approx(9 / 10)
    assert d.nsd(1.0) == 1.0
    voxels = surface_distances(a, b, spacing_mm=(5.0, 0.5), units="voxel")
    assert voxels.hausdorff() == 2.0
    assert voxels.diagonal == pytest.approx(math.sqrt(101))


def test_empty_policies_of_distances() -> None:
    full = square(1, 1)
    diagonal = math.hypot(6 * 2.0, 8 * 0.5)

    def read(labels, target, empty):
        d = surface_distances(labels, target, (2.0, 0.5), empty=empty)
        assert d.undefined
        same = {d.hausdorff(), d.hd95(), d.hd95("max"), d.assd()} if d.hd95() == d.hd95() else {}
        return (next(iter(same)) if len(same) == 1 else d.hd95()), d.nsd(1.0)

    for labels, target, empty, distance, nsd in (
        (EMPTY, EMPTY, "nan", math.nan, math.nan),
        (full, EMPTY, "nan", math.nan, 0.0),
        (EMPTY, full, "nan", math.nan, 0.0),
        (EMPTY, EMPTY, "diagonal", math.nan, math.nan),
        (full, EMPTY, "diagonal", diagonal, 0.0),
        (EMPTY, full, "diagonal", diagonal, 0.0),
        (EMPTY, EMPTY, "paper", 0.0, 1.0),
        (full, EMPTY, "paper", 0.0, 1.0),
        (EMPTY, full, "paper", math.nan, 0.0),
    ):
        assert read(labels, target, empty) == pytest.approx((distance, nsd), nan_ok=True)


def test_single_voxel_and_image_border() -> None:
    a, b = EMPTY.copy(), EMPTY.copy()
    a[0, 0], b[5, 7] = True, True
    assert surface_distances(a, b).hausdorff() == pytest.approx(math.hypot(5, 7))
    # The border counts as outside: of a mask that fills the image, the rim is the surface.
    full = np.ones((4, 5), dtype=bool)
    assert surface_distances(full, full).to_target.size == 14


def brute_force(a: np.ndarray, b: np.ndarray, spacing: tuple[float, ...]):
    points = [np.argwhere(m & ~binary_erosion(m)) * np.array(spacing) for m in (a, b)]
    d = cdist(*points)
    return d.min(1), d.min(0)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), axes=st.integers(1, 3), dense=st.booleans())
def test_distances_agree_with_brute_force(seed: int, axes: int, dense: bool) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(3, 14, axes).tolist())
    spacing = tuple(rng.choice([0.5, 1.0, 1.5, 10.0], axes).tolist())
    a, b = (rng.random((2, *shape)) < (0.7 if dense else 0.05)).astype(bool)
    a.flat[0], b.flat[-1] = True, True
    d = surface_distances(a, b, spacing)
    ours, theirs = brute_force(a, b, spacing)
    np.testing.assert_allclose(np.sort(d.to_target), np.sort(ours), atol=1e-9)
    np.testing.assert_allclose(np.sort(d.to_labels), np.sort(theirs), atol=1e-9)
    # Scaling the spacing scales the distances, and a tolerance with it.
    scaled = surface_distances(a, b, tuple(3 * s for s in spacing))
    assert scaled.hd95() == pytest.approx(3 * d.hd95())
    assert scaled.nsd(3 * 1.5) == pytest.approx(d.nsd(1.5))
    # Swapping the masks swaps the directions.
    assert surface_distances(b, a, spacing).assd() == pytest.approx(d.assd())


@pytest.mark.parametrize("percentile", [0.0, 37.3, 95.0, 100.0])
@pytest.mark.parametrize("size", [1, 2, 20, 333])
def test_percentiles_are_those_of_numpy(size: int, percentile: float) -> None:
    rng = np.random.default_rng(size)
    one, other = rng.random(size), rng.random(2 * size)
    distances = SurfaceDistances(one, other, 1.0)
    both = np.percentile(np.concatenate([one, other]), percentile)
    assert distances.hausdorff(percentile) == pytest.approx(both, abs=1e-12)
    larger = max(np.percentile(one, percentile), np.percentile(other, percentile))
    assert distances.hausdorff(percentile, "max") == pytest.approx(larger, abs=1e-12)


def test_boxes_of_few_and_of_many_classes_agree() -> None:
    """Boxes of few classes in a large map come from a pass for each."""
    rng = np.random.default_rng(0)
    target = np.zeros((60, 60, 60), np.uint8)
    for k in (1, 2, 3):
        low = rng.integers(0, 30, 3)
        target[tuple(slice(a, a + 25) for a in low)] = k
    target[0, 0, 0] = target[-1, -1, -1] = 3  # the cropped map is large
    labels = np.roll(target, 2, axis=1)
    few, many = (all_surface_distances(labels, target, n) for n in (5, 9))
    assert few["4"].undefined
    for name in ("1", "2", "3"):
        assert few[name].to_target.size > 1000
        np.testing.assert_array_equal(few[name].to_target, many[name].to_target)
        np.testing.assert_array_equal(few[name].to_labels, many[name].to_labels)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), axes=st.integers(1, 3), reach=st.integers(1, 40))
def test_a_sweep_finds_what_a_search_finds(seed: int, axes: int, reach: int) -> None:
    rng = np.random.default_rng(seed)
    points, others = (
        rng.integers(0, rng.integers(1, 60, axes), (rng.integers(1, 200), axes)) for _ in range(2)
    )
    swept = _nn_distance._sweep(points, others, reach)
    searched = cdist(points, others).min(1)
    near = searched <= reach
    assert (np.isinf(swept) == ~near).all()
    np.testing.assert_allclose(swept[near], searched[near], rtol=1e-14)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), axes=st.integers(1, 3), size=st.integers(2, 60))
def test_neighbors_and_search_find_the_nearest(seed: int, axes: int, size: int) -> None:
    """From dense points, all found among neighbors, to sparse ones; few and many pairs."""
    rng = np.random.default_rng(seed)
    scale = tuple(rng.choice([0.7, 1.0, 10.0], axes).tolist())
    points, others = (rng.integers(0, size, (rng.integers(1, 800), axes)) for _ in range(2))
    found = _nn_distance.nearest(points, others, scale)
    np.testing.assert_allclose(found, cdist(points * scale, others * scale).min(1), rtol=1e-12)


@pytest.mark.parametrize("shift", [1, 6, 12, 40])
def test_all_ways_give_the_same_distances(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way is chosen by how far surfaces are apart; some points are left to the tree."""
    ball = ellipsoid((70, 110, 110), (30, 40, 40), (20, 25, 25))
    moved = np.roll(ball, (shift // 2, shift, shift // 3), (0, 1, 2))
    moved[60, 100, 100] = True
    ways = []
    sweep = _nn_distance._sweep
    monkeypatch.setattr(_nn_distance, "_sweep", lambda *a: ways.append(a[2]) or sweep(*a))
    chosen = surface_distances(moved, ball, 1.5)
    assert bool(ways) == (shift in (6, 12))
    monkeypatch.setattr(_nn_distance, "_reach_of_sweep", lambda *a: 0)
    searched = surface_distances(moved, ball, 1.5)
    np.testing.assert_allclose(chosen.to_target, searched.to_target, rtol=1e-13)
    np.testing.assert_allclose(chosen.to_labels, searched.to_labels, rtol=1e-13)


def test_label_maps_and_groups_equal_their_masks() -> None:
    rng = np.random.default_rng(0)
    target = np.zeros((12, 30, 30), int)
    for k in (1, 2, 3):
        target[ellipsoid(target.shape, (6, 8 * k, 10 + 3 * k), (4, 5, 6))] = k
    labels = np.roll(target, (1, -2), (0, 1))
    labels[rng.random(labels.shape) < 0.001] = 2
    spacing = (3.0, 1.0, 0.8)
    groups = {"2": (2,), "13": (1, 3), "rest": (0,), "missing": (4,)}
    found = all_surface_distances(labels, target, 5, spacing, groups=groups)
    for name, members in groups.items():
        mask = surface_distances(np.isin(labels, members), np.isin(target, members), spacing)
        np.testing.assert_allclose(found[name].to_target, mask.to_target, rtol=1e-12)
        np.testing.assert_allclose(found[name].to_labels, mask.to_labels, rtol=1e-12)
    assert list(all_surface_distances(labels, target, 5)) == ["1", "2", "3", "4"]
    tensor = all_surface_distances(torch.from_numpy(labels), torch.from_numpy(target), 5, spacing)
    assert tensor["2"].hd95() == pytest.approx(found["2"].hd95())


def test_a_hundred_classes_cost_no_pass_each() -> None:
    target = np.zeros((40, 200, 200), np.uint8)
    for k in range(1, 101):
        i, j = divmod(k - 1, 10)
        target[10:20, 20 * i + 3 : 20 * i + 12, 20 * j + 3 : 20 * j + 12] = k
    labels = np.roll(target, 1, 2)
    times = []
    for _ in range(3):  # on a busy machine one of them is a fair one
        start = time.perf_counter()
        found = all_surface_distances(labels, target, 101)
        times.append(time.perf_counter() - start)
    start = time.perf_counter()
    for k in range(1, 11):
        surface_distances(labels == k, target == k)
    a_volume_each = 10 * (time.perf_counter() - start)
    assert {d.hausdorff() for d in found.values()} == {1.0}
    assert min(times) < a_volume_each


def test_wrong_masks_are_refused() -> None:
    with pytest.raises(TypeError, match="`labels` to be boolean, but got int64"):
        surface_distances(EMPTY.astype(np.int64), EMPTY)
    with pytest.raises(ValueError, match="`labels` to have the shape"):
        surface_distances(EMPTY[1:], EMPTY)
    with pytest.raises(ValueError, match=r"to be the label map of one case, .* \(1, 1, 6, 8\)"):
        surface_distances(EMPTY[None, None], EMPTY[None, None])
    with pytest.raises(ValueError, match="`units` to be one of 'mm', 'voxel'"):
        surface_distances(EMPTY, EMPTY, units="cm")
    with pytest.raises(ValueError, match="`empty`"):
        surface_distances(EMPTY, EMPTY, empty="zero")
    d = surface_distances(square(0, 0), square(1, 1))
    with pytest.raises(ValueError, match="`method` to be one of 'pooled', 'max'"):
        d.hd95("mean")
    with pytest.raises(ValueError, match="`percentile`"):
        d.hausdorff(101.0)
    with pytest.raises(ValueError, match="`tolerance`"):
        d.nsd(-1.0)
