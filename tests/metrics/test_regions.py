"""Regions: masks in millimetres."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal.config import EvaluationConfig
from segcal.data.phantom import PhantomSpec, generate
from segcal.metrics import (
    REGIONS,
    _geometry,
    all_voxels,
    boundary,
    evaluate_case,
    foreground,
    pool_cases,
    predicted,
    predicted_boundary,
    union,
)


def brute_force_boundary(target: np.ndarray, spacing: tuple[float, ...], width: float):
    places = np.argwhere(np.ones(target.shape, dtype=bool))
    labels = target.ravel()
    d = np.sqrt((((places[:, None] - places[None]) * np.array(spacing)) ** 2).sum(-1))
    other = labels[:, None] != labels[None]
    return ((d <= width + 1e-9) & other).any(1).reshape(target.shape)


def brute_force_within(mask: np.ndarray, spacing: tuple[float, ...], reach: float):
    places = np.argwhere(np.ones(mask.shape, dtype=bool))
    d = np.sqrt((((places[:, None] - places[None]) * np.array(spacing)) ** 2).sum(-1))
    return ((d <= reach + 1e-9) & mask.ravel()[None]).any(1).reshape(mask.shape)


def test_foreground_and_all() -> None:
    target = np.array([[0, 1], [2, -100]])
    assert foreground(target).tolist() == [[False, True], [True, False]]
    assert all_voxels(target).tolist() == [[True, True], [True, False]]
    assert foreground(target, ignore_index=2).tolist() == [[False, True], [False, True]]
    assert all_voxels(target, ignore_index=0).tolist() == [[False, True], [True, True]]


def test_union_by_hand_with_thick_slices() -> None:
    """Slices 10 mm apart: 5 mm reach two voxels of 2 mm in the slice, and no other slice."""
    target = np.zeros((3, 7, 7), int)
    labels = target.copy()
    target[1, 3, 3] = 1
    labels[1, 3, 4] = 2
    mask = union(target, labels=labels, spacing_mm=(10.0, 2.0, 2.0), dilate_mm=5.0)
    assert not mask[0].any()
    assert not mask[2].any()
    assert mask[1, 3].tolist() == [False, True, True, True, True, True, True]
    assert mask[1, 1].tolist() == [False, False, True, True, True, True, False]
    assert union(target, labels=labels, spacing_mm=(5.0, 2.0, 2.0), dilate_mm=5.0)[0, 3, 3]
    assert union(target, labels=labels, dilate_mm=0.0).sum() == 2
    ignored = target.copy()
    ignored[1, 3, 2] = -100
    assert not union(ignored, labels=labels, dilate_mm=5.0)[1, 3, 2]
    assert union(target, labels=target * 0 + 1).all()
    assert not union(target * 0, labels=target * 0).any()


def test_boundary_by_hand_with_thick_slices() -> None:
    target = np.zeros((2, 1, 8), int)
    target[0, 0, 4:] = 1
    band = boundary(target, spacing_mm=(10.0, 1.0, 1.0), width_mm=2.0)
    assert band[0, 0].tolist() == [False, False, True, True, True, True, False, False]
    assert not band[1].any()
    across = boundary(target, spacing_mm=(10.0, 1.0, 1.0), width_mm=10.0)
    assert across[1, 0, 4:].all()
    assert not boundary(target, spacing_mm=3.0, width_mm=2.0).any()
    assert not boundary(target * 0).any()


def test_boundary_counts_inner_surfaces_and_no_ignored_voxel() -> None:
    target = np.array([1, 1, 1, 2, 2, 2, -100, 0, 0, 0])
    band = boundary(target, width_mm=1.0)
    assert band.tolist() == [False, False, True, True, False, False, False, False, False, False]
    assert boundary(target, width_mm=2.0)[5]  # 2 mm from the 0 beyond the ignored voxel


def test_predicted_regions_are_those_of_the_prediction_without_ignored_voxels() -> None:
    target = np.array([0, 1, 1, 1, -100, 0, 0, 0])
    labels = np.array([0, 0, 2, 2, 2, 2, 0, 0])
    assert np.flatnonzero(predicted(target, labels=labels)).tolist() == [2, 3, 5]
    band = predicted_boundary(target, labels=labels, width_mm=1.0)
    assert np.flatnonzero(band).tolist() == [1, 2, 5, 6]
    wide = predicted_boundary(target, labels=labels, width_mm=2.0)
    assert np.flatnonzero(wide).tolist() == [0, 1, 2, 3, 5, 6, 7]
    # The truth does not matter, except that ignored voxels are in no region.
    other = np.where(target == -100, -100, 1 - target)
    assert (predicted_boundary(other, labels=labels, width_mm=2.0) == wide).all()
    thick = predicted_boundary(np.zeros((2, 8), int), labels=np.stack([labels, labels * 0]),
                               spacing_mm=(10.0, 1.0), width_mm=2.0)  # fmt: skip
    assert not thick[1].any()


def test_a_calibrated_map_scores_zero_where_the_prediction_chooses_the_voxels() -> None:
    """Phantoms: labels are drawn from the known probabilities, which are the prediction here."""
    spec, results = PhantomSpec(dims=2, size=64), []
    for index in range(50):
        phantom = generate(spec, index)
        truth = phantom.truth / phantom.truth.sum(0)
        for rater in range(6):
            label = phantom.draw(np.random.default_rng([index, rater]))
            case = f"{index}_{rater}"
            results.append(evaluate_case(truth, label.astype(int), spec.spacing_mm, case=case))
    rows = pool_cases(results)
    ece, cece = ({r.region: r.value for r in rows if r.metric == m} for m in ("ece", "cece"))
    for region in ("all", "predicted", "predicted_boundary"):
        assert ece[region] < 0.006
        assert cece[region] < 0.006
    assert cece["foreground"] > 0.035
    assert ece["boundary"] > 0.06


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), flat=st.booleans())
def test_regions_agree_with_brute_force(seed: int, flat: bool) -> None:
    rng = np.random.default_rng(seed)
    shape = (9, 11) if flat else (4, 6, 7)
    target = np.where(rng.random(shape) < 0.8, 0, rng.integers(0, 4, shape))
    labels = np.where(rng.random(shape) < 0.9, 0, rng.integers(0, 4, shape))
    spacing = tuple(rng.choice([0.7, 1.0, 2.5, 6.0], len(shape)).tolist())
    reach = float(rng.choice([0.7, 1.0, 2.5, 4.1]))
    band = boundary(target, labels=labels, spacing_mm=spacing, width_mm=reach)
    assert (band == brute_force_boundary(target, spacing, reach)).all()
    own = predicted_boundary(target, labels=labels, spacing_mm=spacing, width_mm=reach)
    assert (own == brute_force_boundary(labels, spacing, reach)).all()
    wide = union(target, labels=labels, spacing_mm=spacing, dilate_mm=reach)
    assert (wide == brute_force_within((target > 0) | (labels > 0), spacing, reach)).all()
    # Scaling space and reach together changes nothing.
    double = tuple(2 * s for s in spacing)
    assert (boundary(target, spacing_mm=double, width_mm=2 * reach) == band).all()
    assert (union(target, labels=labels, spacing_mm=double, dilate_mm=2 * reach) == wide).all()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_regions_follow_the_axes_and_not_the_names_of_structures(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target, labels = rng.integers(0, 4, (2, 5, 6, 7)) * (rng.random((2, 5, 6, 7)) < 0.3)
    names = np.concatenate([[0], 1 + rng.permutation(3)])
    spacing, axes = (3.0, 1.0, 1.5), rng.permutation(3)
    moved = tuple(spacing[a] for a in axes)
    for region in REGIONS.values():
        mask = region(target, labels=labels, spacing_mm=spacing)
        assert (region(names[target], labels=names[labels], spacing_mm=spacing) == mask).all()
        turned = region(target.transpose(axes), labels=labels.transpose(axes), spacing_mm=moved)
        assert (turned == mask.transpose(axes)).all()
    # A boundary does not know which label is the background, either.
    anew = rng.permutation(4)
    assert (boundary(anew[target]) == boundary(target)).all()


def test_the_registry_is_uniform_and_checks() -> None:
    target = np.zeros((5, 5), int)
    target[2, 2] = 1
    assert tuple(REGIONS) == EvaluationConfig().regions
    for region in REGIONS.values():
        mask = region(target, labels=target, spacing_mm=(1.0, 2.0))
        assert mask.dtype == bool
        assert mask.shape == target.shape
        with pytest.raises(ValueError, match="`spacing_mm`"):
            region(target, labels=target, spacing_mm=(1.0, 2.0, 3.0))
        with pytest.raises(ValueError, match="`spacing_mm` to be a finite number above 0"):
            region(target, labels=target, spacing_mm=0.0)
        with pytest.raises(TypeError, match="`target` to hold integer labels"):
            region(target * 1.0, labels=target)
        with pytest.raises(ValueError, match="label map of one case"):
            region(np.zeros((1, 1, 1, 1), int))
    for region in (union, predicted, predicted_boundary):
        with pytest.raises(ValueError, match="`labels` to be the predicted label map, but got No"):
            region(target)
        with pytest.raises(ValueError, match="`labels` to have the shape"):
            region(target, labels=target[1:])
    for region in (boundary, predicted_boundary):
        with pytest.raises(ValueError, match="`width_mm`"):
            region(target, labels=target, width_mm=0.0)
    with pytest.raises(ValueError, match="`dilate_mm`"):
        union(target, labels=target, dilate_mm=-1.0)
    assert (
        boundary(target, spacing_mm=np.array([1.0, 2.0])) == boundary(target, spacing_mm=(1.0, 2.0))
    ).all()


@pytest.mark.parametrize("seed", range(12))
def test_shifts_and_distance_transform_agree(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    ndim = int(rng.integers(1, 4))
    mask = rng.random(tuple(rng.integers(1, 12, ndim))) < rng.choice([0.02, 0.2, 0.7])
    spacing = tuple(rng.choice([0.5, 0.7, 1.0, 1.5, 3.0, 10.0], ndim))
    for reach in (0.5, 1.5, 2.1, 3.0, 5.0):
        monkeypatch.setattr(_geometry, "_MOST_SHIFTS", 1000)
        shifted = _geometry.within_mm(mask, reach, spacing)
        monkeypatch.setattr(_geometry, "_MOST_SHIFTS", 0)
        assert np.array_equal(shifted, _geometry.within_mm(mask, reach, spacing))
