"""The value pass of the average calibration error with hard bins, with or without CE and Dice.

The value needs, for each bin of a class in an image, the number of pixels, the sum of their
probabilities, and the number of pixels of this class. Triton cannot add to an element of shared
memory, so this is written in PTX, for programs of one warp. Each of its threads has its own column
of a table of the bins, so that no two threads add to the same bank. A probability is rounded to
steps of 1/65536 of the width of a bin. If it is r steps above the lower border of its bin, it adds
1 to the number and r to the sum; both are in one word. A probability at the upper border of
the last bin has a row of its own, and pixels that do not count another. Then each thread adds up a
row. The pixels of the true class are counted once, in a table of all classes. All sums are
integers, which do not depend on the order, so the atomic additions to the memory of the GPU are
deterministic.

The classes are processed one after the other, and read three times: twice from the cache.
"""

import triton
import triton.language as tl

from segcal.losses.kernels._triton import (
    INVALID,
    LEFT_OUT,
    LINEAR,
    NORMS,
    PTX,
    SQUARED,
    STEPS,
    _bin,
    _exp,
    _inverse,
    _log,
    _nibbles,
)


@triton.jit
def _read(plane, offset, here, EVEN: tl.constexpr):
    if EVEN:
        here = tl.full(here.shape, True, tl.int1)
    return tl.load(plane + offset, mask=here, other=0.0).to(tl.float32)


