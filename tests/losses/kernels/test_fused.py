"""The Triton kernels against torch in float64: values, gradients, and where they do not apply.

With a GPU 500 random draws run on it; without one, fewer run in Triton's interpreter.
"""

import copy
import os
import pickle
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.fused_checks import CUDA, DEVICE, check
from helpers.loss_samples import NAMES
from segcal.losses import (
    ACELoss,
    CEDiceLoss,
    CrossEntropyLoss,
    DiceLoss,
    ECPLoss,
    NACLLoss,
    Pixels,
    Prior,
    SegmentationLoss,
    WeightedSum,
    kernels,
    make_loss,
)

pytest.importorskip("triton", reason="the kernels need Triton")

DRAWS = int(os.environ.get("SEGCAL_DRAWS", 500 if CUDA else 16))
# Classes that only pad a tile are −inf; the interpreter warns before they are masked.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
FUSED = NAMES


def draw(seed: int) -> tuple[SegmentationLoss | WeightedSum, Tensor, Tensor]:
    """A random loss with random options, on random logits and labels."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    classes = rng.choice([2, 3, 4, 5, 14, 33, 128] if CUDA else [2, 3, 4, 5, 14])
    axes = rng.choice([2, 3])
    sizes = [1, 2, 3, 4, 5, 8, 12, 17, 32] if axes == 2 else [1, 2, 3, 4, 6, 8, 9]
    space = [rng.choice(sizes) for _ in range(axes)]
    shape = (rng.choice([1, 2, 3]), classes, *space)
    name = rng.choice([*FUSED, "nacl", "nacl", "svls"])
    form, over = rng.choice(["linear", "squared", "proper"]), rng.choice(["image", "batch"])
    dice = {"form": form, "over": over, "smooth": rng.choice([None, 1.0])}
    patch = rng.choice([1, 3, 3, 3, 5, (1, 3, 3)[-axes:], (5, 3, 1)[-axes:]])
    if axes == 3 and patch == 5:
        patch = (3, 5, 3)
    border = rng.choice(["replicate", "background", "valid"])
    class_reduction = rng.choice(["mean", "sum"])
    options: dict[str, dict[str, Any]] = {
        "ce": {},
        "ce_dice": {"dice_weight": rng.choice([0.0, 0.7, 2.0]), **dice},
        "ce_squared_dice": {},
        "ce_proper_dice": {"over": over},
        "focal": {"gamma": rng.choice([0.0, 0.5, 1.0, 3.0])},
        "ecp": {"class_reduction": class_reduction},
        "ls": {"alpha": rng.choice([0.0, 0.1, 0.3])},
        "svls": {"sigma": rng.choice([0.5, 2.0]), "patch_size": patch, "border": border},
        "mbls": {"margin": rng.choice([0.5, 5.0]), "class_reduction": class_reduction},
        "nacl": {
            "penalty_weight": rng.choice([0.0, 0.1, 0.7]),
            "prior": rng.choice(["mean", "mean", "gaussian", "max", "min", "median", "mode"]),
            "patch_size": patch,
            "penalty": rng.choice(["l1", "l2"]),
            "constrain": rng.choice(["logits", "softmax"]),
            "border": border,
            "sigma": rng.choice([0.5, 1.0]),
            "class_reduction": class_reduction,
        },
    }
    ignore = rng.choice([-100, -100, 255, 0, 1, classes])
    has_dice = "dice" in name or rng.random() < 0.3
    reduction = rng.choice(["mean", "mean", "sum", "mean" if has_dice else "none"])
    loss = make_loss(
        name,
        **options[name],
        ignore_index=ignore,
        class_weights=rng.choice([None, [rng.uniform(0.1, 3) for _ in range(classes)]]),
        reduction=reduction,
    )
    if has_dice and "dice" not in name:
        other = DiceLoss(**dice, ignore_index=ignore, reduction=reduction)
        loss = WeightedSum(loss, other, weights=[rng.choice([0.5, 1.0]), rng.choice([0.5, 1.0])])
    dtype = rng.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
    scale = rng.choice([1.0, 3.0, 30.0, 1e4])
    logits = (scale * torch.randn(shape)).to(dtype)
    if rng.random() < 0.3:
        last = torch.channels_last if axes == 2 else torch.channels_last_3d
        logits = logits.contiguous(memory_format=last)
    target = torch.randint(classes, (shape[0], *space))
    target[torch.rand(target.shape) < rng.choice([0.0, 0.0, 0.3, 1.0])] = ignore
    labels = rng.choice([torch.int64, torch.int64, torch.int32, torch.uint8])
    if ignore >= 0 or labels != torch.uint8:
        target = target.to(labels)
    if rng.random() < 0.2:
        target = target.unsqueeze(1)
    return loss, logits.to(DEVICE), target.to(DEVICE)


@pytest.mark.parametrize("seed", range(DRAWS))
def test_fused_equals_torch_in_float64(seed: int) -> None:
    check(*draw(seed))


@pytest.mark.parametrize("name", FUSED)
def test_terms_are_those_of_torch(name: str) -> None:
    torch.manual_seed(0)
    logits, target = torch.randn(2, 3, 6, 7).to(DEVICE), torch.randint(3, (2, 6, 7)).to(DEVICE)
    for reduction in ("mean", "sum" if "dice" in name else "none"):
        plain = make_loss(name, reduction=reduction, fused=False).terms(logits, target)
        fused = make_loss(name, reduction=reduction, fused=True).terms(logits, target)
        assert list(plain) == list(fused)
        for part in plain:
            torch.testing.assert_close(fused[part], plain[part])


@pytest.mark.parametrize("classes", [2, 3, 4, 5, 14] if CUDA else [3, 4])
@pytest.mark.parametrize("space", [(5, 8), (3, 4, 6)])
def test_an_ignored_label_just_above_the_classes_does_not_vote(
    classes: int, space: tuple[int, ...]
) -> None:
    """Its bit field is that of a class which only pads the tile."""
    torch.manual_seed(0)
    logits = torch.randn(1, classes, *space).to(DEVICE)
    target = torch.randint(classes + 1, (1, *space)).to(DEVICE)
    for name, options in (("svls", {}), ("nacl", {"prior": "gaussian"}), ("nacl", {})):
        values = [
            make_loss(name, ignore_index=classes, fused=fused, **options)(logits, target)
            for fused in (True, False)
        ]
        torch.testing.assert_close(*values)


def test_each_part_has_its_own_gradient() -> None:
    torch.manual_seed(0)
    logits, target = torch.randn(2, 3, 6, 7).to(DEVICE), torch.randint(3, (2, 6, 7)).to(DEVICE)
    for weights in ((1.0, 0.0), (0.0, 1.0), (0.3, 2.0)):
        grads = []
        for fused in (True, False):
            leaf = logits.clone().requires_grad_()
            terms = NACLLoss(fused=fused).terms(leaf, target)
            (weights[0] * terms["ce"] + weights[1] * terms["penalty"]).backward()
            assert leaf.grad is not None
            grads.append(leaf.grad)
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    ("pixel", "form", "over", "shape"),
    [
        ("nacl", "linear", "image", (3, 3, 6, 8)),
        ("ls", "squared", "image", (2, 4, 3, 5, 7)),
        ("ecp", "proper", "image", (2, 2, 8, 256)),
        ("ce", "linear", "batch", (2, 2, 8, 256)),
        ("ce", "squared", "batch", (5, 3, 2, 2)),
        ("ce", "proper", "image", (5, 3, 2, 2)),
    ],
)
def test_each_part_of_a_sum_with_dice(
    pixel: str, form: Any, over: Any, shape: tuple[int, ...]
) -> None:
    """Images that share a program, and images of their own; one is ignored as a whole."""
    torch.manual_seed(0)
    logits = torch.randn(shape).to(DEVICE)
    target = torch.randint(shape[1], (shape[0], *shape[2:])).to(DEVICE)
    target[0] = -100
    target[1, :, 0] = -100
    results = []
    for fused in (True, False):
        part = make_loss(pixel, fused=fused)
        loss = WeightedSum(part, DiceLoss(form, over), weights=[0.6, 2.0])
        leaf = logits.clone().requires_grad_()
        terms = loss.terms(leaf, target)
        assert list(terms)[-1] == "dice"
        sum((1 + n) * value for n, value in enumerate(terms.values())).backward()
        results.append(({k: v.detach() for k, v in terms.items()}, leaf.grad))
    torch.testing.assert_close(*results)


def test_the_value_may_be_changed_in_place() -> None:
    logits, target = torch.randn(2, 3, 6, 7).to(DEVICE), torch.randint(3, (2, 6, 7)).to(DEVICE)
    for reduction in ("mean", "none"):
        grads = []
        for fused in (True, False):
            leaf = logits.clone().requires_grad_()
            value = NACLLoss(fused=fused, reduction=reduction)(leaf, target)
            value /= 2
            value += 1
            grads += torch.autograd.grad(value.sum(), leaf)
        torch.testing.assert_close(*grads)


def test_a_setting_may_be_changed_between_calls() -> None:
    logits, target = torch.randn(1, 3, 6, 7).to(DEVICE), torch.randint(3, (1, 6, 7)).to(DEVICE)
    changed = NACLLoss(fused=True)
    before = changed(logits, target)
    for name, value in {
        "penalty_weight": 0.7, "prior": Prior("max"), "ignore_index": 1, "reduction": "sum",
        "class_reduction": "sum", "penalty": "l2", "constrain": "softmax",
    }.items():  # fmt: skip
        setattr(changed, name, value)
        after = changed(logits, target)
        changed.fused = False
        torch.testing.assert_close(after, changed(logits, target))
        changed.fused = True
        assert not torch.isclose(after, before), name
        before = after


def test_a_loss_that_was_used_can_be_copied_and_saved() -> None:
    """Compiled kernels are not part of the loss."""
    logits, target = torch.randn(2, 3, 6, 7).to(DEVICE), torch.randint(3, (2, 6, 7)).to(DEVICE)
    loss = NACLLoss(0.3, fused=True)
    expected = loss(logits, target)
    for twin in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert torch.equal(twin(logits, target), expected)
    assert repr(loss) == repr(NACLLoss(0.3, fused=True))


def test_inputs_are_distinguished_after_the_first_call() -> None:
    """The second call skips the checks of the first, but only for input of the same form."""
    logits, target = torch.randn(1, 3, 6, 7).to(DEVICE), torch.randint(3, (1, 6, 7)).to(DEVICE)
    loss, plain = NACLLoss(fused=True), NACLLoss(fused=False)
    for _ in range(2):
        for x in (logits, logits.transpose(2, 3).contiguous(), logits.half()):
            y = target if x.shape == logits.shape else target.transpose(1, 2)
            expected = plain(x, y)
            torch.testing.assert_close(loss(x, y), expected)
            torch.testing.assert_close(loss(x, y.unsqueeze(1).int()), expected)
            torch.testing.assert_close(sum(loss.terms(x, y).values()), expected)
        with pytest.raises(ValueError, match="`target` to have shape"):
            loss(logits, target[:, :5])
        with pytest.raises(TypeError, match="`target` to be a tensor"):
            loss(logits, target.tolist())


def test_it_is_deterministic_and_backward_can_be_repeated() -> None:
    torch.manual_seed(0)
    height, width = (133, 235) if CUDA else (9, 12)  # the interpreter is slow
    logits = torch.randn(1, 4, height, width).to(DEVICE).requires_grad_()
    target = torch.randint(4, (1, height, width)).to(DEVICE)
    values, grads = [], []
    for _ in range(3 if CUDA else 2):
        value = NACLLoss(fused=True)(logits, target)
        first = torch.autograd.grad(value, logits, retain_graph=True)[0]
        second = torch.autograd.grad(value, logits)[0]
        assert torch.equal(first, second)
        values.append(value.item())
        grads.append(first)
    assert len(set(values)) == 1
    assert all(torch.equal(grads[0], grad) for grad in grads)


def test_differentiating_twice_raises() -> None:
    logits = torch.randn(1, 3, 4, 4).to(DEVICE).requires_grad_()
    value = NACLLoss(fused=True)(logits, torch.zeros(1, 4, 4, dtype=torch.int64).to(DEVICE))
    with pytest.raises(RuntimeError, match="twice; set fused=False"):
        torch.autograd.grad(value, logits, create_graph=True)


def test_a_label_out_of_range_gives_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where labels are not read first (on a GPU), the kernel cannot raise."""
    for module in ("segcal.core.checks", "segcal.losses.pixels"):
        monkeypatch.setattr(f"{module}.values_can_be_read", lambda tensor: False)
    logits = torch.randn(1, 3, 4, 4).to(DEVICE)
    for invalid in (3, 7, -1):
        target = torch.zeros(1, 4, 4, dtype=torch.int64).to(DEVICE)
        target[0, 2, 2] = invalid
        assert torch.isnan(NACLLoss(fused=True)(logits, target))


