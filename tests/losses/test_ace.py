"""Average calibration error as a loss: a plain loop over the definition, and its properties."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.loss_samples import random_batch
from segcal.losses import (
    ACELoss,
    CEDiceACELoss,
    CrossEntropyLoss,
    DiceLoss,
    make_loss,
)


def by_definition(logits: Tensor, target: Tensor, bins: int, binning: str) -> float:
    """The formula, pixel by pixel; soft or hard target, −100 is ignored."""
    probs = logits.softmax(1)
    images = []
    for b in range(len(logits)):
        errors = []
        for k in range(logits.shape[1]):
            sums = [[0.0, 0.0, 0.0] for _ in range(bins)]
            present = False
            s_flat = probs[b, k].flatten().tolist()
            hard = target.ndim < logits.ndim
            y_flat = (target[b] if hard else target[b, k]).flatten().tolist()
            for s, label in zip(s_flat, y_flat, strict=True):
                if hard and label == -100:
                    continue
                y = float(label == k) if hard else label
                present |= y > 0
                if binning == "hard":
                    shares = {min(int(s * bins), bins - 1): 1.0}
                else:
                    centers = [(j + 0.5) / bins for j in range(bins)]
                    if s <= centers[0]:
                        shares = {0: 1.0}
                    elif s >= centers[-1]:
                        shares = {bins - 1: 1.0}
                    else:
                        j = max(j for j in range(bins) if centers[j] <= s)
                        upper = (s - centers[j]) * bins
                        shares = {j: 1 - upper, j + 1: upper}
                for j, share in shares.items():
                    sums[j][0] += share
                    sums[j][1] += share * s
                    sums[j][2] += share * y
            least = 0.01 if binning == "soft" else 0.5
            gaps = [abs(s - y) / n for n, s, y in sums if n >= least]
            if present:
                errors.append(sum(gaps) / len(gaps))
        if errors:
            images.append(sum(errors) / len(errors))
    return sum(images) / len(images)


@pytest.mark.parametrize("binning", ["hard", "soft"])
@pytest.mark.parametrize("bins", [5, 20])
def test_the_definition(batch: tuple[Tensor, Tensor], binning: Any, bins: int) -> None:
    logits, target = batch
    target[0, :2] = -100
    target[1][target[1] == 1] = 2  # class 1 is absent from the second image
    expected = by_definition(logits, target, bins, binning)
    assert ACELoss(bins, binning)(logits, target).item() == pytest.approx(expected, rel=1e-9)
    soft = (0.3 * torch.randn_like(logits)).softmax(1)
    expected = by_definition(logits, soft, bins, binning)
    assert ACELoss(bins, binning)(logits, soft).item() == pytest.approx(expected, rel=1e-9)


def test_by_hand() -> None:
    """Two pixels of class 0 with s = 0.93 and 0.97, one of class 1 with s = 0.3 for it."""
    s0 = torch.tensor([0.93, 0.97, 0.7], dtype=torch.float64)
    logits = torch.stack([s0, 1 - s0]).log().view(1, 2, 1, 3)
    target = torch.tensor([[[0, 0, 1]]])
    # Four bins. Class 0: the last has means 0.95 and 1, the third 0.7 and 0.
    # Class 1: the first has 0.05 and 0, the second 0.3 and 1.
    expected = ((0.05 + 0.7) / 2 + (0.05 + 0.7) / 2) / 2
    assert ACELoss(4)(logits, target).item() == pytest.approx(expected)


def test_probability_one_is_in_the_last_bin() -> None:
    logits = torch.tensor([200.0, 0.0]).view(1, 2, 1, 1)
    for binning in ("hard", "soft"):
        assert ACELoss(binning=binning)(logits, torch.zeros(1, 1, 1, dtype=torch.int64)) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("binning", ["hard", "soft"])
@pytest.mark.parametrize("shape", [(2, 3, 4, 3), (1, 3, 2, 3, 2)])
def test_gradcheck(binning: Any, shape: tuple[int, ...]) -> None:
    logits, target = random_batch(*shape, dtype=torch.float64)
    target[0, 0] = -100
    for loss in (ACELoss(7, binning), CEDiceACELoss(0.5, 7, binning)):
        assert torch.autograd.gradcheck(lambda x, f=loss: f(x, target), logits.requires_grad_())


def test_the_gradient_of_hard_bins_is_that_of_the_mean_probability() -> None:
    """One bin: the error of class k is |mean s_k − mean y_k|."""
    logits, target = random_batch(1, 2, 4, 4, dtype=torch.float64)
    target[:, :3] = 0
    logits.requires_grad_()
    share = (target == 0).double().mean()
    expected = (logits.softmax(1)[:, 0].mean() - share).abs()
    found = ACELoss(1)(logits, target)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, logits), torch.autograd.grad(expected, logits)
    )


def test_every_parameter_changes_the_result() -> None:
    logits, target = random_batch(2, 3, 8, 8)
    base = ACELoss()(logits, target).item()
    for options in (
        {"num_bins": 5}, {"binning": "soft"}, {"ignore_index": 1}, {"reduction": "sum"},
    ):  # fmt: skip
        assert make_loss("ml1_ace", **options)(logits, target).item() != pytest.approx(base)
    base = CEDiceACELoss()(logits, target).item()
    for options in (
        {"ace_weight": 0.5}, {"num_bins": 5}, {"binning": "soft"}, {"ignore_index": 1},
    ):  # fmt: skip
        assert make_loss("ce_dice_ace", **options)(logits, target).item() != pytest.approx(base)
    with pytest.raises(ValueError, match="`binning` to be one of 'hard', 'soft'"):
        make_loss("ml1_ace", binning="fuzzy")


def test_the_sum_of_the_authors() -> None:
    logits, target = random_batch(2, 3, 8, 8)
    parts = (CrossEntropyLoss(), DiceLoss("squared"), ACELoss())
    expected = sum(part(logits, target) for part in parts) / 3
    loss = make_loss("ce_dice_ace")
    torch.testing.assert_close(loss(logits, target), expected)
    assert list(loss.terms(logits, target)) == ["ce", "dice", "ace"]


def test_images_ignored_as_a_whole_and_nan() -> None:
    logits, target = random_batch(2, 3, 8, 8)
    for binning in ("hard", "soft"):
        loss = ACELoss(binning=binning)  # type: ignore[arg-type]
        alone = loss(logits[:1], target[:1])
        ignored = torch.stack([target[0], torch.full_like(target[1], -100)])
        torch.testing.assert_close(loss(logits, ignored), alone)
        assert loss(logits, torch.full_like(target, -100)) == 0
        broken = logits.clone()
        broken[0, 0, 0, 0] = math.nan
        assert torch.isnan(loss(broken, target))
    assert ACELoss(reduction="none")(logits, target).shape == (2, 1, 1)
    assert ACELoss()(logits.half(), target).dtype == torch.float32
