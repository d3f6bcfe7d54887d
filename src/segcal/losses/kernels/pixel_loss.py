"""The fused losses as differentiable functions: when they apply, and what is launched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from segcal.core.checks import check_labels, per_axis
from segcal.losses.base import WeightedSum
from segcal.losses.kernels.launch import INTERPRETED, Work, launch
from segcal.losses.kernels.ptx import counting_code, storing_code, true_class_code
from segcal.losses.kernels.recipes import HAS_TRITON, ACETerm, Recipe, recipe_of
from segcal.losses.pixels import check_shapes, fit_weights

if TYPE_CHECKING:
    from segcal.losses.base import SegmentationLoss
    from segcal.losses.priors import Prior

NVIDIA = torch.version.hip is None
KINDS = {"none": -1, "ce": 0, "focal": 1, "ls": 2, "svls": 3, "ecp": 4, "mbls": 5, "nacl": 6}
PRIORS = {"mean": 0, "gaussian": 1, "max": 2, "min": 3, "median": 4, "mode": 5}
FORMS = {"linear": 1, "squared": 2, "proper": 3}  # 0 is no Dice
BORDERS = {"replicate": 0, "background": 1, "valid": 2}
LABEL_TYPES = (torch.uint8, torch.int16, torch.int32, torch.int64)
LOGIT_TYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_CLASSES = 128
# The patch is unrolled: a larger one compiles for too long.
MAX_PATCH = 125
# A label votes by a shift of its 32-bit value; that of a larger label would reach the classes.
MAX_IGNORE_INDEX = 1 << 24
MAX_PLANS = 256
WARPS, SUM_WARPS = 4, 16
# Programs whose sums of Dice are added at a time.
DICE_CHUNK = 1024
# Strips are as long as possible with at least this many warps, which keep an H200 busy to the end.
# The interpreter runs one program after the other.
BUSY_WARPS = 1 if INTERPRETED else 3072
LONGEST_RUN = 16
# The bins of ACE: pixels of a thread, and the least number of places to which programs add their
# sums at the same time.
BINNED_PIXELS, ACE_PLACES = 16, 64
MAX_PROGRAMS = 1 << 20  # whose sums one program can add up
MAX_TABLE = 2048  # float32 values that the gradient keeps in shared memory
NORMS = 8  # as in _triton
# The value kernel stores int64 labels as nibbles for the gradient, which reads fewer bytes then.
# Two of the 16 codes are not classes. The nibbles take half a byte per pixel: at most a twentieth
# of the logits.
MAX_PACKED_CLASSES = 14
MIN_LOGIT_BYTES = 10  # per pixel
LEFT_OUT = 14  # as in _triton
# Limit of the registers of a thread if votes are carried along three slices, or if there are sums
# for Dice and no votes, by BLOCK_K: low enough that another block fits on a multiprocessor of an
# H200, with hardly any spills.
VALUE_REGISTERS = {16: 128}
GRADIENT_REGISTERS = {4: 64, 16: 128}
BINS_REGISTERS = dict.fromkeys((2, 4, 8, 16, 32, 64), 80)


class Plan(NamedTuple):
    """How inputs of one shape and type are processed."""

    layout: torch.memory_format
    maps: bool  # whether the result has one value per pixel
    split: bool  # whether cross-entropy part and penalty are separate
    packed: bool  # whether the labels are stored as nibbles: the gradient then needs no others
    scratch: int  # float32 values that the forward pass leaves for the sum and the gradient
    value: Work
    finish: Work
    gradient: Work
    dice: Work | None  # adds up the sums of each class in each image
    dice_size: int  # float32 values: coefficients of the gradient, and the sums of the programs
    ace: Work | None = None  # turns the sums of bins into errors
    ace_size: int = 0  # float32 values: coefficients of the gradient, errors and their weights
    sums_size: int = 0  # int64 values: the sums of the bins


_PLANS: dict[tuple[Any, ...], Plan] = {}


def run(
    loss: SegmentationLoss | WeightedSum, logits: Tensor, target: Tensor, *, split: bool
) -> dict[str, Tensor] | None:
    """The terms of the loss, or under one name their sum unless `split`.

    None if the kernels do not apply, in which case torch is to be used. If `loss.fused` is True,
    this raises a ValueError with the reason; a sum is then tried loss by loss.
    """
    recipe = recipe_of(loss)
    strict = not isinstance(loss, WeightedSum)
    if isinstance(loss, WeightedSum):
        if recipe is None:
            return None
        loss = cast("SegmentationLoss", loss.losses[0])
    weights = loss._buffers["class_weights"]  # faster than the attribute
    key: tuple[Any, ...] | None = None
    plan: Plan | None = None
    plain_tensors = type(logits) is Tensor and type(target) is Tensor
    if plain_tensors and not torch.compiler.is_compiling():
        key = (
            logits.shape, logits.stride(), logits.dtype, logits.device,
            target.shape, target.dtype, target.device,
            recipe, loss.ignore_index, weights is not None, loss.reduction, split,
        )  # fmt: skip
        plan = _PLANS.get(key)
    if plan is None:  # otherwise input of this shape and type was checked before
        labels = check_shapes(logits, target)
        reason = why_not(logits, labels, recipe, loss.ignore_index)
        if reason is None and recipe is not None and (recipe.dice or recipe.ace):
            if loss.reduction == "none":
                reason = "Dice and ACE have no value per pixel (reduction 'none')"
            elif recipe.ace and weights is not None:
                reason = "ACE is not fused with class weights"
        if recipe is None or reason is not None:
            if loss.fused is True and strict:
                raise ValueError(f"Expected `fused=True` to be possible, but {reason}.")
            return None
        plan = make_plan(loss, recipe, logits, labels, split=split)
        if key is not None:
            if len(_PLANS) >= MAX_PLANS:
                _PLANS.clear()
            _PLANS[key] = plan
    assert recipe is not None
    if target.ndim == logits.ndim:
        target = target.squeeze(1)
    check_labels("target", target, logits.shape[1], loss.ignore_index)
    weights = None if weights is None else fit_weights(weights, logits)
    parts = _PixelLoss.apply(logits, target.contiguous(), weights, plan)  # type: ignore[no-untyped-call]
    if not split:
        return {recipe.terms[0]: parts}
    if recipe.kind == "none":
        return {"ace": parts[-1]}
    # A loss with one term has no penalty.
    terms = dict(zip(recipe.terms, parts[:2], strict=False))
    if recipe.dice:
        terms["dice"] = parts[2]
    return terms | {"ace": parts[-1]} if recipe.ace else terms


def why_not(logits: Tensor, labels: Tensor, recipe: Recipe | None, ignore_index: int) -> str | None:
    """Why the kernels do not apply to this input, or None if they do."""
    if recipe is None:
        return "there is no kernel for this loss or its prior"
    if not HAS_TRITON:
        return "Triton is not installed"
    if not logits.is_cuda and not INTERPRETED:
        return f"the logits are on the {logits.device.type}"
    if abs(ignore_index) > MAX_IGNORE_INDEX:
        return f"ignore_index {ignore_index} is too far from the classes"
    if logits.dtype not in LOGIT_TYPES:
        return f"the logits are {logits.dtype}"
    if labels.ndim == logits.ndim or labels.dtype not in LABEL_TYPES:
        kind = "soft" if labels.ndim == logits.ndim else labels.dtype
        return f"the target is not integer labels (it is {kind})"
    if logits.shape[1] > MAX_CLASSES:
        return f"{logits.shape[1]} classes are more than {MAX_CLASSES}"
    if _layout(logits) is None:
        return "the logits are neither contiguous nor channels_last"
    batch, classes, *space = logits.shape
    if recipe.ace and batch * _chunks(classes, math.prod(space)) > MAX_PROGRAMS:
        return f"{labels.numel()} pixels are too many for the bins"
    patch = _patch(recipe.prior, logits.ndim - 2)
    if math.prod(patch) > MAX_PATCH:
        return f"the patch {patch} has more than {MAX_PATCH} pixels"
    return None


class _PixelLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, class_weights: Tensor | None, plan: Plan
    ) -> Tensor | tuple[Tensor, ...]:
        # Each result is its own tensor: a view of another could not be changed in place.
        first = logits.new_empty(labels.shape if plan.maps else (), dtype=torch.float32)
        second = torch.empty_like(first) if plan.split else first
        scratch = logits.new_empty(plan.scratch, dtype=torch.float32) if plan.scratch else first
        weights = logits if class_weights is None else class_weights
        third = fourth = dice = ace = first
        value: tuple[Tensor, ...] = (logits, labels, weights, first, second, scratch, dice)
        jobs: list[tuple[Work, Sequence[Tensor]]] = []
        if plan.dice is not None:
            third = torch.empty_like(first) if plan.split else first
            dice = logits.new_empty(plan.dice_size, dtype=torch.float32)
            value = (*value[:-1], dice)
            jobs = [(plan.dice, (dice,))]
        if plan.ace is not None:
            fourth = torch.empty_like(first) if plan.split else first
            ace = logits.new_empty(plan.ace_size, dtype=torch.float32)
            sums = logits.new_zeros(plan.sums_size, dtype=torch.int64)
            value = (logits, labels, scratch, dice, sums)
            jobs.append((plan.ace, (sums, ace)))
        if not plan.maps:
            jobs.append((plan.finish, (scratch, first, second, third, fourth, dice, ace)))
        launch((plan.value, value), *jobs)
        left = scratch if plan.scratch else None
        kept = (None if plan.dice is None else dice, None if plan.ace is None else ace)
        ctx.save_for_backward(logits, None if plan.packed else labels, class_weights, left, *kept)
        ctx.plan = plan
        if not plan.split:
            return first
        parts = (first, second) if plan.dice is None else (first, second, third)
        return parts if plan.ace is None else (*parts, fourth)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: a second derivative is requested
            raise RuntimeError("The fused losses cannot be differentiated twice; set fused=False.")
        logits, labels, class_weights, scratch, dice, ace = ctx.saved_tensors
        plan: Plan = ctx.plan
        to_ce = grads[0].contiguous()
        to_penalty = grads[1].contiguous() if plan.split else to_ce
        grad = torch.empty_like(logits, memory_format=plan.layout)
        weights = logits if class_weights is None else class_weights
        left = logits if scratch is None else scratch
        labels = left if labels is None else labels  # `scratch` contains the labels
        to_dice = grads[2].contiguous() if plan.split and dice is not None else to_ce
        to_ace = grads[-1].contiguous() if plan.split and ace is not None else to_ce
        by_image = (to_dice, left if dice is None else dice, to_ace, left if ace is None else ace)
        tensors = (logits, labels, weights, grad, to_ce, to_penalty, left, *by_image)
        launch((plan.gradient, tensors))
        return grad, None, None, None


def make_plan(
    loss: SegmentationLoss, recipe: Recipe, logits: Tensor, labels: Tensor, *, split: bool
) -> Plan:
    """How to divide the work, and all arguments of the kernels but the tensors."""
    from segcal.losses.kernels import _triton, _triton_ace

    ignore_index, weighted = loss.ignore_index, loss.class_weights is not None
    batch, classes, *space = logits.shape
    pixels = math.prod(space)
    layout = _layout(logits)
    assert layout is not None
    block_k = _power_of_two(classes)
    depth, height, width = (1, *space) if len(space) == 2 else tuple(space)
    wide_labels = labels.dtype == torch.int64
    vector = 1 if width % 2 else 2 if width % 4 or wide_labels else 4
    # Nibbles must hold the labels, save reading wider ones, and cost little memory.
    logit_bytes = classes * logits.dtype.itemsize
    packed = vector == 2 and wide_labels and classes <= MAX_PACKED_CLASSES
    packed = packed and logit_bytes >= MIN_LOGIT_BYTES
    # Tuned on an H200: all classes of a pixel stay in one thread if they fit.
    block = 128 * vector if block_k <= 16 else max(16, 2048 // block_k)
    columns = batch * depth * width
    blocks = -(-columns // block)
    long = (
        recipe.prior is not None or recipe.dice is not None
    )  # votes of a row are used again; sums are stored less often
    run = _run(height, blocks * WARPS, LONGEST_RUN if long else LONGEST_RUN // 4)
    programs = blocks * -(-height // run)
    scale = recipe.penalty_weight / (classes if recipe.class_reduction == "mean" else 1)
    contiguous = layout == torch.contiguous_format
    strides = (pixels, 1) if contiguous else (1, classes)  # class to class, pixel to pixel
    sizes = (batch, depth, height, width, classes * pixels, *strides)
    kind, maps, average = KINDS[recipe.kind], loss.reduction == "none", loss.reduction == "mean"
    constants = {
        "K": classes, "BLOCK_K": block_k, "BLOCK": block, "RUN": run,
        "KIND": kind, "WEIGHTED": weighted, "SOFTMAX": recipe.softmax, "SQUARE": recipe.square,
        "MAPS": maps, "SPLIT": split, "FLAT": len(space) == 2,
        "EVEN": columns % block == 0 and height % run == 0, "ROWS": contiguous,
        # The nibble of a class is never ignored, but a border of background may be.
        "IGNORED": ignore_index if 0 <= ignore_index < classes else -1,
        **_prior_constants(recipe.prior, len(space), classes),
        "VECTOR": vector, "PACKED": packed, "num_warps": WARPS,
    }  # fmt: skip
    term = recipe.dice
    over_batch = term is not None and term.over == "batch"
    rows = 1 if over_batch else batch
    # The most images that the columns of one program belong to.
    in_block = 1 if (depth * width) % block == 0 else (block - 2) // (depth * width) + 2
    spans = 1 if over_batch else in_block
    forms = {
        "DICE": 0 if term is None else FORMS[term.form], "BATCH": over_batch,
        "SPANS": 1 if term is None else min(spans, batch),
    }  # fmt: skip
    constants |= forms
    binned: dict[str, Any] = {}
    chunks = images = 0
    if recipe.ace is not None:
        binned, chunks = _binning(recipe.ace, batch, classes, pixels)
        binned |= {
            "CE": kind == KINDS["ce"], "DICE": forms["DICE"], "BATCH": over_batch,
            "ROWS": contiguous, "PACKED": packed,
        }  # fmt: skip
        images = batch
    summed = batch * chunks or programs  # those that leave sums
    images_in_block = 1 if in_block == 1 else _power_of_two(in_block)
    with_bins = {
        "BINS": binned.get("BINS", 0), "BLOCK_BINS": binned.get("BLOCK_BINS", 0),
        "ONE_IMAGE": not binned or in_block == 1,
        **_table_constants(images_in_block * block_k * binned.get("BLOCK_BINS", 0)),
    }  # fmt: skip
    finish = {
        "AVERAGE": average, "PENALIZED": kind >= KINDS["ecp"], "WEIGHTED": weighted, "SPLIT": split,
        "BLOCK": _power_of_two(summed), "DICE": forms["DICE"], "K": classes, "BLOCK_K": block_k,
        "BLOCK_ROWS": DICE_CHUNK // block_k, "CHUNKS": -(-rows // (DICE_CHUNK // block_k)),
        "BLOCK_BINS": with_bins["BLOCK_BINS"], "ACE_CHUNKS": -(-images // (DICE_CHUNK // block_k)),
        "num_warps": SUM_WARPS,
    }  # fmt: skip
    recent = _triton.VERSION >= (3, 4)  # earlier compiled kernels did not take all arguments
    # The limits were chosen for these.
    suited = (
        packed and constants["SLOTS"] and constants["RZ"]
        if term is None
        else recipe.prior is None and recipe.ace is None
    )

    def work(kernel: Any, count: int, numbers: Any, constants: Any, limits: dict[int, int]) -> Work:
        limited = block_k in limits and (suited or limits is BINS_REGISTERS) and recent and NVIDIA
        hints = {"maxnreg": limits[block_k]} if limited else {}
        return Work(kernel, count, numbers, constants, hints, {} if recent else None)

    before = (*sizes, ignore_index, recipe.parameter, scale)
    after = (*sizes, LEFT_OUT if packed else ignore_index, recipe.parameter, scale, summed)
    dice = ace = None
    value = work(_triton.value_kernel, programs, before, constants, VALUE_REGISTERS)
    if recipe.ace is not None:
        numbers = (batch, pixels, chunks, classes * pixels, *strides, ignore_index)
        value = work(_triton_ace.bins_kernel, summed, numbers, binned, BINS_REGISTERS)
        few = {name: binned[name] for name in ("K", "BINS", "BLOCK_BINS", "SLOTS")}
        ace = work(_triton_ace.ace_kernel, batch * classes, (batch,), few | {"num_warps": 1}, {})
    if term is not None:
        # Programs, or strips, of a column of blocks; an image begins and ends inside a block.
        runs, columns, wide = -(-height // run), depth * width, block
        if recipe.ace is not None:
            runs, columns, wide = 1, chunks, 1
        longest = summed if over_batch else (columns // wide + 2) * runs
        per_class = {
            **forms, "K": classes, "BLOCK": wide,
            "CHUNK": DICE_CHUNK, "CHUNKS": -(-longest // DICE_CHUNK), "num_warps": WARPS,
        }  # fmt: skip
        if recipe.ace is not None:
            per_class["SPANS"] = 1
        counts = (summed, runs, rows, columns, term.smooth)
        dice = work(_triton.dice_kernel, rows * classes, counts, per_class, {})
    others = (0.0 if part is None else part.weight for part in (term, recipe.ace))
    weighting = (recipe.weight, *others)
    # Norms and sums, then (from a multiple of 16 bytes on) the nibbles; one more byte is read.
    scratch = 0 if maps and not packed else NORMS + 4 * summed
    return Plan(
        layout,
        maps=maps,
        split=split,
        packed=packed,
        scratch=scratch + batch * pixels // 8 + 1 if packed else scratch,
        value=value,
        finish=work(_triton.finish_kernel, 1, (summed, rows, images, *weighting), finish, {}),
        gradient=work(
            _triton.gradient_kernel, programs, after, constants | with_bins, GRADIENT_REGISTERS
        ),
        dice=dice,
        dice_size=2 * classes * (2 * rows + summed * (1 if ace else forms["SPANS"])),
        ace=ace,
        ace_size=images * classes * (with_bins["BLOCK_BINS"] + 2),
        sums_size=3 * images * binned.get("SLOTS", 0) * classes * with_bins["BLOCK_BINS"],
    )


def _binning(term: ACETerm, batch: int, classes: int, pixels: int) -> tuple[dict[str, Any], int]:
    """How an image is divided for the bins: compile-time constants, and the chunks of an image."""
    each = _binned_pixels(classes)
    chunk, chunks = 32 * each, _chunks(classes, pixels)
    slots = 1
    while slots * batch < ACE_PLACES and 2 * slots <= chunks:
        slots *= 2
    bins, row = term.num_bins, _power_of_two(term.num_bins)
    # PTX for the bins, and its operands: a result, the pixels and an address.
    count = counting_code(bins, row, each)
    count_true = true_class_code(classes * row, row, 3 * slots * row, each)
    operands, operands_true = (
        ",".join([*["=r"] * each, *[kind] * each, *["l"] * each]) for kind in ("f", "r")
    )
    constants = {
        "K": classes, "BINS": bins, "BLOCK_BINS": row, "SLOTS": slots,
        "PIXELS": chunk, "EVEN": pixels % chunk == 0,
        "COUNT": count, "COUNT_TRUE": count_true,
        "OPERANDS": operands, "OPERANDS_TRUE": operands_true, "num_warps": 1,
    }  # fmt: skip
    return constants, chunks


def _binned_pixels(classes: int) -> int:
    """Pixels of a thread in the value pass with bins; tuned on an H200."""
    return BINNED_PIXELS if classes <= 8 else BINNED_PIXELS // 2


def _chunks(classes: int, pixels: int) -> int:
    """The programs of one warp for an image."""
    return -(-pixels // (32 * _binned_pixels(classes)))


def _table_constants(size: int) -> dict[str, Any]:
    """Constants for a table of so many values in shared memory, or for none."""
    # torch.compile copies all inputs of a kernel with code that writes to shared memory.
    usable = NVIDIA and not INTERPRETED and not torch.compiler.is_compiling()
    if not usable or not 0 < size <= MAX_TABLE:
        return {"TABLE": 0, "STORE": "", "OPERANDS": ""}
    values = max(1, size // (32 * WARPS))
    kinds = [kind for kind in ("=r", "r", "f") for _ in range(values)]
    code = storing_code(size, values)
    return {"TABLE": size, "STORE": code, "OPERANDS": ",".join(kinds)}


def _patch(prior: Prior | None, axes: int) -> tuple[int, ...]:
    """Size of the patch along z, y and x; (1, 1, 1) without a prior."""
    patch = (1,) if prior is None else per_axis("patch_size", prior.patch_size, axes)
    return (1,) * (3 - len(patch)) + patch


def _prior_constants(prior: Prior | None, axes: int, classes: int) -> dict[str, Any]:
    """The compile-time constants that determine how labels vote."""
    patch = _patch(prior, axes)
    kind = "mean" if prior is None else prior.kind
    if kind == "gaussian" and math.prod(patch) == 1:
        kind = "mean"  # a single pixel has no neighbors to weight: its prior is its label
    if prior is not None and kind == "gaussian":
        shells, weights, most = _shells(patch, prior.sigma)
    else:
        shells, weights, most = (-1,), (1.0,), math.prod(patch)
    bits = most.bit_length()  # for the votes of one class
    wide = classes * bits > 31
    per_word = (63 if wide else 31) // bits
    if kind == "gaussian":
        slots = 2 if patch[0] == 1 else 3
        walks = classes <= per_word
    else:
        slots = -(-classes // per_word)
        walks = slots <= 3
    walks = walks and patch[0] <= 3 and patch[1:] == (3, 3)
    if walks and kind == "gaussian" and classes <= 4:
        bits, per_word, wide = 8, 4, False  # see BYTE in _triton
    return {
        "SLOTS": slots if walks else 0, "PRIOR": PRIORS[kind],
        "RZ": patch[0] // 2, "RY": patch[1] // 2, "RX": patch[2] // 2,
        "SHELLS": shells, "SHELL_WEIGHTS": weights,
        "BORDER": BORDERS["replicate" if prior is None else prior.border],
        "BITS": bits, "PER_WORD": per_word, "WIDE": wide,
    }  # fmt: skip


def _power_of_two(number: int) -> int:
    """The next power of two, at least 2; computed in steps that torch.compile can trace."""
    power = 2
    while power < number:
        power *= 2
    return power


def _run(height: int, warps: int, longest: int) -> int:
    """Rows of a strip: many, to reuse the votes of a row, but with enough strips for all warps."""
    run = longest
    while run > 1 and (warps * height < run * BUSY_WARPS or run > height):
        run //= 2
    return run


def _shells(patch: Sequence[int], sigma: float) -> tuple[tuple[int, ...], tuple[float, ...], int]:
    """Squared distances in the patch, the weight of one pixel at each, and the largest number of
    pixels at one distance. The weights of all pixels add up to ½."""
    members: dict[int, int] = {}
    for z, y, x in product(*(range(-(size // 2), size // 2 + 1) for size in patch)):
        squared = z * z + y * y + x * x
        members[squared] = members.get(squared, 0) + 1
    members.pop(0)
    bare = {squared: math.exp(-squared / (2 * sigma**2)) for squared in sorted(members)}
    total = sum(bare[squared] * number for squared, number in members.items())
    weights = tuple(0.5 * weight / total for weight in bare.values())
    return tuple(bare), weights, max(members.values())


def _layout(logits: Tensor) -> torch.memory_format | None:
    """Contiguous or channels last, or None for any other order in memory."""
    last = torch.channels_last if logits.ndim == 4 else torch.channels_last_3d
    for layout in (torch.contiguous_format, last):
        if logits.is_contiguous(memory_format=layout):
            return layout
    return None
