"""NACL: by hand, against MONAI, with the user's own prior, and as the paper describes it."""

import math
from itertools import pairwise
from typing import Any

import monai.losses
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.loss_samples import (
    A0,
    B1,
    CE,
    CE_A,
    CE_B,
    check_by_hand,
    check_parameter,
    check_weighted,
    random_batch,
    two_pixels,
)
from segcal.losses import NACLLoss, Prior, neighborhood_prior


# The prior of class 1 is ⅓ at A and ⅔ at B; |τ − l| is 4/3 + 1/3 at A and 1/3 + 1/3 at B.
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, CE + 0.1 * (5 / 3 + 2 / 3) / 4),
        ({"penalty_weight": 0.5}, CE + 0.5 * (5 / 3 + 2 / 3) / 4),
        ({"class_reduction": "sum"}, CE + 0.1 * (5 / 3 + 2 / 3) / 2),
        ({"penalty": "l2"}, CE + 0.1 * (16 / 9 + 1 / 9 + 1 / 9 + 1 / 9) / 4),
        ({"border": "valid"}, CE + 0.1 * (1.5 + 0.5 + 0.5 + 0.5) / 4),
        ({"patch_size": 1}, CE + 0.1 * (1 + 0 + 0 + 0) / 4),
        ({"patch_size": 5}, CE + 0.1 * (1.4 + 0.4 + 0.4 + 0.4) / 4),
        ({"constrain": "softmax"}, CE + 0.1 * (2 * abs(2 / 3 - A0) + 2 * abs(2 / 3 - B1)) / 4),
        ({"prior": "max"}, CE + 0.1 * (2 + 1 + 0 + 0) / 4),
        ({"prior": "min"}, CE + 0.1 * (1 + 0 + 1 + 1) / 4),
        ({"prior": "median"}, CE + 0.1 * (1 + 0 + 0 + 0) / 4),
        ({"prior": "mode"}, CE + 0.1 * (1 + 0 + 0 + 0) / 4),
    ],
)
def test_by_hand(options: dict[str, Any], expected: float) -> None:
    check_by_hand("nacl", options, expected)


def test_background_border_by_hand() -> None:
    """Eight of nine pixels are class 0 around A and around B in 2-D; 26 of 27 voxels in 3-D."""
    for dim, ninth in ((2, 1 / 9), (3, 1 / 27)):
        loss = NACLLoss(border="background")(*two_pixels(dim))
        gaps = (2 - (1 - ninth)) + ninth + (1 - ninth) + (1 - ninth)
        assert loss.item() == pytest.approx(CE + 0.1 * gaps / 4, rel=1e-12)


def test_gaussian_prior_by_hand() -> None:
    a = math.exp(-1 / (2 * 0.8**2))
    other = 0.5 * (a + 2 * a**2) / (4 * a + 4 * a**2)
    gaps = (2 - (1 - other)) + other + other + (1 - (1 - other))
    loss = NACLLoss(prior="gaussian", sigma=0.8)(*two_pixels(2))
    assert loss.item() == pytest.approx(CE + 0.1 * gaps / 4, rel=1e-12)


def test_class_weights_by_hand() -> None:
    check_weighted("nacl", {"ce": (CE_A + 3 * CE_B) / 4})


def test_an_ignored_pixel_leaves_loss_and_priors() -> None:
    """With B ignored, A's patch contains A alone: τ = (1, 0), and only A is averaged."""
    logits, target = two_pixels(2)
    target[0, 0, 1] = -100
    assert NACLLoss()(logits, target).item() == pytest.approx(CE_A + 0.1 * (1 + 0) / 2)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("penalty_weight", 0.2),
        ("prior", "mode"),
        ("patch_size", (3, 1)),
        ("penalty", "l2"),
        ("constrain", "softmax"),
        ("border", "background"),
        ("class_reduction", "sum"),
    ],
)
def test_every_parameter_changes_the_result(option: str, value: Any) -> None:
    check_parameter("nacl", option, value)


def test_sigma_changes_the_gaussian_prior_only() -> None:
    logits, target = random_batch(2, 3, 8, 8)
    values = {
        (prior, sigma): NACLLoss(prior=prior, sigma=sigma)(logits, target).item()
        for prior in ("gaussian", "mean")
        for sigma in (0.5, 2.0)
    }
    assert values["gaussian", 0.5] != pytest.approx(values["gaussian", 2.0], rel=1e-6)
    assert values["mean", 0.5] == values["mean", 2.0]


def test_the_prior_may_be_an_object() -> None:
    logits, target = random_batch(2, 3, 8, 8)
    expected = NACLLoss(prior="gaussian", patch_size=5, sigma=0.7)(logits, target)
    prior = Prior("gaussian", patch_size=5, sigma=0.7)
    assert torch.equal(NACLLoss(prior=prior)(logits, target), expected)


