"""Against outside code on random tensors; every difference is explained."""

from itertools import pairwise

import monai.losses
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from segcal.losses import (
    CEDiceLoss,
    CrossEntropyLoss,
    DiceLoss,
    FocalLoss,
    LabelSmoothingLoss,
    NACLLoss,
    SVLSLoss,
    cross_entropy,
    label_smoothing,
    neighbour_penalty,
)
from segcal.losses.priors import neighbourhood_prior


@pytest.fixture(params=[(2, 4, 12, 10), (2, 3, 6, 7, 8)], ids=["2d", "3d"])
def batch(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor]:
    shape = request.param
    logits = 3 * torch.randn(shape, dtype=torch.float64)
    return logits, torch.randint(shape[1], (shape[0], *shape[2:]))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.3, 1.0])
def test_torch_label_smoothing_and_cross_entropy(
    batch: tuple[Tensor, Tensor], alpha: float, weighted: bool, reduction: str
) -> None:
    logits, target = batch
    target[:, :2] = -100
    weights = torch.rand(logits.shape[1], dtype=torch.float64) if weighted else None
    expected = F.cross_entropy(logits, target, weights, label_smoothing=alpha, reduction=reduction)
    found = label_smoothing(logits, target, alpha=alpha, class_weights=weights, reduction=reduction)
    # Class weights are kept in float32.
    torch.testing.assert_close(found, expected, rtol=1e-6 if weighted else 1e-12, atol=0)
    if alpha == 0:
        found = cross_entropy(logits, target, class_weights=weights, reduction=reduction)
        torch.testing.assert_close(found, expected, rtol=1e-6 if weighted else 1e-12, atol=0)


def test_torch_soft_targets(batch: tuple[Tensor, Tensor]) -> None:
    logits, _ = batch
    soft = torch.randn_like(logits).softmax(1)
    torch.testing.assert_close(CrossEntropyLoss()(logits, soft), F.cross_entropy(logits, soft))
    weights = torch.rand(logits.shape[1], dtype=torch.float64)
    # With class weights torch divides by the pixels; we divide by the weight of the targets, as
    # both do for labels.
    pixels = soft[:, 0].numel()
    weight = (soft * weights.view(1, -1, *(1,) * (soft.ndim - 2))).sum()
    expected = F.cross_entropy(logits, soft, weights) * pixels / weight
    found = cross_entropy(logits, soft, class_weights=weights)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_monai_dice(batch: tuple[Tensor, Tensor]) -> None:
    logits, target = batch
    theirs = monai.losses.DiceLoss(softmax=True, to_onehot_y=True)
    expected = theirs(logits, target.unsqueeze(1))
    torch.testing.assert_close(DiceLoss()(logits, target), expected.to(logits.dtype))


def test_monai_dice_and_cross_entropy(batch: tuple[Tensor, Tensor]) -> None:
    logits, target = batch
    theirs = monai.losses.DiceCELoss(softmax=True, to_onehot_y=True, lambda_dice=0.7)
    expected = theirs(logits.float(), target.unsqueeze(1))
    torch.testing.assert_close(CEDiceLoss(0.7)(logits.float(), target), expected)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 3.0])
def test_monai_focal(batch: tuple[Tensor, Tensor], gamma: float) -> None:
    logits, target = batch
    theirs = monai.losses.FocalLoss(gamma=gamma, use_softmax=True, to_onehot_y=True)
    expected = theirs(logits, target.unsqueeze(1))
    # MONAI averages over pixels and classes; the formula sums over classes.
    found = FocalLoss(gamma)(logits, target)
    torch.testing.assert_close(found, (expected * logits.shape[1]).to(found.dtype))


