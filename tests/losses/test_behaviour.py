"""Gradients, limits, shapes, precision, compilation, ignored pixels, errors."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segcal.losses import (
    LOSSES,
    CEDiceLoss,
    CrossEntropyLoss,
    DiceLoss,
    ECPLoss,
    FocalLoss,
    MbLSLoss,
    NACLLoss,
    SegmentationLoss,
    SVLSLoss,
    WeightedSum,
    cross_entropy,
    entropy_penalty,
    focal,
    label_smoothing,
    make_loss,
    margin_penalty,
    neighbour_penalty,
    soft_dice,
    svls,
)

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in LOSSES),
    ("focal", {"gamma": 0.5}),
    ("mbls", {"margin": 0.5}),
    ("nacl", {"penalty": "l2"}),
    ("nacl", {"constrain": "softmax"}),
    ("nacl", {"prior": "gaussian", "border": "valid"}),
    ("nacl", {"prior": "median", "class_reduction": "sum"}),
    ("svls", {"border": "background", "patch_size": 5}),
]


def batch(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    logits = 2 * torch.randn(shape, dtype=dtype)
    return logits, torch.randint(shape[1], (shape[0], *shape[2:]))


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("shape", [(2, 3, 4, 3), (1, 3, 2, 3, 2)], ids=["2d", "3d"])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_gradcheck(
    name: str, options: dict[str, Any], shape: tuple[int, ...], reduction: str
) -> None:
    logits, target = batch(*shape, dtype=torch.float64)
    target[0, 0] = -100
    weights = torch.rand(shape[1]) + 0.5
    loss = make_loss(name, class_weights=weights, reduction=reduction, **options)
    assert torch.autograd.gradcheck(lambda x: loss(x, target), logits.requires_grad_())


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
def test_limits_are_cross_entropy_to_the_last_bit(loss: SegmentationLoss) -> None:
    logits, target = batch(2, 4, 9, 8)
    logits.requires_grad_()
    expected = CrossEntropyLoss()(logits, target)
    found = loss(logits, target)
    assert torch.equal(found, expected)
    (expected_grad,) = torch.autograd.grad(expected, logits)
    (found_grad,) = torch.autograd.grad(found, logits)
    if isinstance(loss, SVLSLoss):  # sums the other classes' zeros too: same value, other order
        torch.testing.assert_close(found_grad, expected_grad)
    else:
        assert torch.equal(found_grad, expected_grad)
    assert expected.item() == pytest.approx(F.cross_entropy(logits, target).item(), rel=1e-6)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_terms_are_named_and_add_up(name: str, options: dict[str, Any]) -> None:
    logits, target = batch(2, 3, 8, 8)
    loss = make_loss(name, **options)
    terms = loss.terms(logits, target)
    torch.testing.assert_close(torch.stack(list(terms.values())).sum(), loss(logits, target))
    if name in ("ecp", "mbls", "nacl"):
        assert list(terms) == ["ce", "penalty"]
        loss.penalty_weight = 0.0
        assert list(loss.terms(logits, target)) == ["ce", "penalty"]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_target_shapes_agree(name: str, options: dict[str, Any], device: str) -> None:
    logits, target = (t.to(device) for t in batch(2, 3, 6, 7))
    loss = make_loss(name, **options).to(device)
    expected = loss(logits, target)
    for same in (target.unsqueeze(1), target.byte(), target.int()):
        assert torch.equal(loss(logits, same), expected)
    # On a GPU whole numbers in float go to the plain functions, which round otherwise.
    torch.testing.assert_close(loss(logits, target.unsqueeze(1).float()), expected)
    channels_last = logits.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(loss(channels_last, target), expected)
    one = loss(logits[:1], target[:1])
    assert torch.isfinite(one)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_channels_last_3d(name: str, options: dict[str, Any], device: str) -> None:
    logits, target = (t.to(device) for t in batch(2, 3, 4, 5, 6))
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
    logits, target = (t.to(device) for t in batch(2, 3, 64, 64))
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
    logits, target = (t.to(device) for t in batch(2, 3, 16, 16))
    loss = make_loss(name, **options).to(device)
    expected = loss(logits, target)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.equal(loss(logits, target), expected)


@pytest.mark.parametrize(
    ("name", "options"),
    [("nacl", {}), ("nacl", {"prior": "median", "constrain": "softmax"}), ("svls", {}),
     ("ce_dice", {}), ("ecp", {})],
)  # fmt: skip
@pytest.mark.parametrize("dynamic", [None, True])
def test_torch_compile_in_one_graph(
    name: str, options: dict[str, Any], dynamic: bool | None, device: str
) -> None:
    torch.compiler.reset()
    logits, target = (t.to(device) for t in batch(2, 3, 12, 12))
    target[0, :3] = -100
    loss = make_loss(name, **options).to(device)
    # On the CPU inductor needs a C++ compiler, which a user's machine may lack.
    backend = "aot_eager" if device == "cpu" else "inductor"
    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend=backend)
    plain, traced = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    expected, found = loss(plain, target), compiled(traced, target)
    torch.testing.assert_close(found, expected)
    expected.backward()
    found.backward()
    torch.testing.assert_close(traced.grad, plain.grad)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_all_ignored_is_zero(
    name: str, options: dict[str, Any], reduction: str, device: str
) -> None:
    logits, target = (t.to(device) for t in batch(2, 3, 5, 5))
    target.fill_(-100)
    for weights in (None, [1.0, 2.0, 3.0]):
        loss = make_loss(name, reduction=reduction, class_weights=weights, **options).to(device)
        value = loss(logits.requires_grad_(), target)
        assert not value.any()
        (grad,) = torch.autograd.grad(value.sum(), logits)
        assert not grad.any()


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_ignored_pixels_do_not_matter(name: str, options: dict[str, Any], device: str) -> None:
    """Whatever the logits say there, value and gradient stay; and the gradient there is 0."""
    logits, target = (t.to(device) for t in batch(2, 3, 8, 8))
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
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_one_class_images_and_extreme_logits_are_finite(
    name: str, options: dict[str, Any], scale: float
) -> None:
    logits, target = batch(2, 3, 6, 6)
    for label in (0, 2):
        value = make_loss(name, **options)(
            (scale * logits).requires_grad_(), torch.full_like(target, label)
        )
        assert torch.isfinite(value)
    sure = torch.zeros(1, 3, 4, 4)
    sure[:, 1] = 200.0  # softmax exactly 1 for class 1
    for label in (1, 0):
        leaf = sure.clone().requires_grad_()
        make_loss(name, **options)(leaf, torch.full((1, 4, 4), label)).backward()
        assert leaf.grad is not None
        assert torch.isfinite(leaf.grad).all()


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_nan_logits_come_out_as_nan(name: str, options: dict[str, Any]) -> None:
    logits, target = batch(1, 3, 6, 6)
    logits[0, 1, 2, 2] = float("nan")
    assert torch.isnan(make_loss(name, **options)(logits, target))


PARAMETERS: list[tuple[str, str, Any]] = [
    ("ce_dice", "dice_weight", 0.3), ("ce_dice", "smooth", 1.0), ("focal", "gamma", 2.0),
    ("ecp", "penalty_weight", 0.2), ("ecp", "class_reduction", "sum"), ("ls", "alpha", 0.2),
    ("svls", "sigma", 1.0), ("svls", "patch_size", 5), ("svls", "border", "valid"),
    ("mbls", "margin", 0.2), ("mbls", "penalty_weight", 0.9), ("mbls", "class_reduction", "sum"),
    ("nacl", "penalty_weight", 0.2), ("nacl", "prior", "mode"), ("nacl", "patch_size", (3, 1)),
    ("nacl", "penalty", "l2"), ("nacl", "constrain", "softmax"), ("nacl", "border", "background"),
    ("nacl", "class_reduction", "sum"),
    *((name, option, value) for name in LOSSES for option, value in
      [("ignore_index", 1), ("class_weights", [1.0, 2.0, 5.0]), ("reduction", "sum")]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "option", "value"), PARAMETERS)
def test_every_parameter_changes_the_result(name: str, option: str, value: Any) -> None:
    logits, target = batch(2, 3, 8, 8)
    base = {"margin": 1.0} if name == "mbls" else {}
    plain = make_loss(name, **base)(logits, target)
    changed = make_loss(name, **{**base, option: value})(logits, target)
    assert changed.item() != pytest.approx(plain.item(), rel=1e-6)


def test_nacl_sigma_changes_the_gaussian_prior_only() -> None:
    logits, target = batch(2, 3, 8, 8)
    values = {
        (prior, sigma): NACLLoss(prior=prior, sigma=sigma)(logits, target).item()
        for prior in ("gaussian", "mean")
        for sigma in (0.5, 2.0)
    }
    assert values["gaussian", 0.5] != pytest.approx(values["gaussian", 2.0], rel=1e-6)
    assert values["mean", 0.5] == values["mean", 2.0]


@pytest.mark.parametrize(
    ("function", "module"),
    [
        (cross_entropy, CrossEntropyLoss()),
        (focal, FocalLoss()),
        (label_smoothing, make_loss("ls")),
        (svls, SVLSLoss()),
        (soft_dice, DiceLoss()),
    ],
)
def test_function_and_module_are_one(function: Any, module: SegmentationLoss) -> None:
    logits, target = batch(2, 3, 8, 8)
    assert torch.equal(function(logits, target), module(logits, target))


@pytest.mark.parametrize(
    ("penalty", "loss"),
    [
        (entropy_penalty, ECPLoss()),
        (lambda x, y: margin_penalty(x, y, margin=1.0), MbLSLoss(margin=1.0)),
        (neighbour_penalty, NACLLoss()),
    ],
)
def test_losses_are_cross_entropy_plus_penalty(penalty: Any, loss: SegmentationLoss) -> None:
    logits, target = batch(2, 3, 8, 8)
    expected = cross_entropy(logits, target) + 0.1 * penalty(logits, target)
    torch.testing.assert_close(loss(logits, target), expected)


def test_weighted_sum_adds_names_and_weights() -> None:
    logits, target = batch(2, 3, 8, 8)
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
    with pytest.raises(TypeError, match="segcal's own, but got CrossEntropyLoss"):
        WeightedSum(NACLLoss(), nn.CrossEntropyLoss())  # type: ignore[arg-type]
    per_pixel = WeightedSum(NACLLoss(reduction="none"), DiceLoss(reduction="none"))
    assert per_pixel(logits, target).shape == target.shape
    for count in (0, 3):
        with pytest.raises(ValueError, match="one value per loss"):
            WeightedSum(NACLLoss(), DiceLoss(), weights=[1.0] * count)
    with pytest.raises(ValueError, match="at least one loss"):
        WeightedSum()


def test_dice_of_an_image_ignored_as_a_whole_does_not_count() -> None:
    logits, target = batch(2, 3, 8, 8)
    alone = DiceLoss()(logits[:1], target[:1])
    target[1] = -100
    torch.testing.assert_close(DiceLoss()(logits, target), alone)
    per_image = DiceLoss(reduction="none")(logits, target)
    assert per_image.shape == (2, 1, 1)
    assert per_image[1].item() == 0


def test_a_loss_trains_a_network_and_moves_with_it(device: str) -> None:
    """Swap the loss, nothing else: a 1×1 convolution learns to threshold an image."""
    image = torch.rand(4, 1, 16, 16, device=device)
    target = (image.squeeze(1) > 0.5).long()
    for name in LOSSES:
        net = nn.Conv2d(1, 2, 1).to(device)
        loss = make_loss(name, class_weights=[1.0, 1.0]).to(device)
        optimiser = torch.optim.Adam(net.parameters(), lr=0.1)
        for _ in range(150):
            optimiser.zero_grad()
            loss(net(image), target, image).backward()
            optimiser.step()
        accuracy = (net(image).argmax(1) == target).float().mean()
        assert accuracy > 0.9, name
    assert copy.deepcopy(loss).class_weights is not None
    assert loss.state_dict() == {}


BAD: list[tuple[Any, Any, type[Exception], str]] = [
    (torch.randn(2, 3, 8), torch.zeros(2, 8).long(), ValueError, r"`logits` to have shape.*\(2, 3"),
    (torch.randn(2, 1, 8, 8), torch.zeros(2, 8, 8).long(), ValueError, "K ≥ 2"),
    (torch.randn(0, 3, 8, 8), torch.zeros(0, 8, 8).long(), ValueError, "empty batch"),
    (torch.zeros(2, 3, 8, 8).long(), torch.zeros(2, 8, 8).long(), TypeError, "floating.*int64"),
    ([1, 2], torch.zeros(2, 8, 8).long(), TypeError, "`logits`.*list"),
    (torch.randn(2, 3, 8, 8), torch.zeros(2, 8, 9).long(), ValueError,
     r"`target` to have shape \(2, 8, 8\), \(2, 1, 8, 8\) or \(2, 3, 8, 8\).*\(2, 8, 9\)"),
    (torch.randn(2, 3, 8, 8), torch.zeros(2, 2, 8, 8), ValueError, r"but got \(2, 2, 8, 8\)"),
    (torch.randn(2, 3, 8, 8), None, TypeError, "`target` to be a tensor, but got NoneType"),
    (torch.randn(2, 3, 8, 8), torch.full((2, 8, 8), 3), ValueError,
     "labels 0 to 2 or the ignored -100, but got 3"),
    (torch.randn(2, 3, 8, 8), torch.arange(128).view(2, 8, 8), ValueError, r"3, 4, 5, 6, 7, …"),
    (torch.randn(2, 3, 8, 8), torch.full((2, 8, 8), -1), ValueError, "but got -1"),
    (torch.randn(2, 3, 8, 8), torch.full((2, 8, 8), 0.5), ValueError, "whole labels"),
    (torch.randn(2, 3, 8, 8), torch.full((2, 8, 8), float("nan")), ValueError, "whole labels"),
    (torch.randn(2, 3, 8, 8), torch.rand(2, 3, 8, 8), ValueError, "summing to 1"),
    (torch.randn(2, 3, 8, 8), torch.full((2, 3, 8, 8), float("nan")), ValueError, "summing to 1"),
]  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("logits", "target", "error", "message"), BAD)
def test_bad_input_is_named(
    name: str, logits: Any, target: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_loss(name)(logits, target)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nalc", {}, "one of 'ce', .*but got 'nalc'. Did you mean 'nacl'"),
        ("nacl", {"prior": "average"}, "`prior` to be one of 'mean'"),
        ("nacl", {"penalty": "l3"}, "`penalty` to be one of 'l1', 'l2'"),
        ("nacl", {"constrain": "probs"}, "`constrain` to be one of 'logits', 'softmax'"),
        ("nacl", {"border": "zeros"}, "`border` to be one of"),
        ("nacl", {"patch_size": 2}, "`patch_size` to be odd"),
        ("nacl", {"class_reduction": "max"}, "`class_reduction` to be one of 'mean', 'sum'"),
        ("nacl", {"penalty_weight": -0.1}, "`penalty_weight` to be a finite number at least 0"),
        ("svls", {"sigma": -1.0}, "`sigma`"),
        ("focal", {"gamma": -1.0}, "`gamma`"),
        ("ls", {"alpha": 1.5}, "`alpha` to be a finite number at least 0 and at most 1"),
        ("mbls", {"margin": float("inf")}, "`margin`"),
        ("ce_dice", {"smooth": 0.0}, "`smooth` to be a finite number above 0"),
        ("ce", {"reduction": "average"}, "`reduction` to be one of 'mean', 'sum', 'none'"),
        ("ce", {"class_weights": [1.0, -1.0]}, "`class_weights` to be K finite weights"),
        ("ce", {"class_weights": "abc"}, "`class_weights` to be K finite weights"),
        ("nacl", {"patch_size": ()}, "`patch_size` to be odd"),
    ],
)
def test_bad_options_are_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_loss(name, **options)


def test_bad_options_of_the_wrong_type() -> None:
    with pytest.raises(TypeError, match=r"`penalty_weight` to be a number, but got '0.1'"):
        NACLLoss(penalty_weight="0.1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`option of nacl` .* got 'peanlty'. Did you mean 'penal"):
        make_loss("nacl", peanlty="l1")
    with pytest.raises(TypeError, match="peanlty"):
        NACLLoss(peanlty="l1")
    for wrong in (None, 1.5):
        with pytest.raises(TypeError, match="`ignore_index` to be an integer"):
            NACLLoss(ignore_index=wrong)


def test_class_weights_must_fit_the_logits() -> None:
    with pytest.raises(ValueError, match=r"`class_weights` to have 3 values.*got 2"):
        CrossEntropyLoss(class_weights=[1.0, 2.0])(*batch(1, 3, 4, 4))


def test_order_statistic_of_a_soft_target_is_refused() -> None:
    logits = torch.randn(1, 3, 4, 4)
    with pytest.raises(ValueError, match="soft target"):
        NACLLoss(prior="mode")(logits, logits.softmax(1))


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_labels_that_are_none_give_nan_where_they_are_not_read(
    name: str, options: dict[str, Any]
) -> None:
    """Under torch.compile, as on a GPU, there is no look at the labels first."""
    torch.compiler.reset()
    logits, target = batch(1, 3, 6, 6)
    compiled = torch.compile(make_loss(name, **options), backend="eager", fullgraph=True)
    assert torch.isfinite(compiled(logits, target))
    for strange in (3, -1, 257, -300):
        wrong = target.clone()
        wrong[0, 2, 2] = strange
        assert torch.isnan(compiled(logits, wrong)), strange
    fraction = target.unsqueeze(1).float()
    fraction[0, 0, 3, 3] = 0.7
    assert torch.isnan(compiled(logits, fraction))


def test_a_background_border_does_not_depend_on_the_rest_of_the_batch() -> None:
    """With class 0 ignored, padding of class 0 is ignored too, also in an image without any 0."""
    logits, target = torch.full((2, 2, 5, 5), 0.3), torch.ones(2, 5, 5, dtype=torch.int64)
    loss = NACLLoss(border="background", ignore_index=0, reduction="none")
    alone = loss(logits[:1], target[:1])
    target[1, 2, 2] = 0
    torch.testing.assert_close(loss(logits, target)[:1], alone)


def test_soft_targets_in_half_precision_and_with_a_gradient() -> None:
    logits = torch.randn(2, 5, 8, 8)
    soft = torch.randn(2, 5, 8, 8).softmax(1)
    for dtype in (torch.bfloat16, torch.float16):
        found = NACLLoss()(logits, soft.to(dtype))
        torch.testing.assert_close(found, NACLLoss()(logits, soft), rtol=1e-2, atol=1e-2)
    learnt = soft.clone().requires_grad_()
    NACLLoss()(logits, learnt).backward()  # through the cross-entropy; the prior is a constant
    expected = -logits.log_softmax(1) / soft[:, 0].numel()
    torch.testing.assert_close(learnt.grad, expected)


def test_second_derivatives_of_the_plain_functions() -> None:
    logits, target = batch(1, 3, 4, 3, dtype=torch.float64)
    for name in LOSSES:
        loss = make_loss(name, fused=False)
        assert torch.autograd.gradgradcheck(lambda x, f=loss: f(x, target), logits.requires_grad_())


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
