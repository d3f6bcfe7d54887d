"""Comparison of the fused losses with torch in float64."""

import torch
from torch import Tensor

from segcal.losses import SegmentationLoss, WeightedSum

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def both(
    loss: SegmentationLoss | WeightedSum, logits: Tensor, target: Tensor
) -> tuple[Tensor, ...]:
    """Value and gradient: fused, and of torch in float64; maps get an uneven incoming gradient."""
    results: list[Tensor] = []
    loss = loss.to(DEVICE)
    for fused, leaf in ((True, logits.detach().clone()), (False, logits.detach().double())):
        for part in loss.modules():
            part.fused = fused  # type: ignore[assignment]
        leaf.requires_grad_()
        loss(leaf, target)  # the second launch skips some checks
        value = loss(leaf, target)
        generator = torch.Generator().manual_seed(1)
        coming = torch.rand(value.shape, generator=generator).to(value)
        (grad,) = torch.autograd.grad(value, leaf, coming)
        results += [value.detach(), grad]
    return tuple(results)


def check(loss: SegmentationLoss | WeightedSum, logits: Tensor, target: Tensor) -> None:
    """The fused loss equals torch: value, gradient, their types and layout."""
    value, grad, expected, expected_grad = both(loss, logits, target)
    assert value.dtype == torch.float32
    assert grad.dtype == logits.dtype
    assert grad.stride() == logits.stride()
    torch.testing.assert_close(value.double(), expected, rtol=2e-5, atol=1e-5)
    # A gradient of half precision is rounded to it; float32 keeps about seven digits.
    digits = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[logits.dtype]
    scale = expected_grad.abs().max().item()
    assert (grad.double() - expected_grad).abs().max().item() <= digits * scale + 1e-7
