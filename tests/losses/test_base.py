"""What holds for every loss: gradients, limits, precision, compilation, terms, and sums."""

import copy
from typing import Any

import monai.losses
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.loss_samples import NAMES, VARIANTS, check_parameter, random_batch, two_pixels
from segcal.losses import (
    CEDiceLoss,
    CrossEntropyLoss,
    DiceLoss,
    ECPLoss,
    FocalLoss,
    MbLSLoss,
    NACLLoss,
    PenalizedLoss,
    Pixels,
    SegmentationLoss,
    SVLSLoss,
    WeightedSum,
    add_up,
    loss_terms,
    make_loss,
)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("shape", [(2, 3, 4, 3), (1, 3, 2, 3, 2)], ids=["2d", "3d"])
# No gradient flows through the denominator of proper Dice: see test_dice.
@pytest.mark.parametrize(("name", "options"), [v for v in VARIANTS if "proper" not in v[0]])
def test_gradcheck(
    name: str, options: dict[str, Any], shape: tuple[int, ...], reduction: str
) -> None:
    logits, target = random_batch(*shape, dtype=torch.float64)
    target[0, 0] = -100
    weights = torch.rand(shape[1]) + 0.5
    loss = make_loss(name, class_weights=weights, reduction=reduction, **options)
    assert torch.autograd.gradcheck(lambda x: loss(x, target), logits.requires_grad_())


def test_second_derivatives_in_torch() -> None:
    logits, target = random_batch(1, 3, 4, 3, dtype=torch.float64)
    for name in NAMES:
        if name == "ce_proper_dice":
            continue
        loss = make_loss(name, fused=False)
        assert torch.autograd.gradgradcheck(lambda x, f=loss: f(x, target), logits.requires_grad_())


