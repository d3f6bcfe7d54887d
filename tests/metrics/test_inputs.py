"""What the voxel stream refuses, and what it says."""

import warnings

import numpy as np
import pytest
import torch

from helpers.metric_samples import brier, nll, random_case, random_probs
from segcal.metrics import CalibrationBins, ProperScores, adaptive_ece, voxel_statistics

RNG = np.random.default_rng(0)
PROBS, TARGET = random_case(RNG, 3, 40, 50)
LOGITS = 4 * RNG.normal(size=(3, 40, 50))


def second_softmax(probs: np.ndarray) -> np.ndarray:
    return np.exp(probs) / np.exp(probs).sum(0)


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        (LOGITS, "looks like logits: apply softmax over the class axis, once"),
        (torch.from_numpy(LOGITS), "looks like logits"),
        (100 * PROBS, "percent: divide them by 100"),
        (np.rint(LOGITS), "label maps"),
        (np.log(PROBS), "looks like log-probabilities: apply exp"),
        (-abs(LOGITS), "looks like logits"),
        (np.where(PROBS.max() == PROBS, np.nan, PROBS), "NaN at 1 of 6000 values"),
        (1 / (1 + np.exp(-LOGITS)), "not normalized: sigmoid"),
        (PROBS[:, ::-1] * 0.5, "by up to 0.5"),
        (PROBS / PROBS.sum(1, keepdims=True), "softmax over another axis"),
    ],
)
def test_values_that_are_no_probabilities(probs: np.ndarray, message: str) -> None:
    for statistic in (CalibrationBins(3), ProperScores(3)):
        with pytest.raises(ValueError, match=message):
            statistic.update(probs, TARGET)
        assert statistic.voxels == 0


def test_a_second_softmax_is_warned_of_but_not_refused() -> None:
    """It sums to 1, so it may be honest; that no voxel is sure is only unlikely."""
    with pytest.warns(UserWarning, match="looks like a second softmax"):
        CalibrationBins(3).update(second_softmax(PROBS), TARGET)


def test_a_second_softmax_in_small_batches_is_warned_of_once_at_the_caller() -> None:
    twice = second_softmax(PROBS)
    for statistic in (CalibrationBins(3), ProperScores(3)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for i in range(40):
                statistic.update(twice[:, i], TARGET[i])
        assert [w.filename for w in caught] == [__file__]
    for function in (adaptive_ece, voxel_statistics):
        with pytest.warns(UserWarning, match=r"looks like a second softmax") as caught:
            function(twice, TARGET, 3)
        assert [w.filename for w in caught] == [__file__]


@pytest.mark.filterwarnings("error")
def test_a_region_of_doubt_is_no_second_softmax() -> None:
    """A mask may leave out every voxel that the network is sure of."""
    twice = second_softmax(PROBS)
    CalibrationBins(3).update(twice, TARGET, mask=np.ones(TARGET.shape, bool))


@pytest.mark.parametrize("function", [brier, nll, adaptive_ece])
def test_functions_take_batched_where_shapes_are_ambiguous(function) -> None:
    probs, target = random_case(np.random.default_rng(1), 3, 3, 5)
    with pytest.raises(ValueError, match="`batched` to be True or False"):
        function(probs, target, 3)
    batch = np.ascontiguousarray(probs.swapaxes(0, 1))
    expected = function(probs, target, 3, batched=False)
    assert function(batch, target, 3, batched=True) == pytest.approx(expected)


@pytest.mark.filterwarnings("error")
def test_no_warning_of_a_second_softmax_without_evidence() -> None:
    CalibrationBins(3).update(PROBS, TARGET)
    few = second_softmax(PROBS)[:, :4]
    CalibrationBins(3).update(few, TARGET[:4])
    unsure = np.stack([np.full(2000, 0.45), np.full(2000, 0.45), np.full(2000, 0.1)])
    CalibrationBins(3).update(unsure, np.zeros(2000, int))
    CalibrationBins(1).update(np.ones((1, 2000)), np.zeros(2000, int))


def test_nothing_is_counted_when_a_late_chunk_is_wrong() -> None:
    probs = np.tile(PROBS.reshape(3, -1), 400)
    target = np.tile(TARGET.ravel(), 400)
    target[-1] = 7
    bins = CalibrationBins(3)
    with pytest.raises(ValueError, match=r"labels in 0..2 .* but got 7"):
        bins.update(probs, target)
    assert bins.voxels == 0


def test_labels_outside_are_named() -> None:
    target = TARGET.copy()
    target[0, :3] = [3, 200, -1]
    with pytest.raises(ValueError, match=r"`target` to hold labels in 0..2 .*but got -1, 3, 200"):
        CalibrationBins(3).update(PROBS, target)
    with pytest.raises(ValueError, match=r"but got .*, …\."):
        CalibrationBins(3).update(PROBS, np.arange(2000).reshape(40, 50))
    CalibrationBins(3).update(PROBS, np.where(target > 2, 255, target).clip(0), ignore_index=255)


@pytest.mark.parametrize(
    ("probs", "target", "mask", "message"),
    [
        (PROBS, TARGET[:-1], None, r"`probs` to have shape .* but got `probs` \(3, 40, 50\)"),
        (PROBS[:2], TARGET, None, "with K = 3"),
        (PROBS[0], TARGET, None, "`probs` to have shape"),
        (PROBS, TARGET, TARGET[:-1] > 0, r"`mask` to have shape \(40, 50\)"),
        (PROBS, PROBS * 0.5, None, "where it is soft"),
    ],
)
def test_wrong_shapes_and_soft_rows(probs, target, mask, message) -> None:
    with pytest.raises(ValueError, match=message):
        CalibrationBins(3).update(probs, target, mask)


def test_batched_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="and batched=True"):
        CalibrationBins(3).update(PROBS, TARGET, batched=True)


@pytest.mark.parametrize(
    ("probs", "target", "mask", "message"),
    [
        (PROBS.tolist(), TARGET, None, "`probs` to be a numpy array or a torch tensor"),
        (TARGET[None].repeat(3, 0), TARGET, None, "`probs` to be floating point, but got int64"),
        (PROBS, TARGET.astype(float), None, "`target` to hold integer labels, but got float64"),
        (PROBS, TARGET[None].repeat(3, 0), None, "`target` to be floating point where it is soft"),
        (PROBS, TARGET, TARGET, "`mask` to be boolean, but got int64"),
    ],
)
def test_wrong_kinds(probs, target, mask, message) -> None:
    with pytest.raises(TypeError, match=message):
        CalibrationBins(3).update(probs, target, mask)


def test_rounding_beyond_one_is_no_logit() -> None:
    probs = np.array([[1 + 5e-7, 0.5], [-5e-7, 0.5]])
    bins = CalibrationBins(2).update(probs, np.array([0, 0]))
    assert bins.class_count[0, -1] == 1
    assert bins.class_count[1, 0] == 1


def test_many_classes() -> None:
    probs = random_probs(RNG, 100, 30, 20).astype(np.float32)
    bins = CalibrationBins(100).update(probs, probs.argmax(0))
    assert bins.voxels == 600
    assert bins.classwise_ece().shape == (100,)
