"""Brier, NLL, the Brier parts and the equal-mass error."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.metric_samples import brier, nll, random_case, random_probs
from segcal.metrics import CalibrationBins, ProperScores, adaptive_ece, brier_parts, evaluate_case
from segcal.metrics._chunks import Chunk
from segcal.metrics.scores import _score_numpy, _score_torch

PROBS = np.array([[0.7, 0.1], [0.2, 0.6], [0.1, 0.3]])
TARGET = np.array([0, 2])


def test_values_worked_by_hand() -> None:
    first, second = 0.3**2 + 0.2**2 + 0.1**2, 0.1**2 + 0.6**2 + 0.7**2
    assert brier(PROBS, TARGET, 3) == pytest.approx((first + second) / 2)
    assert nll(PROBS, TARGET, 3) == pytest.approx(-(math.log(0.7) + math.log(0.3)) / 2)
    scores = ProperScores(3).update(PROBS, TARGET)
    assert scores.classwise_brier() == pytest.approx(
        [(0.3**2 + 0.1**2) / 2, (0.2**2 + 0.6**2) / 2, (0.1**2 + 0.7**2) / 2]
    )
    keep = np.array([True, False])
    assert brier(PROBS, TARGET, 3, keep) == pytest.approx(first)
    assert nll(PROBS, TARGET, 3, keep) == pytest.approx(-math.log(0.7))
    assert brier(PROBS, np.array([0, 9]), 3, ignore_index=9) == pytest.approx(first)
    assert nll(PROBS, np.array([0, 9]), 3, ignore_index=9) == pytest.approx(-math.log(0.7))


def test_clip_bounds_the_loss_of_a_voxel() -> None:
    sure_and_wrong = np.array([[1.0], [0.0]])
    assert nll(sure_and_wrong, np.array([1]), 2) == pytest.approx(-math.log(1e-12))
    assert nll(sure_and_wrong, np.array([1]), 2, clip=1e-6) == pytest.approx(-math.log(1e-6))
    with pytest.raises(ValueError, match="`clip` to be a finite number above 0"):
        nll(sure_and_wrong, np.array([1]), 2, clip=0.0)


def test_soft_targets_and_empty() -> None:
    soft = np.array([[0.5, 0.0], [0.5, 0.2], [0.0, 0.8]])
    expected = ((PROBS - soft) ** 2).sum() / 2
    scores = ProperScores(3).update(PROBS, soft)
    assert scores.brier() == pytest.approx(expected)
    assert scores.nll() == pytest.approx(-(soft * np.log(PROBS)).sum() / 2)
    assert np.isnan(ProperScores(3).brier())
    assert np.isnan(ProperScores(3).nll())
    assert np.isnan(brier_parts(CalibrationBins(3)).total)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("groups", [1, 4])
def test_the_two_kernels_agree(soft: bool, groups: int) -> None:
    rng = np.random.default_rng(0)
    probs, target = random_case(rng, 4, 3000)
    labels = random_probs(rng, 4, 3000) if soft else target
    group = rng.integers(0, groups, 3000) if groups > 1 else None
    tensors = [None if a is None else torch.from_numpy(a) for a in (probs, labels, group)]
    ours = _score_numpy(Chunk(probs, labels, group), groups, 1e-12)
    theirs = _score_torch(Chunk(*tensors), groups, 1e-12)
    for name in ("squared_error", "log_loss", "voxels"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-12)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_scores_split_and_merge(seed: int) -> None:
    rng = np.random.default_rng(seed)
    probs, target = random_case(rng, 3, 200)
    cut = int(rng.integers(1, 199))
    whole = ProperScores(3).update(probs, target)
    a = ProperScores(3).update(probs[:, :cut], target[:cut])
    b = ProperScores(3).update(probs[:, cut:], target[cut:])
    for total in (a + b, b + a):
        assert total.voxels == 200
        assert total.brier() == pytest.approx(whole.brier(), abs=1e-12)
        assert total.nll() == pytest.approx(whole.nll(), abs=1e-12)
    assert sum([a, b]).brier() == (a + b).brier()
    with pytest.raises(ValueError, match="to have"):
        a.merge(ProperScores(4))
    with pytest.raises(TypeError, match="`other` to be ProperScores"):
        a.merge(CalibrationBins(3))
    with pytest.raises(TypeError):
        1 + a


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_scores_know_neither_the_order_of_voxels_nor_the_names_of_classes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    probs, target = random_case(rng, 4, 200)
    one = ProperScores(4).update(probs, target)
    voxels, classes = rng.permutation(200), rng.permutation(4)
    moved = ProperScores(4).update(probs[:, voxels], target[voxels])
    named = ProperScores(4).update(probs[classes], np.argsort(classes)[target])
    for other in (moved, named):
        assert other.brier() == pytest.approx(one.brier(), abs=1e-12)
        assert other.nll() == pytest.approx(one.nll(), abs=1e-12)
    assert named.classwise_brier() == pytest.approx(one.classwise_brier()[classes], abs=1e-12)


def test_state_round_trip_and_refusals(tmp_path: Path) -> None:
    scores = ProperScores(3, clip=1e-6).update(PROBS, TARGET)
    np.savez(tmp_path / "scores.npz", **scores.state())
    again = ProperScores.from_state(np.load(tmp_path / "scores.npz"))
    assert (again.brier(), again.nll(), again.clip) == (scores.brier(), scores.nll(), 1e-6)
    assert (again + scores).voxels == 4
    assert repr(again) == "ProperScores(num_classes=3, clip=1e-06, voxels=2)"
    state = scores.state()
    for change, message in (
        ({"voxels": np.array(-1)}, "finite and not negative"),
        ({"voxels": np.array(1.5)}, "to be int64"),
        ({"log_loss": np.array(np.nan)}, "finite and not negative"),
        ({"squared_error": np.array(1.0)}, "squared_error"),
    ):
        with pytest.raises(ValueError, match=message):
            ProperScores.from_state({**state, **change})
    del state["clip"]
    with pytest.raises(ValueError, match="'clip'"):
        ProperScores.from_state(state)


def test_perfect_voxels_score_zero_and_not_less() -> None:
    probs = np.array([[1 - 1e-9, 1e-9], [1e-9, 1 - 1e-9]])
    assert 0 <= brier(probs, np.array([0, 1]), 2) < 1e-15


def test_brier_parts_by_hand_and_their_sum() -> None:
    """Constant probabilities in a bin: the parts make the Brier score exactly."""
    p = np.array([0.25] * 4 + [0.75] * 4)
    target = np.array([0, 0, 1, 1, 1, 1, 1, 0])
    probs = np.stack([1 - p, p])
    parts = brier_parts(CalibrationBins(2, num_bins=2).update(probs, target))
    assert parts.reliability == pytest.approx(2 * (4 * 0.25**2 + 4 * 0) / 8)
    assert parts.resolution == pytest.approx(2 * (4 * 0.125**2 + 4 * 0.125**2) / 8)
    assert parts.uncertainty == pytest.approx(2 * 0.625 * 0.375)
    assert parts.total == pytest.approx(brier(probs, target, 2), abs=1e-12)


def test_brier_parts_approach_the_score_with_more_bins() -> None:
    rng = np.random.default_rng(1)
    probs, target = random_case(rng, 3, 20_000)
    score = brier(probs, target, 3)
    off = [
        abs(brier_parts(CalibrationBins(3, m).update(probs, target)).total - score)
        for m in (3, 15, 200)
    ]
    assert off[0] > off[1] > off[2]
    assert off[2] < 1e-4


def test_adaptive_ece_by_hand() -> None:
    """Six voxels in three bins of two, by confidence: .5 .6 | .7 .8 | .9 1."""
    p = np.array([0.9, 0.5, 0.7, 1.0, 0.6, 0.8])
    probs = np.stack([p, 1 - p])
    target = np.array([0, 0, 1, 0, 1, 0])
    expected = (abs(1.1 - 1) + abs(1.5 - 1) + abs(1.9 - 2)) / 6
    assert adaptive_ece(probs, target, 2, num_bins=3) == pytest.approx(expected)
    assert adaptive_ece(probs, target, 2, num_bins=1) == pytest.approx(0.5 / 6)
    assert adaptive_ece(probs, target, 2, num_bins=3, label=1) == pytest.approx(expected)
    keep = np.array([1, 0, 0, 1, 0, 0], dtype=bool)
    assert adaptive_ece(probs, target, 2, keep, num_bins=1) == pytest.approx(0.05)
    assert np.isnan(adaptive_ece(probs, target, 2, np.zeros(6, dtype=bool)))
    ignored = np.array([0, 7, 7, 0, 7, 7])
    assert adaptive_ece(probs, ignored, 2, num_bins=1, ignore_index=7) == pytest.approx(0.05)
    with pytest.raises(ValueError, match="`num_bins`"):
        adaptive_ece(probs, target, 2, num_bins=0)
    with pytest.raises(ValueError, match="`label`"):
        adaptive_ece(probs, target, 2, label=2)


def test_adaptive_ece_keeps_ties_together_whatever_their_order() -> None:
    rng = np.random.default_rng(2)
    p = rng.choice([0.55, 0.7, 1.0], 999)
    probs = np.stack([p, 1 - p])
    target = (rng.random(999) > p).astype(int)
    order = rng.permutation(999)
    value = adaptive_ece(probs, target, 2)
    assert value == pytest.approx(adaptive_ece(probs[:, order], target[order], 2), abs=1e-12)
    assert value == pytest.approx(CalibrationBins(2).update(probs, target).ece(), abs=1e-12)


def test_adaptive_ece_soft_equals_hard() -> None:
    rng = np.random.default_rng(3)
    probs, target = random_case(rng, 3, 400)
    soft = np.eye(3)[target].T
    for label in (None, 2):
        hard = adaptive_ece(probs, target, 3, label=label)
        assert adaptive_ece(probs, soft, 3, label=label) == pytest.approx(hard)


def test_adaptive_ece_of_half_precision_is_that_of_the_same_values() -> None:
    rng = np.random.default_rng(3)
    probs = rng.dirichlet([0.4, 0.4, 0.4], (12, 13, 14)).transpose(3, 0, 1, 2).astype(np.float16)
    probs[:, :6] = np.array([1, 0, 0], np.float16)[:, None, None, None]  # many ties
    target = rng.integers(0, 3, (12, 13, 14))
    found = [
        {(r.region, r.metric): r.value for r in evaluate_case(p, target, 1.0, case="a").rows}
        for p in (probs, probs.astype(np.float32))
    ]
    for region in ("all", "predicted", "boundary"):
        assert found[0][region, "adaptive_ece"] == pytest.approx(
            found[1][region, "adaptive_ece"], rel=1e-12
        )
