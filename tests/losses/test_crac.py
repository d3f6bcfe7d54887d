"""CRaC: by hand, its limits, and how validation changes the multipliers."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.loss_samples import CE, random_batch, two_pixels
from segcal.losses import CRaCLoss, CrossEntropyLoss, Prior, make_loss


def test_by_hand() -> None:
    """A: logits (2, 0), label 0; B: (0, 1), label 1. In a 3-wide patch each is 2/3 its own."""
    third = 1 / 3
    h = [2 - 2 * third, third, third, 1 - 2 * third]
    for dim in (2, 3):
        loss = CRaCLoss(multiplier=0.5, rho=2.0)
        terms = loss.terms(*two_pixels(dim))
        assert terms["ce"].item() == pytest.approx(CE)
        expected = sum(0.5 * x + x * x for x in h) / 4  # the mean over two classes and two pixels
        assert terms["penalty"].item() == pytest.approx(expected, rel=1e-6)


def test_uniform_patches_by_hand() -> None:
    logits = torch.tensor([2.0, -1.0], dtype=torch.float64).view(1, 2, 1, 1).expand(1, 2, 4, 4)
    target = torch.zeros(1, 4, 4, dtype=torch.int64)
    # h = |5 − 2| and |0 + 1|; P = ((λ + ρh)² − λ²) / 2ρ
    loss = CRaCLoss(multiplier=0.1, rho=0.5)
    expected = sum(((0.1 + 0.5 * h) ** 2 - 0.1**2) / (2 * 0.5) for h in (3.0, 1.0)) / 2
    assert loss.terms(logits, target)["penalty"].item() == pytest.approx(expected)


def test_without_multiplier_and_rho_it_is_nearly_cross_entropy() -> None:
    logits, target = random_batch(2, 3, 6, 6)
    expected = CrossEntropyLoss()(logits, target)
    torch.testing.assert_close(CRaCLoss(0.0)(logits, target), expected)
    torch.testing.assert_close(CRaCLoss(multiplier=0.0, rho=1e-9)(logits, target), expected)


def test_with_rho_0_it_is_nacl_in_mixed_patches() -> None:
    logits, target = random_batch(2, 3, 6, 6)
    crac = CRaCLoss(multiplier=0.3, rho=1e-9, uniform_scale=1.0)
    torch.testing.assert_close(
        crac(logits, target), make_loss("nacl", penalty_weight=0.3)(logits, target)
    )


@pytest.mark.parametrize("shape", [(2, 3, 4, 3), (1, 3, 2, 3, 2)])
def test_gradcheck(shape: tuple[int, ...]) -> None:
    logits, target = random_batch(*shape, dtype=torch.float64)
    target[0, 0] = -100
    loss = CRaCLoss(multiplier=0.3)
    assert torch.autograd.gradcheck(lambda x: loss(x, target), logits.requires_grad_())
    soft = torch.randn(shape, dtype=torch.float64).softmax(1)
    assert torch.autograd.gradcheck(lambda x: loss(x, soft), logits)


@pytest.mark.parametrize(
    ("option", "value"),
    [("penalty_weight", 0.5), ("prior", "gaussian"), ("patch_size", 5), ("uniform_scale", 2.0),
     ("multiplier", 0.2), ("rho", 2.0), ("border", "background"), ("class_reduction", "sum"),
     ("ignore_index", 1)],
)  # fmt: skip
def test_every_parameter_of_the_penalty_changes_the_result(option: str, value: Any) -> None:
    logits, target = random_batch(2, 3, 12, 12)
    target[:, :8] = 0
    before = make_loss("crac")(logits, target)
    after = make_loss("crac", **{option: value})(logits, target)
    assert after.item() != pytest.approx(before.item(), rel=1e-6)


def sums(loss: CRaCLoss, logits: Tensor, target: Tensor) -> Tensor:
    """What `observe` returns, pixel by pixel."""
    total = torch.zeros(2, logits.shape[1], 2, dtype=torch.float64)
    tau = Prior("mean", 3)(target, logits.shape[1], ignore_index=-100)
    for b in range(len(target)):
        for y in range(target.shape[1]):
            for x in range(target.shape[2]):
                if target[b, y, x] == -100:
                    continue
                t, z = tau[b, :, y, x], logits[b, :, y, x]
                uniform = int(t.max() > 0.9999)
                h = (t * (5.0 if uniform else 1.0) - z).abs()
                total[0, :, uniform] += h
                total[1, :, uniform] += 1
    return total


def test_validation_sets_the_multipliers() -> None:
    logits, target = random_batch(2, 3, 7, 6)
    target[0, :4] = 0
    target[1, 0] = -100
    loss = CRaCLoss(multiplier=0.1, rho=2.0)
    loss.start(3)
    found = loss.observe(logits, target)
    torch.testing.assert_close(found, sums(loss, logits, target))
    halves = loss.observe(logits[:1], target[:1]) + loss.observe(logits[1:], target[1:])
    torch.testing.assert_close(found, halves)

    mean = (found[0] / found[1]).float()
    loss.update(found)
    torch.testing.assert_close(loss.multipliers, 0.1 + 2.0 * mean)
    torch.testing.assert_close(loss.rhos, torch.full((3, 2), 2.0))
    for _ in range(9):  # the tenth: considered for the first time, so ρ stays
        loss.update(found)
    torch.testing.assert_close(loss.multipliers, 0.1 + 20.0 * mean)
    torch.testing.assert_close(loss.rhos, torch.full((3, 2), 2.0))
    smaller = found.clone()
    smaller[0, 0] *= 0.8  # the distance of class 0 falls, the others' hardly
    smaller[0, 1] *= 0.95
    for _ in range(9):
        loss.update(found)
    loss.update(smaller)
    expected = torch.tensor([2.0, 2.4, 2.4]).unsqueeze(1).expand(3, 2)
    torch.testing.assert_close(loss.rhos, expected)


def test_strata_that_do_not_occur_keep_their_multipliers() -> None:
    loss = CRaCLoss(multiplier=0.1)
    loss.start(2)
    loss.update(loss.observe(torch.randn(1, 2, 4, 4), torch.zeros(1, 4, 4, dtype=torch.int64)))
    assert torch.equal(loss.multipliers[:, 0], torch.full((2,), 0.1))
    assert (loss.multipliers[:, 1] > 0.1).all()


def test_the_state_is_saved() -> None:
    logits, target = random_batch(2, 3, 6, 6)
    loss, twin = CRaCLoss(), CRaCLoss()
    for one in (loss, twin):
        one.start(3)
    loss.update(loss.observe(logits, target))
    assert loss(logits, target) != twin(logits, target)
    twin.load_state_dict(loss.state_dict())
    assert loss(logits, target) == twin(logits, target)
    with pytest.raises(ValueError, match="`activation` to be 'softmax'"):
        CRaCLoss(activation="sigmoid")