@triton.jit
def bins_kernel(
    logits, labels, scratch, dice, sums,
    B, S, chunks, stride_b, stride_k, stride_s, ignore_index,
    K: tl.constexpr, CE: tl.constexpr, DICE: tl.constexpr,
    BATCH: tl.constexpr, BINS: tl.constexpr, BLOCK_BINS: tl.constexpr, SLOTS: tl.constexpr,
    PIXELS: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr,
    PACKED: tl.constexpr, COUNT: tl.constexpr, COUNT_TRUE: tl.constexpr,
    OPERANDS: tl.constexpr, OPERANDS_TRUE: tl.constexpr,
):  # fmt: skip
    """The sums of PIXELS pixels of one image, one chunk.

    `sums` receives for each bin of a class in an image, (B, K, SLOTS, 3, BLOCK_BINS): the number of
    pixels, the summed r, and the number of pixels of this class. Several slots keep programs from
    waiting for each other. COUNT and COUNT_TRUE are PTX, followed by their operands.
    """
    image = (tl.program_id(0) // chunks).to(tl.int64)
    chunk = tl.program_id(0) % chunks
    pixel = chunk * PIXELS + tl.arange(0, PIXELS)
    here = pixel < S
    # Without vectors all values have one layout: neighboring pixels in neighboring threads.
    pixel = tl.max_contiguous(pixel, 1)
    offset = pixel if ROWS else pixel.to(tl.int64) * stride_s
    base = logits + image * stride_b
    place = tl.max_contiguous(image * S + pixel, 1)
    label = tl.load(labels + place, mask=here, other=0).to(tl.int32)
    counted = here & (label != ignore_index)
    invalid = counted & ((label < 0) | (label >= K))
    if PACKED:
        code = tl.where(invalid, INVALID, tl.where(counted, label, LEFT_OUT))
        low, high = tl.split(tl.reshape(code, [PIXELS // 2, 2]))
        first, _ = tl.split(tl.reshape(place, [PIXELS // 2, 2]))
        exists, _ = tl.split(tl.reshape(here.to(tl.int32), [PIXELS // 2, 2]))
        byte = (low | high << 4).to(tl.uint8)
        tl.store(_nibbles(scratch, tl.num_programs(0)) + (first >> 1), byte, mask=exists > 0)

    stride = tl.cast(stride_k, tl.int64)
    top = tl.full([PIXELS], float("-inf"), tl.float32)
    for k in range(K):
        top = tl.maximum(top, _read(base + k * stride, offset, here, EVEN))
    total = tl.zeros([PIXELS], tl.float32)
    for k in range(K):
        total += _exp(_read(base + k * stride, offset, here, EVEN) - top)
    inverse = _inverse(total)
    valid = counted & ~invalid
    own = offset + tl.where(valid, label, 0) * stride
    shifted = tl.load(base + own, mask=valid, other=0.0).to(tl.float32)
    shifted = tl.where(valid, shifted - top, 0.0)
    ce = _log(total) - shifted if CE else total * 0.0  # NaN where a logit is
    ce = tl.where(invalid, float("nan"), tl.where(counted, ce, 0.0))
    mine = scratch + NORMS + tl.program_id(0)
    tl.store(mine, tl.sum(ce))
    count = tl.sum(counted.to(tl.int32))
    tl.store(mine + 2 * tl.num_programs(0), count.to(tl.float32))

    STRIDE: tl.constexpr = SLOTS * 3 * BLOCK_BINS  # from class to class
    slot = sums + (image * (K * SLOTS) + chunk % SLOTS) * (3 * BLOCK_BINS)
    entry = label * BLOCK_BINS + _bin(_exp(shifted) * inverse, BINS)
    entry = tl.where(valid, entry, (K * BLOCK_BINS + 31) // 32 * 32)
    if PTX:
        tl.inline_asm_elementwise(
            COUNT_TRUE, OPERANDS_TRUE, [entry, (slot + 2 * BLOCK_BINS).to(tl.int64)],
            dtype=tl.int32, is_pure=False, pack=PIXELS // 32,
        )  # fmt: skip
    known = tl.where(counted, label, -1)
    # So that every probability of a pixel that does not count has the same place, by a minimum.
    inverse = tl.where(counted, inverse, float("inf"))
    last = tl.where(counted, BINS, BINS + 1).to(tl.float32)
    for k in range(K):
        probs = _exp(_read(base + k * stride, offset, here, EVEN) - top) * inverse
        if DICE:
            dice_probs = tl.where(known < 0, 0.0, probs)
            truth = tl.where(known == k, 1.0, 0.0)
            if DICE == LINEAR:
                dice_x = dice_probs * truth
                dice_z = dice_probs + truth
            else:
                dice_x = (dice_probs - truth) * (dice_probs - truth)
                dice_z = dice_probs * dice_probs + (truth if DICE == SQUARED else dice_probs)
            length = tl.num_programs(0).to(tl.int64)
            place_x = dice + 4 * K * (1 if BATCH else B) + k * length + tl.program_id(0)
            tl.store(place_x, tl.sum(dice_x))
            tl.store(place_x + K * length, tl.sum(dice_z))
        position = tl.minimum(probs * BINS, last)
        at = slot + k * STRIDE
        if PTX:
            tl.inline_asm_elementwise(
                COUNT, OPERANDS, [position, at.to(tl.int64)],
                dtype=tl.int32, is_pure=False, pack=PIXELS // 32,
            )  # fmt: skip
        else:
            steps = (position * STEPS + 0.5).to(tl.int32)
            bin = steps // STEPS
            rest = tl.where(bin == BINS, STEPS, steps % STEPS)
            bin = tl.where(bin == BINS, BINS - 1, bin)
            bins = tl.arange(0, BLOCK_BINS)
            inside = (bin[None, :] == bins[:, None]) & (bins < BINS)[:, None]
            true = entry[None, :] == (k * BLOCK_BINS + bins)[:, None]
            _add_counts(at + bins, tl.where(inside, 1, 0))
            _add_counts(at + BLOCK_BINS + bins, tl.where(inside, rest[None, :], 0))
            _add_counts(at + 2 * BLOCK_BINS + bins, tl.where(true, 1, 0))


@triton.jit
def _add_counts(at, counts):
    total = tl.sum(counts, 1)
    tl.atomic_add(at, total.to(tl.int64), sem="relaxed")


@triton.jit
def ace_kernel(
    sums, ace, B,
    K: tl.constexpr, BINS: tl.constexpr, BLOCK_BINS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """The error of one class in one image, from the sums of its bins.

    Stores in `ace`: (B, K, BLOCK_BINS) what the gradient is multiplied by, (B, K) the error, and
    (B, K) 1 if the class occurs.
    """
    bins = tl.arange(0, BLOCK_BINS)
    slots = tl.arange(0, SLOTS)
    mine = sums + tl.program_id(0).to(tl.int64) * (SLOTS * 3 * BLOCK_BINS)
    at = mine + slots[:, None] * (3 * BLOCK_BINS) + bins[None, :]
    total = tl.sum(tl.load(at), 0).to(tl.float64)
    rest = tl.sum(tl.load(at + BLOCK_BINS), 0).to(tl.float64) / STEPS
    true = tl.sum(tl.load(at + 2 * BLOCK_BINS), 0).to(tl.float64)
    filled = total > 0
    gap = tl.where(filled, (bins * total + rest) / BINS - true, 0.0)
    per_bin = 1.0 / tl.where(filled, total, 1.0)
    per_bin = per_bin / tl.maximum(tl.sum(filled.to(tl.float64)), 1.0)
    present = tl.where(tl.sum(true) > 0, 1.0, 0.0)
    sign = tl.where(gap > 0, per_bin, tl.where(gap < 0, -per_bin, 0.0))
    tl.store(ace + tl.program_id(0) * BLOCK_BINS + bins, sign.to(tl.float32))
    error = ace + B * K * BLOCK_BINS + tl.program_id(0)
    tl.store(error, (tl.sum(tl.abs(gap) * per_bin) * present).to(tl.float32))
    tl.store(error + B * K, present)
