"""Confidence levels by predicted class."""

import numpy as np
import torch

from segcal.metrics import LEVELS, ConfidenceLevels, evaluate_case


def test_levels_by_hand_and_at_their_edges() -> None:
    top = np.array([0.95, 0.951, 0.99, 1.0, 0.6, 0.97], np.float32)
    probs = np.stack([1 - top, top])
    probs[:, -1] = probs[::-1, -1]  # predicted background
    levels = ConfidenceLevels(2).update(probs, np.array([1, 1, 0, 1, 1, 1]))
    # (0.9, 0.95], (0.95, 0.99] twice, (0.99, 1], (0.5, 0.7]
    assert levels.level_count[1].tolist() == [0, 1, 0, 0, 1, 2, 1]
    assert levels.level_accuracy[1].tolist() == [0, 1, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(levels.level_confidence[1, 5], 0.951 + 0.99, rtol=1e-6)
    assert levels.level_count[0].tolist() == [0, 0, 0, 0, 0, 1, 0]
    assert levels.level_accuracy[0].sum() == 0
    assert levels.voxels == 6


def test_levels_add_up_and_agree_with_torch_soft_targets_and_the_case() -> None:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(3, 0.2), (6, 20, 20)).transpose(3, 0, 1, 2)
    target = rng.integers(0, 3, (6, 20, 20))
    target[0, 0] = -100
    whole = ConfidenceLevels(3).update(probs, target)
    parts = [ConfidenceLevels(3).update(probs[:, i : i + 2], target[i : i + 2]) for i in (0, 2, 4)]
    tensors = ConfidenceLevels(3).update(torch.tensor(probs), torch.tensor(target))
    case = evaluate_case(probs, target, 1.0, case="c").levels
    assert case is not None
    for other in (sum(parts, ConfidenceLevels(3)), tensors, case,
                  ConfidenceLevels.from_state(whole.state())):  # fmt: skip
        for name, array in whole.state().items():
            np.testing.assert_allclose(other.state()[name], array, rtol=1e-12)
    hard = np.eye(3)[np.maximum(target, 0)].transpose(3, 0, 1, 2)
    soft = ConfidenceLevels(3).update(probs, hard, mask=target >= 0)
    assert (soft.level_accuracy == whole.level_accuracy).all()
    assert whole.voxels == (target >= 0).sum()


def test_a_calibrated_model_is_right_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    p = rng.beta(4, 0.5, 400_000)
    found = ConfidenceLevels(2).update(np.stack([1 - p, p]), (rng.random(p.size) < p).astype(int))
    right = found.level_accuracy[1] / np.maximum(found.level_count[1], 1)
    stated = found.level_confidence[1] / np.maximum(found.level_count[1], 1)
    np.testing.assert_allclose(right, stated, atol=0.01)
    assert LEVELS[5] < right[5] < LEVELS[6]
