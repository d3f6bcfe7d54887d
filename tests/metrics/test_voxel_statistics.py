"""Both statistics in one pass are those of two passes."""

import numpy as np
import pytest
import torch

from segcal.metrics import CalibrationBins, ProperScores, voxel_statistics


def volume(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(3), (6, 7, 8)).transpose(3, 0, 1, 2), rng.integers(0, 3, (6, 7, 8))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_one_pass_is_two(kind: str) -> None:
    probs, target = volume(0)
    target[0] = -100
    mask = np.random.default_rng(1).random(target.shape) < 0.7
    if kind == "torch":
        probs, target, mask = (torch.from_numpy(a) for a in (probs, target, mask))  # type: ignore[assignment]
    both = voxel_statistics(probs, target, 3, mask, num_bins=7, clip=1e-6)
    bins = CalibrationBins(3, 7).update(probs, target, mask)
    scores = ProperScores(3, 1e-6).update(probs, target, mask)
    for name, value in bins.state().items():
        np.testing.assert_array_equal(both.bins.state()[name], value)
    for name, value in scores.state().items():
        np.testing.assert_array_equal(both.scores.state()[name], value)


def test_they_add_up() -> None:
    parts = [voxel_statistics(*volume(seed), 3) for seed in range(3)]
    total = sum(parts)
    whole = [np.concatenate(arrays, -1) for arrays in zip(*map(volume, range(3)), strict=True)]
    expected = voxel_statistics(*whole, 3)
    assert total.bins.ece() == pytest.approx(expected.bins.ece(), abs=1e-12)
    assert total.scores.brier() == pytest.approx(expected.scores.brier(), abs=1e-12)
    with pytest.raises(TypeError):
        parts[0] + 1  # type: ignore[operator]


def test_a_second_softmax_is_warned_of() -> None:
    probs, target = volume(0)
    unsure = np.exp(probs) / np.exp(probs).sum(0)
    many = [np.tile(a, 4) for a in (unsure, target)]
    with pytest.warns(UserWarning, match="second softmax"):
        voxel_statistics(*many, 3)