@pytest.mark.parametrize(
    ("loss", "logits", "message"),
    [
        (NACLLoss(fused=True), torch.randn(1, 3, 4, 4).double(), "the logits are torch.float64"),
        (NACLLoss(fused=True), torch.randn(1, 130, 4, 4), "130 classes are more than 128"),
        (
            NACLLoss(fused=True, ignore_index=-(2**31)),
            torch.randn(1, 3, 4, 4),
            "ignore_index -2147483648 is too far from the classes",
        ),
        (NACLLoss(fused=True), torch.randn(1, 3, 4, 8)[..., ::2], "neither contiguous nor"),
        (NACLLoss(fused=True, patch_size=13), torch.randn(1, 3, 4, 4), "more than 125 pixels"),
        (CEDiceLoss(fused=True, reduction="none"), torch.randn(1, 3, 4, 4), "no value per pixel"),
        (ACELoss(binning="soft"), torch.randn(1, 3, 4, 4), "no kernel for this loss"),
        (ACELoss(reduction="none"), torch.randn(1, 3, 4, 4), "no value per pixel"),
    ],
)
def test_where_the_kernels_do_not_apply(
    loss: SegmentationLoss, logits: Tensor, message: str
) -> None:
    """`fused=True` raises; "auto" uses torch."""
    loss.fused = True
    logits = logits.to(DEVICE) if logits.is_contiguous() else logits
    if not logits.is_contiguous() and CUDA:
        logits = torch.randn(1, 3, 4, 8, device=DEVICE)[..., ::2]
    target = torch.zeros(1, 4, 4, dtype=torch.int64).to(DEVICE)
    with pytest.raises(ValueError, match=message):
        loss(logits, target)
    loss.fused = "auto"
    found = loss(logits, target)
    loss.fused = False
    assert torch.equal(found, loss(logits, target))


