"""Checked input: shapes, types, ignored pixels, invalid labels, soft targets, class weights."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.loss_samples import NAMES, VARIANTS, random_batch
from segcal.losses import (
    CrossEntropyLoss,
    FocalLoss,
    LabelSmoothingLoss,
    NACLLoss,
    SVLSLoss,
    make_loss,
)

BAD: list[tuple[Any, Any, type[Exception], str]] = [
    (torch.randn(2, 3, 8), torch.zeros(2, 8).long(), ValueError, r"`logits` to have shape.*\(2, 3"),
    (torch.randn(2, 1, 8, 8), torch.zeros(2, 8, 8).long(), ValueError, "K ≥ 2"),
    (torch.randn(0, 3, 8, 8), torch.zeros(0, 8, 8).long(), ValueError, r"`logits`.*\(0, 3, 8, 8\)"),
    (torch.zeros(2, 3, 8, 8).long(), torch.zeros(2, 8, 8).long(), TypeError, "floating.*int64"),
    ([1, 2], torch.zeros(2, 8, 8).long(), TypeError, "`logits`.*list"),
    (torch.randn(2, 3, 8, 8), torch.zeros(2, 8, 9).long(), ValueError,
     r"`target` to have shape \(2, 8, 8\), \(2, 1, 8, 8\) or \(2, 3, 8, 8\).*\(2, 8, 9\)"),
    (torch.randn(2, 3, 8, 8), torch.zeros(2, 2, 8, 8), ValueError, r"but got \(2, 2, 8, 8\)"),
    (torch.randn(2, 3, 8, 8), None, TypeError, "`target` to be a tensor, but got NoneType"),
    (torch.randn(2, 3, 8, 8), torch.full((2, 8, 8), 3), ValueError,
     "labels 0 to 2.*-100.*but got 3"),
    (torch.randn(2, 3, 8, 8), torch.arange(128).view(2, 8, 8), ValueError, r"3, 4, 5, 6, 7, …"),
    (torch.randn(2, 3, 8, 8), torch.full((2, 8, 8), -1), ValueError, "but got -1"),
    (torch.randn(2, 3, 8, 8), torch.full((2, 8, 8), 0.5), ValueError, "whole labels"),
    (torch.randn(2, 3, 8, 8), torch.full((2, 8, 8), float("nan")), ValueError, "whole labels"),
    (torch.randn(2, 3, 8, 8), torch.rand(2, 3, 8, 8), ValueError, "summing to 1"),
    (torch.randn(2, 3, 8, 8), torch.full((2, 3, 8, 8), float("nan")), ValueError, "summing to 1"),
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("logits", "target", "error", "message"), BAD)
def test_bad_input_is_named(
    name: str, logits: Any, target: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_loss(name)(logits, target)


def test_class_weights_must_fit_the_logits() -> None:
    with pytest.raises(ValueError, match=r"`class_weights` to have 3 values.*got 2"):
        CrossEntropyLoss(class_weights=[1.0, 2.0])(*random_batch(1, 3, 4, 4))


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_target_shapes_agree(name: str, options: dict[str, Any], device: str) -> None:
    logits, target = (t.to(device) for t in random_batch(2, 3, 6, 7))
    loss = make_loss(name, **options).to(device)
    expected = loss(logits, target)
    for same in (target.unsqueeze(1), target.byte(), target.int()):
        assert torch.equal(loss(logits, same), expected)
    # On a GPU whole numbers in float run in torch, which rounds differently from the kernels.
    torch.testing.assert_close(loss(logits, target.unsqueeze(1).float()), expected)
    channels_last = logits.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(loss(channels_last, target), expected)
    one = loss(logits[:1], target[:1])
    assert torch.isfinite(one)


@pytest.mark.parametrize("loss", [LabelSmoothingLoss(), FocalLoss(1.0), SVLSLoss(), NACLLoss()])
def test_soft_one_hot_equals_labels(loss: torch.nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    logits, target = batch
    soft = F.one_hot(target, logits.shape[1]).movedim(-1, 1)
    torch.testing.assert_close(loss(logits, soft.double()), loss(logits, target))
    torch.testing.assert_close(loss(logits, soft), loss(logits, target))  # integers too


def test_soft_targets_in_half_precision_and_with_a_gradient() -> None:
    logits = torch.randn(2, 5, 8, 8)
    soft = torch.randn(2, 5, 8, 8).softmax(1)
    for dtype in (torch.bfloat16, torch.float16):
        found = NACLLoss()(logits, soft.to(dtype))
        torch.testing.assert_close(found, NACLLoss()(logits, soft), rtol=1e-2, atol=1e-2)
    learned = soft.clone().requires_grad_()
    NACLLoss()(logits, learned).backward()  # through the cross-entropy; the prior is a constant
    expected = -logits.log_softmax(1) / soft[:, 0].numel()
    torch.testing.assert_close(learned.grad, expected)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_all_ignored_is_zero(
    name: str, options: dict[str, Any], reduction: str, device: str
) -> None:
    logits, target = (t.to(device) for t in random_batch(2, 3, 5, 5))
    target.fill_(-100)
    for weights in (None, [1.0, 2.0, 3.0]):
        loss = make_loss(name, reduction=reduction, class_weights=weights, **options).to(device)
        value = loss(logits.requires_grad_(), target)
        assert not value.any()
        (grad,) = torch.autograd.grad(value.sum(), logits)
        assert not grad.any()


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_logits_of_ignored_pixels_have_no_effect(
    name: str, options: dict[str, Any], device: str
) -> None:
    """Value and gradient do not depend on them, and their own gradient is 0."""
    logits, target = (t.to(device) for t in random_batch(2, 3, 8, 8))
    for ignore in (-100, 255, 1):
        marked = target.clone()
        marked[:, 2:4] = ignore
        hidden = marked == ignore
        loss = make_loss(name, ignore_index=ignore, **options).to(device)
        changed = torch.where(hidden.unsqueeze(1), 9 * torch.randn_like(logits), logits)
        first, second = logits.clone().requires_grad_(), changed.requires_grad_()
        a, b = loss(first, marked), loss(second, marked)
        torch.testing.assert_close(a, b)
        (grad_a,) = torch.autograd.grad(a, first)
        (grad_b,) = torch.autograd.grad(b, second)
        torch.testing.assert_close(grad_a, grad_b)
        assert not grad_a[hidden.unsqueeze(1).expand_as(grad_a)].any()


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_soft_pixels_without_a_class_are_ignored(
    name: str, options: dict[str, Any], device: str
) -> None:
    """K zeros are the soft form of an ignored label, in the loss and in the priors."""
    if options.get("prior") == "median":
        pytest.skip("order statistics need labels")
    logits, target = (t.to(device) for t in random_batch(2, 3, 8, 8))
    soft = F.one_hot(target, 3).movedim(-1, 1).double()
    for hidden in (target == 1, torch.ones_like(target, dtype=torch.bool)):
        marked = target.masked_fill(hidden, -100)
        soft = soft.masked_fill(hidden.unsqueeze(1), 0)
        for reduction in ("mean", "sum", "none"):
            loss = make_loss(name, reduction=reduction, class_weights=[1.0, 2.0, 3.0], **options)
            loss = loss.to(device)
            torch.testing.assert_close(loss(logits, soft), loss(logits, marked))


def test_soft_pixels_are_not_ignored_by_mistake() -> None:
    logits, soft = torch.randn(1, 3, 4, 4), torch.full((1, 3, 4, 4), 1 / 3)
    soft[0, :, 0, 0] = torch.tensor([0.5, -0.5, 0.0])
    with pytest.raises(ValueError, match="summing to 1"):
        CrossEntropyLoss()(logits, soft)
    torch.compiler.reset()
    compiled = torch.compile(CrossEntropyLoss(), backend="eager", fullgraph=True)
    soft[0, :, 0, 0] = float("nan")
    assert torch.isnan(compiled(logits, soft))
    soft[0, :, 0, 0] = 0
    torch.testing.assert_close(compiled(logits, soft), CrossEntropyLoss()(logits, soft))


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_invalid_labels_give_nan_where_they_are_not_checked(
    name: str, options: dict[str, Any]
) -> None:
    """Under torch.compile, as on a GPU, labels are not read first."""
    torch.compiler.reset()
    logits, target = random_batch(1, 3, 6, 6)
    compiled = torch.compile(make_loss(name, **options), backend="eager", fullgraph=True)
    assert torch.isfinite(compiled(logits, target))
    for invalid in (3, -1, 257, -300):
        wrong = target.clone()
        wrong[0, 2, 2] = invalid
        assert torch.isnan(compiled(logits, wrong)), invalid
    fraction = target.unsqueeze(1).float()
    fraction[0, 0, 3, 3] = 0.7
    assert torch.isnan(compiled(logits, fraction))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_labels_on_a_gpu_are_checked_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = torch.full((2, 8, 8), 3).cuda()
    monkeypatch.setenv("SEGCAL_CHECK_LABELS", "0")
    for fused in (True, False):
        assert torch.isnan(NACLLoss(fused=fused)(torch.randn(2, 3, 8, 8).cuda(), bad))
    monkeypatch.setenv("SEGCAL_CHECK_LABELS", "1")
    with pytest.raises(ValueError, match="but got 3"):
        NACLLoss()(torch.randn(2, 3, 8, 8).cuda(), bad)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_target_on_another_device_is_named() -> None:
    with pytest.raises(ValueError, match="on the device of the logits"):
        NACLLoss()(torch.randn(2, 3, 8, 8).cuda(), torch.zeros(2, 8, 8).long())
