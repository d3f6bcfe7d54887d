"""Penalty weights by predicted class and distance to the predicted surface."""

import pytest
import torch

from helpers.loss_samples import random_batch
from segcal.losses import NACLLoss, StratumWeights, kernels


def test_bands_by_hand() -> None:
    labels = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 2])
    logits = torch.nn.functional.one_hot(labels, 3).T.float().view(1, 3, 1, 13)
    bands = [2, 2, 1, 1, 0, 0, 0, 0, 1, 1, 2, 2, 2]  # within 1, within 3, farther
    expected = labels * 3 + torch.tensor(bands)
    assert StratumWeights(3).index(logits).flatten().tolist() == expected.tolist()
    deep = logits.unsqueeze(2).expand(1, 3, 2, 1, 13)
    assert StratumWeights(3).index(deep)[0, 1].flatten().tolist() == expected.tolist()
    single = StratumWeights(3, distances=[2]).index(logits).flatten() - 2 * labels
    assert single.tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1]


def test_each_pixel_has_the_weight_of_its_stratum() -> None:
    logits, target = random_batch(2, 3, 9, 8)
    loss = NACLLoss(0.25, fused=False)
    each = NACLLoss(1.0, reduction="none", fused=False).terms(logits, target)["penalty"]
    loss.strata = StratumWeights(3, weight=0.25)
    torch.testing.assert_close(loss.terms(logits, target)["penalty"], 0.25 * each.mean())
    loss.strata.weights.copy_(torch.rand(9))
    expected = (loss.strata.weights[loss.strata.index(logits)] * each).mean()
    torch.testing.assert_close(loss.terms(logits, target)["penalty"], expected)
    loss.strata.weights.zero_()
    assert loss.terms(logits, target)["penalty"] == 0
    assert not kernels.supports(loss)


def test_gradcheck() -> None:
    logits, target = random_batch(1, 3, 4, 5, dtype=torch.float64)
    loss = NACLLoss()
    loss.strata = StratumWeights(3, distances=(1,))
    loss.strata.weights.copy_(torch.rand(6))
    assert torch.autograd.gradcheck(lambda x: loss(x, target), logits.requires_grad_())


def test_bad_distances_are_named() -> None:
    with pytest.raises(ValueError, match="`distances`"):
        StratumWeights(3, distances=(0,))
