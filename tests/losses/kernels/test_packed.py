"""Labels stored as nibbles for the gradient: when, what is kept, and that results do not change.

The random draws of test_fused.py cover the options together; these tests are about the nibbles.
"""

import random
import warnings
from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.fused_checks import CUDA, DEVICE, check
from segcal.losses import NACLLoss, make_loss
from segcal.losses.kernels import pixel_loss
from segcal.losses.kernels.pixel_loss import Plan, make_plan
from segcal.losses.kernels.recipes import recipe_of

pytest.importorskip("triton", reason="the kernels need Triton")

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
# The interpreter takes seconds for these tests.
SLOW: Any = [] if CUDA else pytest.mark.slow


def plan(
    shape: tuple[int, ...] = (2, 4, 8, 8),
    dtype: torch.dtype = torch.float32,
    labels: torch.dtype = torch.int64,
    reduction: Any = "mean",
    patch: int = 3,
) -> Plan:
    logits, target = torch.empty(shape, dtype=dtype), torch.empty(1, dtype=labels)
    loss = NACLLoss(patch_size=patch, ignore_index=255, reduction=reduction)
    recipe = recipe_of(loss)
    assert recipe is not None
    return make_plan(loss, recipe, logits, target, split=False)


@pytest.mark.parametrize(
    ("case", "packed"),
    [
        ({}, True),
        ({"shape": (2, 3, 8, 8)}, True),
        ({"shape": (2, 2, 8, 8)}, False),  # half a byte is more than a twentieth of 8
        ({"shape": (2, 14, 3, 8, 6)}, True),
        ({"shape": (2, 15, 8, 8)}, False),  # more classes than nibbles
        ({"shape": (2, 4, 8, 9)}, False),  # a byte would belong to two rows
        ({"shape": (2, 4, 9, 8)}, True),
        ({"dtype": torch.bfloat16}, False),
        ({"dtype": torch.bfloat16, "shape": (2, 5, 8, 8)}, True),
        ({"dtype": torch.float16, "shape": (2, 4, 8, 8)}, False),
        ({"labels": torch.uint8}, False),  # a byte each already
        ({"labels": torch.int32}, False),
        ({"reduction": "none"}, True),
    ],
)
def test_when_labels_are_packed(case: dict[str, Any], packed: bool) -> None:
    found = plan(**case)
    assert found.packed is packed
    assert found.value.constants["PACKED"] is found.gradient.constants["PACKED"] is packed


def test_a_plan_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Plan] = []

    def count(*arguments: Any, **options: Any) -> Plan:
        plans.append(make_plan(*arguments, **options))
        return plans[-1]

    monkeypatch.setattr(pixel_loss, "_PLANS", {})
    monkeypatch.setattr(pixel_loss, "make_plan", count)
    logits, target = torch.randn(2, 4, 4, 6).to(DEVICE), torch.randint(4, (2, 4, 6)).to(DEVICE)
    for loss in (NACLLoss(fused=True), NACLLoss(fused=True)):
        for _ in range(2):
            loss(logits, target)
    assert len(plans) == 1
    NACLLoss(fused=True).terms(logits, target)
    NACLLoss(0.2, fused=True)(logits, target)
    assert len(plans) == 3


def test_a_plan_is_traced_without_a_warning() -> None:
    def add_scratch(logits: Tensor) -> Tensor:
        return logits + plan().scratch

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced = torch.compile(add_scratch, backend="eager", fullgraph=True)(torch.zeros(1))
    assert traced.item() == plan().scratch > 0


@pytest.mark.skipif(bool(torch.version.hip), reason="registers are limited on NVIDIA GPUs only")
@pytest.mark.parametrize(
    ("case", "value", "gradient"),
    [
        ({"shape": (2, 4, 3, 8, 8)}, None, 64),
        ({"shape": (2, 14, 3, 8, 8)}, 128, 128),
        ({"shape": (2, 5, 3, 8, 8)}, None, None),  # not measured
        ({"shape": (2, 4, 3, 8, 9)}, None, None),  # not packed
        ({"shape": (2, 4, 8, 8)}, None, None),  # nothing is carried along slices
        ({"shape": (2, 4, 3, 8, 8), "patch": 5}, None, None),  # nothing is carried at all
    ],
)
def test_where_registers_are_limited(
    case: dict[str, Any], value: int | None, gradient: int | None
) -> None:
    found = plan(**case)
    assert found.value.hints.get("maxnreg") == value
    assert found.gradient.hints.get("maxnreg") == gradient
    assert found.finish.hints == {}
    assert "maxnreg" not in found.gradient.constants  # which torch.compile would not accept


