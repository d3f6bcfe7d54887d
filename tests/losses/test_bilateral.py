"""The prior weighted by intensity: by hand, against a loop, its limits, and in a loss."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.loss_samples import random_batch, two_pixels
from segcal.losses import (
    BilateralPrior,
    CrossEntropyLoss,
    DiceLoss,
    NACLLoss,
    Prior,
    WeightedSum,
    loss_terms,
    make_loss,
    neighborhood_prior,
)


def two_intensities(dim: int) -> Tensor:
    """0 at pixel A and 1 at pixel B: they differ by two standard deviations."""
    return torch.tensor([0.0, 1.0], dtype=torch.float64).view(1, 1, *(1,) * (dim - 1), 2)


@pytest.mark.parametrize("dim", [2, 3])
def test_by_hand(dim: int) -> None:
    """Around A two thirds of the patch are copies of A; a copy of B counts a = exp(−2²/2σ²)."""
    _, target = two_pixels(dim)
    for sigma in (0.7, 1.0, 3.0):
        a = math.exp(-(2**2) / (2 * sigma**2))
        prior = BilateralPrior(intensity_sigma=sigma)
        tau = prior(target, 2, dtype=torch.float64, image=two_intensities(dim)).flatten(2)
        other = a / (2 + a)
        expected = torch.tensor([[[1 - other, other], [other, 1 - other]]], dtype=torch.float64)
        torch.testing.assert_close(tau, expected)


def test_the_penalty_by_hand() -> None:
    """|τ − l| with logits (2, 0) at A and (0, 1) at B, σ of one standard deviation."""
    a = math.exp(-2)
    other = a / (2 + a)
    logits, target = two_pixels(2)
    loss = NACLLoss(0.3, "bilateral", intensity_sigma=1.0)
    terms = loss.terms(logits, target, two_intensities(2))
    expected = 0.3 * (1 + other + other + other + other) / 4
    assert terms["penalty"].item() == pytest.approx(expected, rel=1e-12)
    assert terms["ce"].item() == pytest.approx(CrossEntropyLoss()(logits, target).item())


def by_definition(
    labels: np.ndarray, image: np.ndarray, prior: BilateralPrior, patch: tuple[int, ...]
) -> np.ndarray:
    """The formula, pixel by pixel, with the border "valid"; label −1 is ignored."""
    tau = np.zeros((labels.shape[0], 3, *labels.shape[1:]))
    variance = image.var(tuple(range(2, image.ndim)))
    offsets = list(itertools.product(*(range(-(p // 2), p // 2 + 1) for p in patch)))
    gauss = [math.exp(-sum(x * x for x in o) / (2 * prior.sigma**2)) for o in offsets]
    for b, *center in np.ndindex(labels.shape):
        for offset, weight in zip(offsets, gauss, strict=True):
            where = tuple(c + o for c, o in zip(center, offset, strict=True))
            if any(not 0 <= w < n for w, n in zip(where, labels.shape[1:], strict=True)):
                continue
            if (label := labels[(b, *where)]) < 0:
                continue
            if prior.kind == "mean":
                weight = 1.0
            elif not any(offset):
                weight = sum(gauss) - 1
            gap = image[(b, slice(None), *where)] - image[(b, slice(None), *center)]
            far = (gap**2 / (prior.intensity_sigma**2 * variance[b])).mean()
            tau[(b, label, *center)] += weight * math.exp(-far / 2)
    return tau / np.maximum(tau.sum(1, keepdims=True), 1e-300)


@pytest.mark.parametrize("kind", ["mean", "gaussian"])
@pytest.mark.parametrize(("space", "patch"), [((5, 6), (3, 5)), ((2, 4, 5), (1, 3, 3))])
def test_the_definition(kind: Any, space: tuple[int, ...], patch: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    labels, image = rng.integers(-1, 3, (2, *space)), rng.normal(size=(2, 2, *space))
    prior = BilateralPrior(kind, patch, sigma=0.8, border="valid", intensity_sigma=0.6)
    found = neighborhood_prior(
        torch.from_numpy(labels), 3, prior, patch, 0.8, "valid", -1,
        dtype=torch.float64, image=torch.from_numpy(image),
    )  # fmt: skip
    expected = by_definition(labels, image, prior, patch)
    torch.testing.assert_close(found, torch.from_numpy(expected))


@pytest.mark.parametrize("kind", ["mean", "gaussian"])
@pytest.mark.parametrize("border", ["replicate", "background", "valid"])
@pytest.mark.parametrize("space", [(6, 7), (3, 4, 5)])
def test_limits(kind: Any, border: Any, space: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    target, image = torch.randint(3, (2, *space)), torch.randn(2, 1, *space)
    own = torch.nn.functional.one_hot(target, 3).movedim(-1, 1).float()
    wide = BilateralPrior(kind, border=border, intensity_sigma=1e4)(target, 3, image=image)
    torch.testing.assert_close(wide, Prior(kind, border=border)(target, 3))
    narrow = BilateralPrior(kind, border="valid", intensity_sigma=1e-6)(target, 3, image=image)
    torch.testing.assert_close(narrow, own)
    constant = BilateralPrior(kind, border=border)(target, 3, image=torch.ones_like(image))
    torch.testing.assert_close(constant, Prior(kind, border=border)(target, 3))


def test_scale_of_the_image_does_not_matter_and_parameters_do() -> None:
    logits, target = random_batch(2, 3, 8, 8)
    image = torch.randn(2, 1, 8, 8)
    loss = make_loss("nacl", prior="bilateral")
    base = loss(logits, target, image)
    torch.testing.assert_close(loss(logits, target, 7 * image), base)
    for options in ({"intensity_sigma": 1.0}, {"patch_size": 5}):
        other = make_loss("nacl", prior="bilateral", **options)(logits, target, image)
        assert other.item() != pytest.approx(base.item(), rel=1e-6)
    with pytest.raises(ValueError, match="`intensity_sigma` only with the prior 'bilateral'"):
        make_loss("nacl", intensity_sigma=1.0)
    with pytest.raises(ValueError, match="`kind` to be one of 'mean', 'gaussian'"):
        BilateralPrior("mode")
    with pytest.raises(ValueError, match=r"loss\(logits, target, image\)"):
        loss(logits, target)


@pytest.mark.parametrize("shape", [(2, 3, 4, 3), (1, 3, 2, 3, 2)])
def test_gradcheck_with_ignored_pixels(shape: tuple[int, ...]) -> None:
    logits, target = random_batch(*shape, dtype=torch.float64)
    target[0, 0] = -100
    image = torch.randn(shape[0], 2, *shape[2:], dtype=torch.float64)
    loss = NACLLoss(prior="bilateral")
    logits = logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss(x, target, image), logits)


def test_sums_and_heads_pass_the_image_on() -> None:
    logits, target = random_batch(2, 3, 8, 8)
    image = torch.randn(2, 1, 8, 8)
    nacl, dice = NACLLoss(prior="bilateral"), DiceLoss()
    both = WeightedSum(nacl, dice, weights=[2.0, 1.0])
    expected = 2 * nacl(logits, target, image) + dice(logits, target)
    torch.testing.assert_close(both(logits, target, image), expected)
    torch.testing.assert_close(sum(loss_terms(both, logits, target, image).values()), expected)
    assert list(loss_terms(CrossEntropyLoss(), logits, target, image)) == ["ce"]
    heads = NACLLoss(prior="bilateral", constrain="softmax", activation="sigmoid")
    regions = torch.randint(2, (2, 3, 8, 8))
    each = [heads(logits[:, k : k + 1], regions[:, k : k + 1], image) for k in range(3)]
    torch.testing.assert_close(heads(logits, regions, image), sum(each) / 3)