@pytest.mark.parametrize("distance", ["l1", "l2"])
@pytest.mark.parametrize("size", [3, 5])
def test_monai_nacl_in_the_interior(batch: tuple[Tensor, Tensor], size: int, distance: str) -> None:
    """MONAI pads with nothing (τ sums to less than 1 at the border); inside, we are the same."""
    logits, target = batch[0].float(), batch[1]
    dim = logits.ndim - 2
    theirs = monai.losses.NACLLoss(
        classes=logits.shape[1], dim=dim, kernel_size=size, distance_type=distance
    )
    margin = size // 2
    inside = (slice(None), slice(None), *(slice(margin, -margin),) * dim)
    their_prior = theirs.get_constr_target(target)
    our_prior = neighbourhood_prior(target, logits.shape[1], patch_size=size)
    torch.testing.assert_close(our_prior[inside], their_prior[inside])
    assert their_prior.sum(1).min() < 0.9  # the difference at the border is real

    ours = neighbour_penalty(logits, target, patch_size=size, penalty=distance, reduction="none")
    gap = their_prior - logits
    expected = (gap.abs() if distance == "l1" else gap.square()).mean(1)
    torch.testing.assert_close(ours[inside[1:]], expected[inside[1:]])


def test_monai_nacl_whole_value() -> None:
    """The sum of both parts, over the pixels whose patch lies inside the image."""
    logits, target = torch.randn(2, 3, 20, 20), torch.randint(3, (2, 20, 20))
    inside = (..., slice(1, -1), slice(1, -1))
    theirs = monai.losses.NACLLoss(classes=3, dim=2)
    penalty = (theirs.get_constr_target(target) - logits).abs()[inside].mean()
    expected = F.cross_entropy(logits[inside], target[inside]) + 0.1 * penalty
    ours = NACLLoss(reduction="none")(logits, target)[inside].mean()
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_paper_identity_of_svls(batch: tuple[Tensor, Tensor], sigma: float) -> None:
    """Eq. 5: SVLS = CE + KL(τ'‖s) up to constants, so twice its gradient is that of the two.

    τ' is the share of the neighbours without the centre; SVLS gives ½ to each.
    """
    logits, target = batch
    logits.requires_grad_()
    classes = logits.shape[1]
    (svls_grad,) = torch.autograd.grad(SVLSLoss(sigma=sigma)(logits, target), logits)

    own = F.one_hot(target, classes).movedim(-1, 1)
    tau = neighbourhood_prior(target, classes, "gaussian", sigma=sigma, dtype=logits.dtype)
    neighbours = (2 * tau - own).clamp_min(0)
    kl = (torch.xlogy(neighbours, neighbours) - neighbours * logits.log_softmax(1)).sum(1).mean()
    (two_grad,) = torch.autograd.grad(F.cross_entropy(logits, target) + kl, logits)
    torch.testing.assert_close(2 * svls_grad, two_grad, rtol=1e-9, atol=1e-12)


def test_penalties_act_as_the_paper_says() -> None:
    """Descending the penalty alone leads the logits to the prior; MbLS stops at its margin."""
    target = torch.randint(3, (1, 8, 8))
    logits = torch.randn(1, 3, 8, 8, requires_grad=True)
    gaps = []
    for _ in range(200):
        loss = neighbour_penalty(logits, target, penalty="l2", reduction="sum")
        (grad,) = torch.autograd.grad(loss, logits)
        logits = (logits - 0.5 * grad).detach().requires_grad_()
        gaps.append(loss.item())
    assert all(after <= before for before, after in pairwise(gaps))
    torch.testing.assert_close(logits.detach(), neighbourhood_prior(target, 3), atol=1e-4, rtol=0)


@pytest.mark.parametrize("loss", [LabelSmoothingLoss(), FocalLoss(1.0), SVLSLoss(), NACLLoss()])
def test_soft_one_hot_equals_labels(loss: torch.nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    logits, target = batch
    soft = F.one_hot(target, logits.shape[1]).movedim(-1, 1)
    torch.testing.assert_close(loss(logits, soft.double()), loss(logits, target))
    torch.testing.assert_close(loss(logits, soft), loss(logits, target))  # integers too