def test_soft_targets_fall_back() -> None:
    logits = torch.randn(1, 3, 4, 4).to(DEVICE)
    with pytest.raises(ValueError, match="not integer labels"):
        NACLLoss(fused=True)(logits, logits.softmax(1))
    expected = NACLLoss(fused=False)(logits, logits.softmax(1))
    assert torch.equal(NACLLoss()(logits, logits.softmax(1)), expected)


def test_bad_fused_is_named() -> None:
    with pytest.raises(ValueError, match="`fused` to be one of 'auto'"):
        NACLLoss(fused="yes")


@pytest.mark.skipif(CUDA, reason="for machines without a GPU")
def test_the_cpu_uses_torch_automatically(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("kernels were used")

    monkeypatch.setattr("segcal.losses.kernels.run", refuse)
    NACLLoss()(torch.randn(1, 3, 4, 4), torch.zeros(1, 4, 4, dtype=torch.int64))


class OwnPrior(Prior):
    """A user's prior."""

    def __call__(self, target: Tensor, num_classes: int, **options: Any) -> Tensor:
        return super().__call__(target, num_classes, **options).square()


class Renamed(NACLLoss):
    """Another name for the same formula."""


class OwnPenalty(NACLLoss):
    """Another formula."""

    def pixel_penalty(self, pixels: Pixels) -> Tensor:
        return 2 * super().pixel_penalty(pixels)


class OwnTerms(CrossEntropyLoss):
    """Another formula."""

    def pixel_terms(self, pixels: Pixels) -> dict[str, Tensor]:
        return {"ce": 2 * pixels.nll(pixels.log_probs)}


class OwnReduction(ECPLoss):
    """Another formula."""

    def terms(self, logits: Tensor, target: Tensor) -> dict[str, Tensor]:
        return {name: 2 * value for name, value in super().terms(logits, target).items()}


class OwnDice(CEDiceLoss):
    """Another formula."""

    def reduced_terms(self, pixels: Pixels) -> dict[str, Tensor]:
        return {name: 2 * value for name, value in super().reduced_terms(pixels).items()}


UNSUPPORTED: list[SegmentationLoss] = [
    NACLLoss(prior=OwnPrior()),
    NACLLoss(prior=lambda target, num_classes, **_: Prior()(target, num_classes)),
    OwnPenalty(),
    OwnTerms(),
    OwnReduction(),
    OwnDice(),
    DiceLoss(),
    ACELoss(binning="soft"),
    ACELoss(64),
]


def test_which_losses_are_supported() -> None:
    for name in FUSED:
        assert kernels.supports(make_loss(name))
    assert kernels.supports(Renamed())
    for sum_ in (WeightedSum(NACLLoss(), DiceLoss("proper")), WeightedSum(ECPLoss(), DiceLoss())):
        assert kernels.supports(sum_)
    for sum_ in (WeightedSum(CrossEntropyLoss(), ACELoss()), make_loss("ce_dice_ace")):
        assert kernels.supports(sum_)
    for loss in (
        *UNSUPPORTED,
        torch.nn.CrossEntropyLoss(),
        WeightedSum(NACLLoss()),
        WeightedSum(NACLLoss(), ECPLoss()),
        WeightedSum(CEDiceLoss(), DiceLoss()),
        WeightedSum(DiceLoss(), NACLLoss()),
        WeightedSum(NACLLoss(), DiceLoss(ignore_index=1)),
        WeightedSum(NACLLoss(), DiceLoss(reduction="sum")),
        WeightedSum(OwnPenalty(), DiceLoss()),
        CEDiceLoss(activation="sigmoid"),
        ACELoss(activation="sigmoid"),
        WeightedSum(NACLLoss(), ACELoss()),
        WeightedSum(CrossEntropyLoss(), ACELoss(), DiceLoss()),
        WeightedSum(CrossEntropyLoss(), DiceLoss(), ACELoss(ignore_index=1)),
    ):
        assert not kernels.supports(loss)


@pytest.mark.parametrize("loss", UNSUPPORTED, ids=lambda loss: type(loss).__name__)
def test_other_losses_and_priors_run_in_torch(loss: SegmentationLoss) -> None:
    logits, target = torch.randn(2, 3, 6, 7).to(DEVICE), torch.randint(3, (2, 6, 7)).to(DEVICE)
    loss = copy.deepcopy(loss)
    values = []
    for fused in ("auto", False):
        loss.fused = fused  # type: ignore[assignment]
        values.append(loss(logits, target))
        torch.testing.assert_close(sum(loss.terms(logits, target).values()), values[-1])
    torch.testing.assert_close(*values)
    loss.fused = True
    with pytest.raises(ValueError, match="no kernel for this loss or its prior"):
        loss(logits, target)


@pytest.mark.parametrize(
    "loss",
    [
        *map(make_loss, [*FUSED, "ml1_ace", "ce_dice_ace"]),
        Renamed(),
        WeightedSum(NACLLoss(), DiceLoss()),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_everything_but_the_launch_is_traced_in_one_graph(
    loss: SegmentationLoss, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU the kernels cannot be compiled, but all code before them can be traced."""
    torch.compiler.reset()
    monkeypatch.setattr("segcal.losses.kernels.pixel_loss.launch", lambda *jobs: None)
    logits = torch.randn(2, 3, 6, 8).to(DEVICE).requires_grad_()
    target = torch.randint(3, (2, 6, 8)).to(DEVICE)
    for part in loss.modules():
        part.fused = True  # type: ignore[assignment]
    value = torch.compile(loss, backend="eager", fullgraph=True)(logits, target)
    assert value.shape == ()
    (grad,) = torch.autograd.grad(value, logits)
    assert grad.shape == logits.shape


needs_gpu = pytest.mark.skipif(not CUDA, reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize("name", [*FUSED, "ml1_ace", "ce_dice_ace"])
def test_compile_autocast_and_graphs(name: str) -> None:
    torch.compiler.reset()  # one code object is compiled for a limited number of losses
    torch.manual_seed(0)
    logits = torch.randn(2, 4, 24, 24, device="cuda")
    target = torch.randint(4, (2, 24, 24), device="cuda")
    loss = make_loss(name, fused=True)
    leaf = logits.clone().requires_grad_()
    expected = loss(leaf, target)
    (expected_grad,) = torch.autograd.grad(expected, leaf)

    compiled = torch.compile(loss, fullgraph=True)
    value = compiled(leaf, target)
    (grad,) = torch.autograd.grad(value, leaf)
    torch.testing.assert_close((value, grad), (expected, expected_grad))

    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.equal(loss(leaf, target), expected)

    static = logits.clone().requires_grad_()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.autograd.grad(loss(static, target), static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = loss(static, target)
        (captured_grad,) = torch.autograd.grad(captured, static)
    with torch.no_grad():
        static.copy_(logits.flip(0))
        target.copy_(target.flip(0).clone())
    graph.replay()
    torch.testing.assert_close(captured, expected)
    torch.testing.assert_close(captured_grad, expected_grad.flip(0))


@needs_gpu
def test_more_than_two_to_the_31_logits() -> None:
    shape = (17, 128, 1024, 1024)
    logits = torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_()
    target = torch.randint(128, (17, 1024, 1024), device="cuda", dtype=torch.uint8)
    value = NACLLoss(fused=True)(logits, target)
    value.backward()
    last = logits.detach()[-1:].float().requires_grad_()
    expected = NACLLoss(fused=False)(last, target[-1:]) / 17
    expected.backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad[-1:].float(), last.grad, rtol=2e-2, atol=1e-10)


@needs_gpu
def test_weighted_sum_with_dice_on_the_gpu() -> None:
    logits = torch.randn(2, 4, 24, 24, device="cuda", requires_grad=True)
    target = torch.randint(4, (2, 24, 24), device="cuda")
    fused = WeightedSum(NACLLoss(), CEDiceLoss())(logits, target)
    plain = WeightedSum(NACLLoss(fused=False), CEDiceLoss(fused=False))(logits, target)
    torch.testing.assert_close(fused, plain)