@pytest.mark.parametrize(
    "loss",
    [
        CEDiceLoss(0.0),
        FocalLoss(0.0),
        ECPLoss(0.0),
        make_loss("ls", alpha=0.0),
        SVLSLoss(patch_size=1),
        MbLSLoss(penalty_weight=0.0),
        NACLLoss(penalty_weight=0.0),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_limits_are_exactly_cross_entropy(loss: SegmentationLoss) -> None:
    logits, target = random_batch(2, 4, 9, 8)
    logits.requires_grad_()
    expected = CrossEntropyLoss()(logits, target)
    found = loss(logits, target)
    assert torch.equal(found, expected)
    (expected_grad,) = torch.autograd.grad(expected, logits)
    (found_grad,) = torch.autograd.grad(found, logits)
    if isinstance(loss, SVLSLoss):  # also sums the zeros of the other classes, in another order
        torch.testing.assert_close(found_grad, expected_grad)
    else:
        assert torch.equal(found_grad, expected_grad)
    assert expected.item() == pytest.approx(F.cross_entropy(logits, target).item(), rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("option", "value"),
    [("ignore_index", 1), ("class_weights", [1.0, 2.0, 5.0]), ("reduction", "sum")],
)
def test_every_common_parameter_changes_the_result(name: str, option: str, value: Any) -> None:
    check_parameter(name, option, value, **({"margin": 1.0} if name == "mbls" else {}))


@pytest.mark.parametrize("name", NAMES)
def test_reductions(name: str) -> None:
    logits, target = two_pixels(2)
    per_pixel = make_loss(name, reduction="none")(logits, target)
    assert per_pixel.shape == target.shape
    mean = make_loss(name, reduction="mean")(logits, target)
    torch.testing.assert_close(per_pixel.mean(), mean)
    if "dice" not in name:  # Dice is summed over images, not pixels
        total = make_loss(name, reduction="sum").terms(logits, target)
        torch.testing.assert_close(torch.stack(list(total.values())).sum(), per_pixel.sum())


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_channels_last_3d(name: str, options: dict[str, Any], device: str) -> None:
    logits, target = (t.to(device) for t in random_batch(2, 3, 4, 5, 6))
    loss = make_loss(name, **options).to(device)
    strided = logits.contiguous(memory_format=torch.channels_last_3d).requires_grad_()
    plain = logits.clone().requires_grad_()
    loss(strided, target).backward()
    loss(plain, target).backward()
    torch.testing.assert_close(strided.grad, plain.grad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_half_precision_is_reduced_in_float32(
    name: str, options: dict[str, Any], dtype: torch.dtype, device: str
) -> None:
    logits, target = (t.to(device) for t in random_batch(2, 3, 64, 64))
    half = logits.to(dtype).requires_grad_()
    loss = make_loss(name, **options).to(device)
    found = loss(half, target)
    assert found.dtype == torch.float32
    assert torch.equal(found, loss(half.float(), target))
    found.backward()
    assert half.grad is not None
    assert half.grad.dtype == dtype


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_autocast_changes_nothing(name: str, options: dict[str, Any], device: str) -> None:
    logits, target = (t.to(device) for t in random_batch(2, 3, 16, 16))
    loss = make_loss(name, **options).to(device)
    expected = loss(logits, target)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.equal(loss(logits, target), expected)


@pytest.mark.parametrize(
    ("name", "options"),
    [("nacl", {}), ("nacl", {"prior": "median", "constrain": "softmax"}), ("svls", {}),
     ("ce_dice", {}), ("ecp", {})],
)  # fmt: skip
@pytest.mark.parametrize("dynamic", [pytest.param(None, marks=pytest.mark.slow), True])
def test_torch_compile_in_one_graph(
    name: str, options: dict[str, Any], dynamic: bool | None, device: str
) -> None:
    torch.compiler.reset()
    logits, target = (t.to(device) for t in random_batch(2, 3, 12, 12))
    target[0, :3] = -100
    loss = make_loss(name, **options).to(device)
    # On the CPU inductor needs a C++ compiler, which may be missing.
    backend = "aot_eager" if device == "cpu" else "inductor"
    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend=backend)
    plain, traced = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    expected, found = loss(plain, target), compiled(traced, target)
    torch.testing.assert_close(found, expected)
    expected.backward()
    found.backward()
    torch.testing.assert_close(traced.grad, plain.grad)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_one_class_images_and_extreme_logits_are_finite(
    name: str, options: dict[str, Any], scale: float
) -> None:
    logits, target = random_batch(2, 3, 6, 6)
    for label in (0, 2):
        value = make_loss(name, **options)(
            (scale * logits).requires_grad_(), torch.full_like(target, label)
        )
        assert torch.isfinite(value)
    certain = torch.zeros(1, 3, 4, 4)
    certain[:, 1] = 200.0  # softmax exactly 1 for class 1
    for label in (1, 0):
        leaf = certain.clone().requires_grad_()
        make_loss(name, **options)(leaf, torch.full((1, 4, 4), label)).backward()
        assert leaf.grad is not None
        assert torch.isfinite(leaf.grad).all()


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_nan_logits_give_nan(name: str, options: dict[str, Any]) -> None:
    logits, target = random_batch(1, 3, 6, 6)
    logits[0, 1, 2, 2] = float("nan")
    assert torch.isnan(make_loss(name, **options)(logits, target))


def test_a_loss_trains_a_network_and_moves_with_it(device: str) -> None:
    """Only the loss is exchanged: a 1×1 convolution learns to threshold an image."""
    image = torch.rand(4, 1, 16, 16, device=device)
    target = (image.squeeze(1) > 0.5).long()
    for name in NAMES:
        net = nn.Conv2d(1, 2, 1).to(device)
        loss = make_loss(name, class_weights=[1.0, 1.0]).to(device)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        for _ in range(150):
            optimizer.zero_grad()
            loss(net(image), target).backward()
            optimizer.step()
        accuracy = (net(image).argmax(1) == target).float().mean()
        assert accuracy > 0.9, name
    assert copy.deepcopy(loss).class_weights is not None
    assert loss.state_dict() == {}


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_terms_are_named_and_add_up(name: str, options: dict[str, Any]) -> None:
    logits, target = random_batch(2, 3, 8, 8)
    loss = make_loss(name, **options)
    terms = loss.terms(logits, target)
    torch.testing.assert_close(torch.stack(list(terms.values())).sum(), loss(logits, target))
    if name in ("ecp", "mbls", "nacl"):
        assert list(terms) == ["ce", "penalty"]
        loss.penalty_weight = 0.0
        assert list(loss.terms(logits, target)) == ["ce", "penalty"]


class OwnLoss(SegmentationLoss):
    """A user's loss: two terms per pixel, one of them weighted by class."""

    weighted_terms = ("ce",)

    def pixel_terms(self, pixels: Pixels) -> dict[str, Tensor]:
        return {"ce": pixels.nll(pixels.log_probs), "size": pixels.logits.square().mean(1)}


class OwnPenalty(PenalizedLoss):
    """A user's penalty."""

    def pixel_penalty(self, pixels: Pixels) -> Tensor:
        return pixels.logits.square().mean(1)


class ThousandTimes(NACLLoss):
    """A user's loss that overrides `forward`."""

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return 1000 * super().forward(logits, target)


def test_a_users_loss_defines_its_terms_per_pixel(device: str) -> None:
    logits, target = (t.to(device) for t in random_batch(2, 3, 8, 8))
    target[:, :2] = -100
    kept = target != -100
    size = logits.square().mean(1)
    terms = OwnLoss().terms(logits, target)
    torch.testing.assert_close(terms["ce"], F.cross_entropy(logits, target))
    torch.testing.assert_close(terms["size"], size[kept].mean())
    torch.testing.assert_close(OwnLoss()(logits, target), add_up(terms))
    per_pixel = OwnLoss(reduction="none").terms(logits, target)["size"]
    torch.testing.assert_close(per_pixel, size * kept)
    weights = torch.tensor([1.0, 2.0, 5.0], device=device)
    weighted = OwnLoss(class_weights=weights).to(device).terms(logits, target)
    torch.testing.assert_close(weighted["ce"], F.cross_entropy(logits, target, weights))
    torch.testing.assert_close(weighted["size"], terms["size"])
    assert OwnLoss()(logits.half(), target).dtype == torch.float32


def test_a_users_penalty_is_added_to_cross_entropy() -> None:
    logits, target = random_batch(2, 3, 8, 8)
    expected = F.cross_entropy(logits, target) + 0.3 * logits.square().mean()
    torch.testing.assert_close(OwnPenalty(0.3)(logits, target), expected)


def test_a_loss_without_terms_is_named() -> None:
    with pytest.raises(NotImplementedError, match=r"SegmentationLoss .*`pixel_terms`"):
        SegmentationLoss()(*random_batch(2, 3, 8, 8))
    with pytest.raises(NotImplementedError, match=r"PenalizedLoss .*`pixel_penalty`"):
        PenalizedLoss()(*random_batch(2, 3, 8, 8))


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        (NACLLoss(), ["ce", "penalty"]),
        (OwnLoss(), ["ce", "size"]),
        (DiceLoss(), ["dice"]),
        (WeightedSum(NACLLoss(), DiceLoss()), ["ce", "penalty", "dice"]),
        (ThousandTimes(), ["loss"]),
        (nn.CrossEntropyLoss(), ["loss"]),
        (torch.compile(NACLLoss(), backend="eager"), ["loss"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_loss_terms_add_up_to_what_the_loss_returns(loss: nn.Module, names: list[str]) -> None:
    logits, target = random_batch(2, 3, 8, 8)
    terms = loss_terms(loss, logits, target)
    assert list(terms) == names
    torch.testing.assert_close(add_up(terms), loss(logits, target))


def test_loss_terms_of_a_forward_replaced_on_the_instance() -> None:
    logits, target = random_batch(2, 3, 8, 8)
    loss = NACLLoss()
    loss.forward = lambda logits, target: logits.sum()  # type: ignore[method-assign]
    assert torch.equal(loss_terms(loss, logits, target)["loss"], logits.sum())


@pytest.mark.parametrize("name", ["DiceLoss", "DiceCELoss", "DiceFocalLoss", "TverskyLoss"])
def test_monai_losses_get_labels_with_a_channel_axis(name: str) -> None:
    logits, target = random_batch(2, 3, 8, 8)
    loss = getattr(monai.losses, name)(softmax=True, to_onehot_y=True)
    expected = loss(logits, target.unsqueeze(1))
    assert torch.equal(loss_terms(loss, logits, target)["loss"], expected)
    assert torch.equal(loss_terms(loss, logits, target.unsqueeze(1))["loss"], expected)
    both = WeightedSum(CrossEntropyLoss(), loss, weights=[1.0, 0.5])
    terms = both.terms(logits, target)
    assert list(terms) == ["ce", name]
    torch.testing.assert_close(both(logits, target), F.cross_entropy(logits, target) + expected / 2)
    torch.testing.assert_close(add_up(terms), both(logits, target))


def test_a_loss_that_returns_no_tensor_is_named() -> None:
    class Pair(nn.Module):
        def forward(self, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
            return logits.sum(), logits.sum()

    with pytest.raises(TypeError, match="Pair to return a tensor, but got tuple"):
        loss_terms(Pair(), *random_batch(2, 3, 8, 8))


def test_weighted_sum_adds_names_and_weights() -> None:
    logits, target = random_batch(2, 3, 8, 8)
    both = WeightedSum(NACLLoss(), DiceLoss(), weights=(1.0, 0.5))
    terms = both.terms(logits, target)
    assert list(terms) == ["ce", "penalty", "dice"]
    expected = NACLLoss()(logits, target) + 0.5 * DiceLoss()(logits, target)
    torch.testing.assert_close(both(logits, target), expected)
    twice = WeightedSum(NACLLoss(), ECPLoss(), WeightedSum(ECPLoss(), MbLSLoss(), DiceLoss()))
    terms = twice.terms(logits, target)
    assert list(terms) == [
        "0.ce", "0.penalty", "1.ce", "1.penalty",
        "2.0.ce", "2.0.penalty", "2.1.ce", "2.1.penalty", "2.dice",
    ]  # fmt: skip
    torch.testing.assert_close(sum(terms.values()), twice(logits, target))
    torches = WeightedSum(nn.CrossEntropyLoss(), nn.CrossEntropyLoss(), ThousandTimes())
    terms = torches.terms(logits, target)
    assert list(terms) == ["0.CrossEntropyLoss", "1.CrossEntropyLoss", "ThousandTimes"]
    torch.testing.assert_close(sum(terms.values()), torches(logits, target))
    per_pixel = WeightedSum(NACLLoss(reduction="none"), DiceLoss(reduction="none"))
    assert per_pixel(logits, target).shape == target.shape
    for count in (0, 3):
        with pytest.raises(ValueError, match="one value per loss"):
            WeightedSum(NACLLoss(), DiceLoss(), weights=[1.0] * count)
    with pytest.raises(TypeError, match="cross_entropy is not a Module"):
        WeightedSum(F.cross_entropy)  # type: ignore[arg-type]