def uniform(target: Tensor, num_classes: int, **_: Any) -> Tensor:
    """A prior that is 1/K everywhere, as an expanded view of one value."""
    shape = (target.shape[0], num_classes, *target.shape[-2:])
    return torch.tensor(1 / num_classes, device=target.device).expand(shape)


@pytest.mark.parametrize("prior", [uniform, f"{__name__}:uniform"], ids=["function", "path"])
def test_the_prior_may_be_a_function(prior: Any, device: str) -> None:
    logits, target = (t.to(device) for t in random_batch(2, 3, 8, 8))
    found = NACLLoss(prior=prior).terms(logits, target)["penalty"]
    torch.testing.assert_close(found, 0.1 * (1 / 3 - logits).abs().mean())


def test_a_prior_of_the_wrong_shape_is_named() -> None:
    logits, target = random_batch(2, 3, 8, 8)
    with pytest.raises(ValueError, match=r"wrong_shape.*\(2, 3, 8, 8\), but got \(2, 8, 8\)"):
        NACLLoss(prior=wrong_shape)(logits, target)


def wrong_shape(target: Tensor, num_classes: int, **_: Any) -> Tensor:
    return target.float()


def test_order_statistic_of_a_soft_target_raises() -> None:
    logits = torch.randn(1, 3, 4, 4)
    with pytest.raises(ValueError, match="soft target"):
        NACLLoss(prior="mode")(logits, logits.softmax(1))


def test_a_background_border_does_not_depend_on_the_rest_of_the_batch() -> None:
    """With class 0 ignored, padding of class 0 is ignored too, also in an image without any 0."""
    logits, target = torch.full((2, 2, 5, 5), 0.3), torch.ones(2, 5, 5, dtype=torch.int64)
    loss = NACLLoss(border="background", ignore_index=0, reduction="none")
    alone = loss(logits[:1], target[:1])
    target[1, 2, 2] = 0
    torch.testing.assert_close(loss(logits, target)[:1], alone)


@pytest.mark.parametrize("distance", ["l1", "l2"])
@pytest.mark.parametrize("size", [3, 5])
def test_monai_in_the_interior(batch: tuple[Tensor, Tensor], size: int, distance: Any) -> None:
    """MONAI pads with zeros (τ sums to less than 1 at the border); inside, both are equal."""
    logits, target = batch[0].float(), batch[1]
    dim = logits.ndim - 2
    theirs = monai.losses.NACLLoss(
        classes=logits.shape[1], dim=dim, kernel_size=size, distance_type=distance
    )
    margin = size // 2
    inside = (slice(None), slice(None), *(slice(margin, -margin),) * dim)
    their_prior = theirs.get_constr_target(target)
    our_prior = neighborhood_prior(target, logits.shape[1], patch_size=size)
    torch.testing.assert_close(our_prior[inside], their_prior[inside])
    assert their_prior.sum(1).min() < 0.9  # the difference at the border is real

    loss = NACLLoss(1.0, patch_size=size, penalty=distance, reduction="none")
    ours = loss.terms(logits, target)["penalty"]
    gap = their_prior - logits
    expected = (gap.abs() if distance == "l1" else gap.square()).mean(1)
    torch.testing.assert_close(ours[inside[1:]], expected[inside[1:]])


def test_monai_whole_value() -> None:
    """The sum of both parts, over the pixels whose patch lies inside the image."""
    logits, target = torch.randn(2, 3, 20, 20), torch.randint(3, (2, 20, 20))
    inside = (..., slice(1, -1), slice(1, -1))
    theirs = monai.losses.NACLLoss(classes=3, dim=2)
    penalty = (theirs.get_constr_target(target) - logits).abs()[inside].mean()
    expected = F.cross_entropy(logits[inside], target[inside]) + 0.1 * penalty
    ours = NACLLoss(reduction="none")(logits, target)[inside].mean()
    torch.testing.assert_close(ours, expected)


def test_descending_the_penalty_leads_to_the_prior() -> None:
    target = torch.randint(3, (1, 8, 8))
    logits = torch.randn(1, 3, 8, 8, requires_grad=True)
    loss = NACLLoss(1.0, penalty="l2", reduction="sum")
    gaps = []
    for _ in range(200):
        penalty = loss.terms(logits, target)["penalty"]
        (grad,) = torch.autograd.grad(penalty, logits)
        logits = (logits - 0.5 * grad).detach().requires_grad_()
        gaps.append(penalty.item())
    assert all(after <= before for before, after in pairwise(gaps))
    torch.testing.assert_close(logits.detach(), neighborhood_prior(target, 3), atol=1e-4, rtol=0)
