"""The average calibration error in the kernels, against torch in float64."""

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.fused_checks import CUDA, DEVICE, check
from segcal.losses import (
    ACELoss,
    CEDiceACELoss,
    CrossEntropyLoss,
    DiceLoss,
    SegmentationLoss,
    WeightedSum,
    make_loss,
)
from segcal.losses.kernels import pixel_loss
from segcal.losses.kernels.ptx import counting_code, storing_code, true_class_code

pytest.importorskip("triton", reason="the kernels need Triton")
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
DRAWS = 100 if CUDA else 6


def away_from_borders(logits: Tensor, bins: int) -> Tensor:
    """Logits without probabilities at the border of a bin, where rounding decides."""
    probs = logits.double().softmax(1) * bins
    near = ((probs - probs.round()).abs() < 1e-4) & (probs > 1e-3) & (probs < bins - 1e-3)
    safe = torch.zeros_like(logits)
    safe[:, 0] = 40.0
    return torch.where(near.any(1, keepdim=True), safe, logits)


def draw(seed: int) -> tuple[SegmentationLoss | WeightedSum, Tensor, Tensor]:
    """A random sum with ACE, on random logits and labels."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    classes = rng.choice([2, 3, 4, 5, 14, 33] if CUDA else [2, 3, 4, 5])
    axes = rng.choice([2, 3])
    space = [
        rng.choice([1, 2, 5, 12, 17, 48] if axes == 2 else [1, 3, 6, 9, 16]) for _ in range(axes)
    ]
    shape = (rng.choice([1, 2, 3]), classes, *space)
    ignore = rng.choice([-100, -100, 255, 0, classes])
    common: dict[str, Any] = {
        "ignore_index": ignore, "reduction": rng.choice(["mean", "mean", "sum"])
    }  # fmt: skip
    bins = rng.choice([1, 7, 20, 20, 32, 63])
    parts: list[Any] = [ACELoss(bins, **common)]
    if rng.random() < 0.7:
        if rng.random() < 0.7:
            form: Any = rng.choice(["linear", "squared", "proper"])
            over: Any = rng.choice(["image", "batch"])
            parts.insert(0, DiceLoss(form, over, **common))
        parts.insert(0, CrossEntropyLoss(**common))
    loss = (
        parts[0] if len(parts) == 1 else WeightedSum(*parts, weights=[0.5, 1.0, 2.0][: len(parts)])
    )
    dtype = rng.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
    logits = (rng.choice([1.0, 3.0, 1e3]) * torch.randn(shape)).to(dtype)
    logits = away_from_borders(logits, bins)
    if rng.random() < 0.3:
        last = torch.channels_last if axes == 2 else torch.channels_last_3d
        logits = logits.contiguous(memory_format=last)
    target = torch.randint(classes, (shape[0], *space))
    target[torch.rand(target.shape) < rng.choice([0.0, 0.3, 1.0])] = ignore
    if rng.random() < 0.3:
        target = target.int()
    return loss, logits.to(DEVICE), target.to(DEVICE)


@pytest.mark.parametrize("seed", range(DRAWS))
def test_fused_equals_torch_in_float64(seed: int) -> None:
    check(*draw(seed))


@pytest.mark.parametrize(("classes", "space"), [(3, (26, 50)), (3, (3, 14, 15)), (14, (26, 22))])
def test_several_programs_for_an_image(classes: int, space: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    logits = away_from_borders(2 * torch.randn(2, classes, *space), 20).to(DEVICE)
    target = torch.randint(classes, (2, *space)).to(DEVICE)
    target[1][target[1] == 1] = 0  # class 1 is absent from the second image
    check(CEDiceACELoss(0.7), logits, target)


def test_terms_and_their_gradients_are_those_of_torch() -> None:
    torch.manual_seed(0)
    logits = away_from_borders(torch.randn(2, 3, 6, 8), 20).to(DEVICE)
    target = torch.randint(3, (2, 6, 8)).to(DEVICE)
    for name, names in (("ml1_ace", ["ace"]), ("ce_dice_ace", ["ce", "dice", "ace"])):
        found = []
        for fused in (True, False):
            leaf = logits.clone().requires_grad_()
            terms = make_loss(name, fused=fused).terms(leaf, target)
            assert list(terms) == names
            weighted = sum(
                weight * terms[key] for weight, key in zip((2, 3, 5), names, strict=False)
            )
            assert isinstance(weighted, Tensor)
            found.append([*terms.values(), *torch.autograd.grad(weighted, leaf)])
        for fused_part, plain_part in zip(*found, strict=True):
            torch.testing.assert_close(fused_part, plain_part, rtol=1e-4, atol=1e-6)


def test_code_has_one_line() -> None:
    # torch.compile writes it into a string literal.
    for code in (counting_code(20, 32, 16), true_class_code(128, 32, 96, 16), storing_code(64, 1)):
        assert code.startswith("{")
        assert code.endswith("}")
        assert "\n" not in code


def test_class_weights_fall_back() -> None:
    logits, target = torch.randn(1, 3, 4, 4).to(DEVICE), torch.zeros(1, 4, 4).long().to(DEVICE)

    def loss(fused: Any) -> WeightedSum:
        weighted = CrossEntropyLoss(class_weights=[1.0, 2.0, 3.0], fused=fused)
        return WeightedSum(weighted, ACELoss(fused=fused)).to(DEVICE)

    found, expected = loss(True)(logits, target), loss(False)(logits, target)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_more_pixels_than_one_program_can_add_up_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, target = torch.randn(2, 3, 4, 4).to(DEVICE), torch.zeros(2, 4, 4).long().to(DEVICE)
    monkeypatch.setattr(pixel_loss, "MAX_PROGRAMS", 1)
    with pytest.raises(ValueError, match="32 pixels are too many for the bins"):
        ACELoss(fused=True)(logits, target)
    found, expected = (ACELoss(fused=fused)(logits, target) for fused in ("auto", False))
    assert found == expected


def test_perfect_and_invalid_input() -> None:
    target = torch.randint(3, (2, 6, 8))
    logits = 200 * torch.nn.functional.one_hot(target, 3).movedim(-1, 1).float()
    loss = ACELoss(fused=True)
    assert loss(logits.to(DEVICE), target.to(DEVICE)) == 0
    assert loss(logits.to(DEVICE), torch.full_like(target, -100).to(DEVICE)) == 0
    logits[0, 1, 2, 3] = math.nan
    assert loss(logits.to(DEVICE), target.to(DEVICE)).isnan()


def test_the_result_is_the_same_every_time() -> None:
    torch.manual_seed(0)
    shape = (2, 4, 64, 256, 256) if CUDA else (1, 4, 26, 24)
    logits = torch.randn(shape).to(DEVICE).requires_grad_()
    target = torch.randint(4, (shape[0], *shape[2:])).to(DEVICE)
    results = []
    for _ in range(3 if CUDA else 2):
        value = CEDiceACELoss(fused=True)(logits, target)
        results.append((value.detach(), *torch.autograd.grad(value, logits)))
    for value, grad in results[1:]:
        assert torch.equal(value, results[0][0])
        assert torch.equal(grad, results[0][1])


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
def test_nothing_of_the_size_of_the_logits_is_kept_but_the_gradient() -> None:
    logits = torch.randn(16, 4, 256, 256, device=DEVICE, requires_grad=True)
    target = torch.randint(4, (16, 256, 256), device=DEVICE)
    for loss in (ACELoss(fused=True), CEDiceACELoss(fused=True)):
        torch.autograd.grad(loss(logits, target), logits)
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        torch.autograd.grad(loss(logits, target), logits)
        assert torch.cuda.max_memory_allocated() - held <= 1.05 * logits.nbytes
