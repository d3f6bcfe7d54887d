"""The fused losses as differentiable functions: what to launch, and when it can be."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from segcal.kernels.launch import INTERPRETED, launch

KINDS = {"ce": 0, "focal": 1, "ls": 2, "svls": 3, "ecp": 4, "mbls": 5, "nacl": 6}
PRIORS = {"mean": 0, "gaussian": 1, "max": 2, "min": 3, "median": 4, "mode": 5}
BORDERS = {"replicate": 0, "background": 1, "valid": 2}
LABEL_TYPES = (torch.uint8, torch.int16, torch.int32, torch.int64)
LOGIT_TYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_CLASSES = 128
SUM_BLOCK, SUM_WARPS = 4096, 16
HAS_TRITON = find_spec("triton") is not None
# The patch is unrolled: more than this compiles for too long to be worth it.
MAX_PATCH = 125


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


def why_not(logits: Tensor, target: Tensor, recipe: Recipe) -> str | None:
    """Why the kernels cannot take this input, or None if they can."""
    if not HAS_TRITON:
        return "Triton is not installed"
    if not logits.is_cuda and not INTERPRETED:
        return f"the logits are on the {logits.device.type}"
    if logits.dtype not in LOGIT_TYPES:
        return f"the logits are {logits.dtype}"
    if target.dtype not in LABEL_TYPES or (target.ndim == logits.ndim and target.shape[1] != 1):
        return f"the target is not integer labels (it is {target.dtype} {tuple(target.shape)})"
    if not 2 <= logits.shape[1] <= MAX_CLASSES:
        return f"{logits.shape[1]} classes are more than {MAX_CLASSES}"
    if _layout(logits) is None:
        return "the logits are neither contiguous nor channels_last"
    if math.prod(recipe.patch) > MAX_PATCH:
        return f"the patch {recipe.patch} has more than {MAX_PATCH} pixels"
    return None


def fused_terms(
    logits: Tensor,
    target: Tensor,
    recipe: Recipe,
    *,
    ignore_index: int,
    class_weights: Tensor | None,
    reduction: str,
    split: bool,
) -> tuple[Tensor, ...]:
    """(cross-entropy part, weighted penalty) if `split`, else (their sum,)."""
    labels = target.squeeze(1) if target.ndim == logits.ndim else target
    result: tuple[Tensor, ...] = _PixelLoss.apply(  # type: ignore[no-untyped-call]
        logits, labels.contiguous(), class_weights, recipe, ignore_index, reduction, split
    )
    return result


class _PixelLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        class_weights: Tensor | None,
        recipe: Recipe,
        ignore_index: int,
        reduction: str,
        split: bool,
    ) -> tuple[Tensor, ...]:
        from segcal.kernels import _triton

        maps = reduction == "none"
        weighted = class_weights is not None
        plan = _plan(tuple(logits.shape), recipe, ignore_index, weighted, maps)
        arguments = _arguments(logits, labels, class_weights, recipe, ignore_index)
        key = (plan.key, logits.dtype, labels.dtype, _layout(logits))
        new = logits.new_empty
        if maps:
            out = new((2, *labels.shape), dtype=torch.float32)
            ce, penalty, partial = out[0], out[1], out
        else:
            partial = new((4, plan.programs), dtype=torch.float32)
            out = new(5, dtype=torch.float32)
            ce, penalty = partial, partial
        tensors = (*arguments[:3], ce, penalty, partial, *arguments[3:])
        launch(_triton.value_kernel, plan.programs, tensors, plan.constants, plan.warps, key)
        if not maps:
            constants = {
                "ROUNDS": plan.rounds,
                "AVERAGE": reduction == "mean",
                "PENALISED": KINDS[recipe.kind] >= KINDS["ecp"],
                "WEIGHTED": weighted,
                "BLOCK": SUM_BLOCK,
            }
            sums = (partial, out, plan.programs)
            launch(_triton.finish_kernel, 1, sums, constants, SUM_WARPS, (plan.key, reduction))
        ctx.save_for_backward(logits, labels, class_weights, None if maps else out[3:])
        ctx.arguments, ctx.plan, ctx.key, ctx.split = arguments[3:], plan, key, split
        if split:
            return out[0], out[1]
        return (out[0].add_(out[1]),) if maps else (out[2],)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: a second derivative is wanted
            raise RuntimeError("The fused losses cannot be differentiated twice; set fused=False.")
        from segcal.kernels import _triton

        logits, labels, class_weights, norms = ctx.saved_tensors
        to_ce = grads[0].contiguous()
        to_penalty = grads[1].contiguous() if ctx.split else to_ce
        grad = torch.empty_like(logits, memory_format=_layout(logits))
        weights, scales = (logits if t is None else t for t in (class_weights, norms))
        tensors = (logits, labels, weights, grad, to_ce, to_penalty, scales, *ctx.arguments)
        plan = ctx.plan
        launch(_triton.gradient_kernel, plan.programs, tensors, plan.constants, plan.warps, ctx.key)
        return grad, None, None, None, None, None, None


class _Plan(NamedTuple):
    key: Hashable  # all that the rest was made from
    programs: int
    rounds: int  # of adding up what the programs left
    warps: int
    constants: dict[str, Any]


@lru_cache(maxsize=256)
def _plan(
    shape: tuple[int, ...], recipe: Recipe, ignore_index: int, weighted: bool, maps: bool
) -> _Plan:
    """How to cut the work up, and the compile-time constants of the kernels."""
    batch, classes, space = shape[0], shape[1], shape[2:]
    block_k = max(2, 1 << (classes - 1).bit_length())
    block, warps = _tile(block_k, len(space))
    patch = recipe.patch or (1,) * len(space)
    patch = (1,) * (3 - len(patch)) + patch
    # A single pixel has no neighbours to weigh: its prior is its label.
    prior = "mean" if math.prod(patch) == 1 and recipe.prior == "gaussian" else recipe.prior
    shells, weights = _shells(patch, recipe.sigma) if prior == "gaussian" else ((-1,), (1.0,))
    bits = math.prod(patch).bit_length()
    wide = classes * bits > 31
    constants = {
        "K": classes,
        "BLOCK_K": block_k,
        "BLOCK": block,
        "KIND": KINDS[recipe.kind],
        "WEIGHTED": weighted,
        "MAPS": maps,
        "FLAT": len(space) == 2,
        "IGNORED": ignore_index if 0 <= ignore_index < classes else -1,
        "SOFTMAX": recipe.softmax,
        "SQUARE": recipe.square,
        "PRIOR": PRIORS[prior],
        "RZ": patch[0] // 2,
        "RY": patch[1] // 2,
        "RX": patch[2] // 2,
        "SHELLS": shells,
        "SHELL_WEIGHTS": weights,
        "CENTRE_WEIGHT": 0.5,
        "BORDER": BORDERS[recipe.border],
        "BITS": bits,
        "PER_WORD": (63 if wide else 31) // bits,
        "WIDE": wide,
    }
    programs = batch * -(-math.prod(space) // block)
    # Rounded up to a power of two: few different kernels, whatever the sizes.
    rounds = 1 << max(0, (programs - 1) // SUM_BLOCK).bit_length()
    key = (shape, recipe, ignore_index, weighted, maps)
    return _Plan(key, programs, rounds, warps, constants)


def _tile(block_k: int, axes: int) -> tuple[int, int]:
    """Pixels and warps of a program, as measured on an H200.

    All classes of a pixel stay in one thread while they fit.
    """
    if block_k <= 4:
        return (512, 4) if axes == 2 else (128, 1)
    if block_k <= 8:
        return 256, 2
    if block_k <= 16:
        return 128, 1
    return max(16, 2048 // block_k), 4


def _shells(patch: Sequence[int], sigma: float) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Squared distances in the patch and the weight of one pixel at each; together they weigh ½."""
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
    return tuple(bare), tuple(0.5 * weight / total for weight in bare.values())


def _arguments(
    logits: Tensor,
    labels: Tensor,
    class_weights: Tensor | None,
    recipe: Recipe,
    ignore_index: int,
) -> list[Any]:
    """The run-time arguments that both kernels share."""
    classes, space = logits.shape[1], logits.shape[2:]
    pixels = math.prod(space)
    contiguous = _layout(logits) == torch.contiguous_format
    depth, height, width = (1, *space) if len(space) == 2 else tuple(space)
    scale = recipe.penalty_weight
    if recipe.class_reduction == "mean":
        scale /= classes
    return [
        logits,
        labels,
        logits if class_weights is None else class_weights,
        pixels,
        depth,
        height,
        width,
        classes * pixels,  # from image to image,
        pixels if contiguous else 1,  # class to class,
        1 if contiguous else classes,  # pixel to pixel
        ignore_index,
        recipe.parameter,
        scale,
    ]


def _layout(logits: Tensor) -> torch.memory_format | None:
    """Contiguous or channels last, or None for any other order in memory."""
    last = torch.channels_last if logits.ndim == 4 else torch.channels_last_3d
    for layout in (torch.contiguous_format, last):
        if logits.is_contiguous(memory_format=layout):
            return layout
    return None