@pytest.mark.skipif(not CUDA or bool(torch.version.hip), reason="needs an NVIDIA GPU")
def test_the_limit_reaches_the_compiler() -> None:
    from segcal.losses.kernels import _triton

    logits = torch.randn(1, 4, 4, 16, 16, device=DEVICE, requires_grad=True)
    NACLLoss(fused=True)(logits, torch.zeros_like(logits[:, 0], dtype=torch.int64)).backward()
    compiled = _triton.gradient_kernel.device_caches[torch.cuda.current_device()][0].values()
    assert 64 in {kernel.metadata.maxnreg for kernel in compiled}


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_what_is_kept_is_half_a_byte_per_pixel(reduction: str) -> None:
    """The labels are not kept. The sums of the programs and less than two further values are."""
    found = plan((3, 4, 6, 10), reduction=reduction)
    pixels = 3 * 6 * 10
    kept = 4 * (found.scratch - 8 - 4 * found.value.programs)
    assert pixels / 2 < kept <= pixels / 2 + 4  # one more byte is read, but not used
    assert kept < 3 * 4 * 6 * 10 * 4 / 20 + 4

    logits = torch.randn(3, 4, 6, 10).to(DEVICE).requires_grad_()
    target = torch.randint(4, (3, 6, 10)).to(DEVICE)
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        NACLLoss(fused=True, reduction=reduction)(logits, target)
    assert sorted(tensor.numel() for tensor in saved) == sorted([logits.numel(), found.scratch])


def test_the_nibbles_are_the_labels() -> None:
    found = plan((2, 4, 3, 6))
    target = torch.randint(4, (2, 3, 6)).to(DEVICE)
    target[0, 1, 1], target[1, 2, 5], target[1, 0, 0] = 255, 4, -3
    logits = torch.randn(2, 4, 3, 6).to(DEVICE)
    scratch = torch.zeros(found.scratch).to(DEVICE)
    value = torch.zeros(()).to(DEVICE)
    work = found.value
    work.kernel[(work.programs,)](
        logits, target, logits, value, value, scratch, value, *work.numbers, **work.constants
    )
    head = 4 * (8 + 4 * work.programs)
    assert head % 16 == 0
    codes = scratch.view(torch.uint8)[head : head + 18]
    nibbles = torch.stack([codes & 15, codes >> 4], 1).view(2, 3, 6).long()
    expected = target.clone()
    expected[0, 1, 1], expected[1, 2, 5], expected[1, 0, 0] = 14, 15, 15
    assert torch.equal(nibbles, expected)


def packed_draw(
    name: str, classes: int, space: tuple[int, ...], border: str, seed: int, **options: Any
) -> tuple[Any, Tensor, Tensor]:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    ignore = rng.choice([-100, 255, 1, classes, 14, 15])
    if name in ("nacl", "svls"):
        options = {"border": border, **options}
    loss = make_loss(
        name, ignore_index=ignore, reduction=rng.choice(["mean", "none"]),
        class_weights=rng.choice([None, [rng.uniform(0.1, 3) for _ in range(classes)]]), **options,
    )  # fmt: skip
    logits = torch.randn(rng.choice([1, 2]), classes, *space)
    if rng.random() < 0.3:
        logits = logits.contiguous(memory_format=LAST[logits.ndim])
    target = torch.randint(classes, (logits.shape[0], *space))
    target[torch.rand(target.shape) < 0.2] = ignore
    return loss, logits.to(DEVICE), target.to(DEVICE)


PRIORS: list[tuple[str, dict[str, Any]]] = [
    ("svls", {}), ("nacl", {}), ("nacl", {"prior": "gaussian"})
]  # fmt: skip
BORDERS = ["replicate", "background", "valid"]


def some_fast(cases: Iterable[tuple[Any, ...]], every: int) -> list[Any]:
    """All cases where there is a GPU; elsewhere one in `every` is left in the fast tests."""
    return [
        pytest.param(*case, marks=SLOW if index % every else []) for index, case in enumerate(cases)
    ]


@pytest.mark.parametrize(
    ("classes", "space", "border", "prior"),
    some_fast(product([3, 4, 13, 14], [(5, 6), (3, 3, 4)], BORDERS, PRIORS), 13),
)
def test_packed_equals_torch_in_float64(
    classes: int, space: tuple[int, ...], border: str, prior: tuple[str, dict[str, Any]]
) -> None:
    name, options = prior
    check(*packed_draw(name, classes, space, border, classes + len(border), **options))


