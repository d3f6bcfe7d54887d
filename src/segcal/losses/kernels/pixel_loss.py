"""The fused losses as differentiable functions: what to launch, and when it can be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from segcal.losses.kernels.launch import INTERPRETED, Work, launch

KINDS = {"ce": 0, "focal": 1, "ls": 2, "svls": 3, "ecp": 4, "mbls": 5, "nacl": 6}
PRIORS = {"mean": 0, "gaussian": 1, "max": 2, "min": 3, "median": 4, "mode": 5}
BORDERS = {"replicate": 0, "background": 1, "valid": 2}
LABEL_TYPES = (torch.uint8, torch.int16, torch.int32, torch.int64)
LOGIT_TYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_CLASSES = 128
# Labels vote by shifts of their 32-bit value; those of farther ones would fall among the classes.
FARTHEST_IGNORED = 1 << 24
SUM_WARPS = 16
# Strips are as long as leaves this many warps, enough to keep an H200 busy to the end; the
# interpreter takes one program after the other anyway.
BUSY_WARPS = 1 if INTERPRETED else 3072
LONGEST_RUN = 16
NORMS = 8  # as in _triton
# Labels left behind as nibbles (two of which are no class) cost half a byte per pixel: they are
# where that is little beside the logits, and the gradient would read int64 labels otherwise.
PACKS = True
MOST_PACKED = 14  # classes
LEFT_OUT = 14  # as in _triton
LEAST_LOGITS = 10  # bytes per pixel: nibbles are a twentieth
# Registers of a thread where votes are carried along three slices, by pass and BLOCK_K: so few that
# another block fits on a multiprocessor of an H200, so many that hardly any is spilled.
MOST_REGISTERS: dict[str, dict[int, int]] = {"value": {16: 128}, "gradient": {4: 64, 16: 128}}
HAS_TRITON = find_spec("triton") is not None
NVIDIA = torch.version.hip is None
# The patch is unrolled: more than this compiles for too long to be worth it.
MAX_PATCH = 125
Answer = TypeVar("Answer")


def _remembered(find: Callable[..., Answer]) -> Callable[..., Answer]:
    """Find an answer once. torch.compile, which warns of caches, finds it whenever it traces."""
    known = lru_cache(maxsize=256)(find)

    @wraps(find)
    def ask(*question: Any) -> Answer:
        return find(*question) if torch.compiler.is_compiling() else known(*question)

    return ask


class Recipe(NamedTuple):
    """What to compute: hashable, so that it can be a key for what it compiles to.

    `parameter` is γ of focal, α of LS or m of MbLS.
    """

    kind: str
    parameter: float = 0.0
    penalty_weight: float = 0.0
    class_reduction: str = "mean"
    prior: str = "mean"
    patch: tuple[int, ...] = ()
    sigma: float = 1.0
    border: str = "replicate"
    square: bool = False
    softmax: bool = False


def why_not(logits: Tensor, target: Tensor, recipe: Recipe, ignore_index: int) -> str | None:
    """Why the kernels cannot take this input, or None if they can."""
    if abs(ignore_index) > FARTHEST_IGNORED:
        return f"ignore_index {ignore_index} is too far from the classes"
    if not HAS_TRITON:
        return "Triton is not installed"
    if not logits.is_cuda and not INTERPRETED:
        return f"the logits are on the {logits.device.type}"
    soft = target.ndim == logits.ndim and target.shape[1] != 1
    return _why_not_these(
        logits.shape, logits.stride(), logits.dtype, target.dtype, soft, recipe.patch
    )


@_remembered
def _why_not_these(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    label_type: torch.dtype,
    soft: bool,
    patch: tuple[int, ...],
) -> str | None:
    if dtype not in LOGIT_TYPES:
        return f"the logits are {dtype}"
    if label_type not in LABEL_TYPES or soft:
        kind = "soft" if soft else label_type
        return f"the target is not integer labels (it is {kind})"
    if not 2 <= shape[1] <= MAX_CLASSES:
        return f"{shape[1]} classes are more than {MAX_CLASSES}"
    if _layout(shape, stride) is None:
        return "the logits are neither contiguous nor channels_last"
    if math.prod(patch) > MAX_PATCH:
        return f"the patch {patch} has more than {MAX_PATCH} pixels"
    return None


def plan_for(
    logits: Tensor,
    labels: Tensor,
    recipe: Recipe,
    *,
    ignore_index: int,
    weighted: bool,
    reduction: str,
    split: bool,
) -> Plan:
    """How to work on inputs like these, whatever they hold and wherever they are."""
    return _plan(
        logits.shape, logits.stride(), logits.dtype, labels.dtype,
        recipe, ignore_index, weighted, reduction, split,
    )  # fmt: skip


def run(
    plan: Plan, logits: Tensor, labels: Tensor, class_weights: Tensor | None
) -> tuple[Tensor, ...]:
    """(cross-entropy part, weighted penalty) if the plan is to split them, else (their sum,).

    The labels have no channel axis.
    """
    result: Tensor | tuple[Tensor, ...]
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        result = _PixelLoss.apply(logits, labels.contiguous(), class_weights, plan)  # type: ignore[no-untyped-call]
    else:
        result = _apply(logits, labels.contiguous(), class_weights, plan)  # type: ignore[no-untyped-call]
    return result if isinstance(result, tuple) else (result,)


class _PixelLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, class_weights: Tensor | None, plan: Plan
    ) -> Tensor | tuple[Tensor, Tensor]:
        # Each result is a tensor of its own: a view of another could not be changed in place.
        first = logits.new_empty(labels.shape if plan.maps else (), dtype=torch.float32)
        second = torch.empty_like(first) if plan.split else first
        scratch = logits.new_empty(plan.scratch, dtype=torch.float32) if plan.scratch else first
        weights = logits if class_weights is None else class_weights
        value = plan.value, (logits, labels, weights, first, second, scratch)
        if plan.maps:
            launch(value)
        else:
            launch(value, (plan.finish, (scratch, first, second)))
        left = scratch if plan.scratch else None
        ctx.save_for_backward(logits, None if plan.packed else labels, class_weights, left)
        ctx.plan = plan
        return (first, second) if plan.split else first

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: a second derivative is wanted
            raise RuntimeError("The fused losses cannot be differentiated twice; set fused=False.")
        logits, labels, class_weights, scratch = ctx.saved_tensors
        plan: Plan = ctx.plan
        to_ce = grads[0].contiguous()
        to_penalty = grads[1].contiguous() if plan.split else to_ce
        grad = torch.empty_like(logits, memory_format=plan.layout)
        weights = logits if class_weights is None else class_weights
        left = logits if scratch is None else scratch
        labels = left if labels is None else labels  # it is in there
        launch((plan.gradient, (logits, labels, weights, grad, to_ce, to_penalty, left)))
        return grad, None, None, None


# What `_PixelLoss.apply` calls after it has looked for functorch's transforms; `run` has as well.
_apply = super(torch.autograd.Function, _PixelLoss).apply


class Plan(NamedTuple):
    """How one kind of input is worked on."""

    layout: torch.memory_format
    maps: bool  # one value per pixel
    split: bool
    packed: bool  # the labels are left behind as nibbles: the gradient needs no others
    scratch: int  # float32 values that the forward pass leaves for the sum and the gradient
    value: Work
    finish: Work
    gradient: Work


@_remembered
def _plan(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    label_type: torch.dtype,
    recipe: Recipe,
    ignore_index: int,
    weighted: bool,
    reduction: str,
    split: bool,
) -> Plan:
    """How to cut the work up, and all arguments of the kernels but the tensors."""
    from segcal.losses.kernels import _triton

    batch, classes, space = shape[0], shape[1], shape[2:]
    pixels = math.prod(space)
    layout = _layout(shape, stride)
    assert layout is not None
    block_k = _power_of_two(classes)
    depth, height, width = (1, *space) if len(space) == 2 else tuple(space)
    vector = 1 if width % 2 else 2 if width % 4 or label_type == torch.int64 else 4
    packed = PACKS and vector == 2 and _pays_to_pack(classes, dtype, label_type)
    block, warps = _tile(block_k, vector)
    columns = batch * depth * width
    blocks = -(-columns // block)
    run = _run(height, blocks * warps, LONGEST_RUN if recipe.patch else LONGEST_RUN // 4)
    programs = blocks * -(-height // run)
    scale = recipe.penalty_weight / (classes if recipe.class_reduction == "mean" else 1)
    options = recipe.parameter, scale
    contiguous = layout == torch.contiguous_format
    strides = (pixels, 1) if contiguous else (1, classes)  # class to class, pixel to pixel
    sizes = (batch, depth, height, width, classes * pixels, *strides)
    maps = reduction == "none"
    kernel = {
        "K": classes,
        "BLOCK_K": block_k,
        "BLOCK": block,
        "RUN": run,
        "KIND": KINDS[recipe.kind],
        "WEIGHTED": weighted,
        "SOFTMAX": recipe.softmax,
        "SQUARE": recipe.square,
        "MAPS": maps,
        "SPLIT": split,
        "FLAT": len(space) == 2,
        "EVEN": columns % block == 0 and height % run == 0,
        "ROWS": contiguous,
        # No nibble of a class is ignored, but what lies beyond a border of background may be.
        "IGNORED": ignore_index if 0 <= ignore_index < classes else -1,
        **_prior_constants(recipe, classes),
        "VECTOR": vector,
        "PACKED": packed,
        "num_warps": warps,
    }
    finish = {
        "AVERAGE": reduction == "mean",
        "PENALISED": KINDS[recipe.kind] >= KINDS["ecp"],
        "WEIGHTED": weighted,
        "SPLIT": split,
        "BLOCK": _power_of_two(programs),
        "num_warps": SUM_WARPS,
    }
    first = (*sizes, ignore_index, *options)
    second = (*sizes, LEFT_OUT if packed else ignore_index, *options)
    return Plan(
        layout,
        maps=maps,
        split=split,
        packed=packed,
        scratch=_scratch(programs, batch * pixels, maps, packed),
        value=Work(_triton.value_kernel, programs, first, kernel, {}, _advice("value", kernel)),
        finish=Work(_triton.finish_kernel, 1, (programs,), finish, known={}, advice={}),
        gradient=Work(
            _triton.gradient_kernel, programs, second, kernel, {}, _advice("gradient", kernel)
        ),
    )


def _advice(part: str, kernel: dict[str, Any]) -> dict[str, int]:
    """What the compiler is told about a pass; it was measured with nibbles, so it is for them."""
    most = MOST_REGISTERS[part].get(kernel["BLOCK_K"])
    carries = kernel["PACKED"] and kernel["SLOTS"] and kernel["RZ"]
    return {"maxnreg": most} if most and carries and NVIDIA else {}


def _pays_to_pack(classes: int, dtype: torch.dtype, label_type: torch.dtype) -> bool:
    """Whether nibbles can hold the labels, spare reading wider ones, and cost little memory."""
    wide = label_type == torch.int64
    return wide and classes <= MOST_PACKED and classes * dtype.itemsize >= LEAST_LOGITS


def _scratch(programs: int, pixels: int, maps: bool, packed: bool) -> int:
    """Values of `scratch`: norms and sums, then (from a multiple of 16 bytes on) the nibbles."""
    if packed:
        return NORMS + 4 * programs + pixels // 8 + 1  # a byte beyond the last is read
    return 0 if maps else NORMS + 4 * programs


def _prior_constants(recipe: Recipe, classes: int) -> dict[str, Any]:
    """The compile-time constants that decide how labels vote."""
    patch = (1,) * (3 - len(recipe.patch)) + recipe.patch
    # A single pixel has no neighbours to weigh: its prior is its label.
    prior = "mean" if math.prod(patch) == 1 and recipe.prior == "gaussian" else recipe.prior
    all_alike = (-1,), (1.0,), math.prod(patch)
    shells, weights, most = _shells(patch, recipe.sigma) if prior == "gaussian" else all_alike
    bits = most.bit_length()  # that one class can need
    wide = classes * bits > 31
    per_word = (63 if wide else 31) // bits
    if prior == "gaussian":
        slots = 2 if patch[0] == 1 else 3
        walks = classes <= per_word
    else:
        slots = -(-classes // per_word)
        walks = slots <= 3
    walks = walks and patch[0] <= 3 and patch[1:] == (3, 3)
    if walks and prior == "gaussian" and classes <= 4:
        bits, per_word, wide = 8, 4, False  # see BYTE in _triton
    return {
        "SLOTS": slots if walks else 0,
        "PRIOR": PRIORS[prior],
        "RZ": patch[0] // 2,
        "RY": patch[1] // 2,
        "RX": patch[2] // 2,
        "SHELLS": shells,
        "SHELL_WEIGHTS": weights,
        "BORDER": BORDERS[recipe.border],
        "BITS": bits,
        "PER_WORD": per_word,
        "WIDE": wide,
    }


def _tile(block_k: int, vector: int) -> tuple[int, int]:
    """Columns and warps of a program, as measured on an H200.

    All classes of a pixel stay in one thread while they fit.
    """
    if block_k <= 16:
        return 128 * vector, 4
    return max(16, 2048 // block_k), 4


def _power_of_two(number: int) -> int:
    """The next one, from 2 on; in steps that torch.compile can follow."""
    power = 2
    while power < number:
        power *= 2
    return power


def _run(height: int, warps: int, longest: int) -> int:
    """Rows of a strip: long, so that what a row votes is used again, but enough strips for all."""
    run = longest
    while run > 1 and (warps * height < run * BUSY_WARPS or run > height):
        run //= 2
    return run


def _shells(patch: Sequence[int], sigma: float) -> tuple[tuple[int, ...], tuple[float, ...], int]:
    """Squared distances in the patch, the weight of one pixel at each, and the largest number of
    pixels at one. Together they weigh ½."""
    members: dict[int, int] = {}
    ranges = [range(-(size // 2), size // 2 + 1) for size in patch]
    for z in ranges[0]:
        for y in ranges[1]:
            for x in ranges[2]:
                squared = z * z + y * y + x * x
                members[squared] = members.get(squared, 0) + 1
    members.pop(0)
    bare = {squared: math.exp(-squared / (2 * sigma**2)) for squared in sorted(members)}
    total = sum(bare[squared] * number for squared, number in members.items())
    weights = tuple(0.5 * weight / total for weight in bare.values())
    return tuple(bare), weights, max(members.values())


def _layout(shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.memory_format | None:
    """Contiguous or channels last, or None for any other order in memory."""
    axes = tuple(range(len(shape)))
    last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    for layout, order in ((torch.contiguous_format, axes), (last, (0, *axes[2:], 1))):
        expected, dense = 1, True
        for axis in reversed(order):
            dense = dense and (shape[axis] == 1 or stride[axis] == expected)
            expected *= shape[axis]
        if dense:
            return layout
    return None