PATCHES = [(1, (3, 4)), (5, (4, 6)), ((1, 3), (4, 6)), ((3, 3, 1), (3, 3, 4))]


@pytest.mark.parametrize(
    ("patch", "border", "prior"), some_fast(product(PATCHES, BORDERS, PRIORS), 13)
)
def test_packed_with_patches_read_neighbor_by_neighbor(
    patch: tuple[Any, tuple[int, ...]], border: str, prior: tuple[str, dict[str, Any]]
) -> None:
    size, space = patch
    name, options = prior
    check(*packed_draw(name, 14, space, border, len(border), patch_size=size, **options))


@pytest.mark.parametrize("patch", [3, 5])
@pytest.mark.parametrize("space", [(3, 4), (2, 2, 4)])
def test_an_ignored_background_does_not_vote_from_outside_the_image(
    space: tuple[int, ...], patch: int
) -> None:
    torch.manual_seed(0)
    target = torch.randint(5, (2, *space))
    loss = make_loss("svls", ignore_index=0, border="background", patch_size=patch)
    check(loss, torch.randn(2, 5, *space).to(DEVICE), target.to(DEVICE))


@pytest.mark.parametrize("name", ["ce", "focal", "ls", "ecp", "mbls"])
def test_packed_without_a_prior(name: str) -> None:
    check(*packed_draw(name, 5, (3, 6), "", 0))


@pytest.mark.parametrize("space", [(3, 258), (3, 2, 90)])
def test_packed_in_strips_that_end_within_an_image(space: tuple[int, ...]) -> None:
    check(*packed_draw("nacl", 4, space, "replicate", sum(space)))


@pytest.mark.parametrize(
    ("shape", "prior", "reduction"),
    some_fast(product([(3, 4, 6), (4, 2, 3, 4), (14, 4, 6)], PRIORS, ["mean", "none"]), 5),
)
def test_an_invalid_label_has_the_same_effect_as_unpacked(
    shape: tuple[int, ...], prior: Any, reduction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Value and gradient of its pixel are NaN, and it does not vote."""
    for module in ("segcal.core.checks", "segcal.losses.pixels"):
        monkeypatch.setattr(f"{module}.values_can_be_read", lambda tensor: False)
    classes, *space = shape
    target = torch.randint(classes, (1, *space)).to(DEVICE)
    flat = target.view(-1)
    invalid = {1: classes, 6: 14, 7: 15, 10: -1, 12: 16, 17: 1 << 20}
    for place, label in invalid.items():
        flat[place] = label
    flat[[0, 5, 20]] = 255
    marked = torch.zeros(flat.shape, dtype=torch.bool)
    marked[list(invalid)] = True
    logits = torch.randn(1, *shape).to(DEVICE)
    name, options = prior
    results = []
    for labels in (target, target.int()):  # int32 is not packed
        leaf = logits.clone().requires_grad_()
        loss = make_loss(name, ignore_index=255, fused=True, reduction=reduction, **options)
        value = loss(leaf, labels)
        (grad,) = torch.autograd.grad(value.sum(), leaf)
        results.append((value.detach(), grad))
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-7, equal_nan=True)
    value, grad = results[0]
    expected = marked if reduction == "none" else torch.tensor([True])
    assert torch.equal(value.isnan().view(-1).cpu(), expected)
    assert torch.equal(grad.isnan().any(1).view(-1).cpu(), marked)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_labels_may_be_changed_and_backward_repeated(reduction: str) -> None:
    logits = torch.randn(2, 4, 4, 6).to(DEVICE).requires_grad_()
    target = torch.randint(4, (2, 4, 6)).to(DEVICE)
    value = NACLLoss(fused=True, reduction=reduction)(logits, target).sum()
    (first,) = torch.autograd.grad(value, logits, retain_graph=True)
    target.zero_()  # the labels were read before
    (second,) = torch.autograd.grad(value, logits, retain_graph=True)
    (third,) = torch.autograd.grad(value, logits)
    assert torch.equal(first, second)
    assert torch.equal(first, third)


def test_the_value_is_the_same_without_gradient() -> None:
    logits = torch.randn(2, 4, 4, 6).to(DEVICE)
    target = torch.randint(4, (2, 4, 6)).to(DEVICE)
    loss = NACLLoss(fused=True)
    with torch.no_grad():
        value = loss(logits, target)
    assert torch.equal(value, loss(logits.requires_grad_(), target).detach())
