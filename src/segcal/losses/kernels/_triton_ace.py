"""The value pass of the average calibration error with hard bins, with or without CE and Dice.

A probability in bin b, at r of its width, has the position u = b + r/32. So u − j clamped to [0, 1]
is 1 if the probability is in a bin above j, r/32 if it is in bin j, and 0 below. The sum over the
pixels of a thread, at most 16, has the number of pixels above j as integer part, and 1/32 of the
summed r as fraction: two additions per bin yield both, at the full rate of a GPU, without indexing
memory. They are then added up as integers, whose sum does not depend on the order, so the atomic
additions are deterministic. How often each bin holds the true class is counted once per pixel.

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
    _bin,
    _exp,
    _inverse,
    _log,
    _nibbles,
)

SHARE = tl.constexpr(1 / 32)  # of r in u: those of 16 pixels are below 1
FRACTION = tl.constexpr(23)  # bits of the fraction of a sum of 16
WHOLE = tl.constexpr(1 << 23)
STEPS = tl.constexpr(1 << 18)  # of the sums of r: 2^FRACTION · SHARE


@triton.jit
def _clamped_difference(u, j):
    if PTX:
        y = tl.inline_asm_elementwise(
            "sub.rn.sat.f32 $0, $1, $2;", "=f,f,f", [u, j], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        y = tl.minimum(tl.maximum(u - j, 0.0), 1.0)
    return y


@triton.jit
def _floor(x):
    """The next lower integer of 0 ≤ x < 2²², by an addition that rounds down."""
    if PTX:
        y = tl.inline_asm_elementwise(
            "add.rm.f32 $0, $1, $2;", "=f,f,f", [x, 8388608.0],
            dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
        y = y - 8388608.0
    else:
        y = tl.floor(x)
    return y


@triton.jit
def _read(plane, offset, here, EVEN: tl.constexpr):
    if EVEN:
        here = tl.full(here.shape, True, tl.int1)
    return tl.load(plane + offset, mask=here, other=0.0).to(tl.float32)


@triton.jit
def bins_kernel(
    logits, labels, scratch, dice, sums,
    B, S, chunks, stride_b, stride_k, stride_s, ignore_index,
    K: tl.constexpr, BLOCK_K: tl.constexpr, CE: tl.constexpr, DICE: tl.constexpr,
    BATCH: tl.constexpr, BINS: tl.constexpr, BLOCK_BINS: tl.constexpr, PARTS: tl.constexpr,
    STARTS: tl.constexpr, SLOTS: tl.constexpr, HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """The sums of HEIGHT · WIDTH pixels of one image, one chunk.

    `sums` receives for each bin of a class in an image, (B, K, SLOTS, 3, BLOCK_BINS): the number of
    pixels above it, the summed r, and the number of pixels of this class; then (B, SLOTS) the
    number of pixels that count. Several slots keep programs from waiting for each other. PARTS are
    powers of two that add up to BINS, and STARTS the first bins of these parts.
    """
    image = (tl.program_id(0) // chunks).to(tl.int64)
    chunk = tl.program_id(0) % chunks
    pixel = tl.arange(0, HEIGHT)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    pixel = chunk * (HEIGHT * WIDTH) + pixel
    here = pixel < S
    # A thread takes one pixel of a row, so that all pixels of a column are in one thread.
    pixel = tl.max_contiguous(pixel, [1, 1])
    offset = pixel if ROWS else pixel.to(tl.int64) * stride_s
    base = logits + image * stride_b
    place = image * S + pixel
    place = tl.max_contiguous(place, [1, 1])
    label = tl.load(labels + place, mask=here, other=0).to(tl.int32)
    counted = here & (label != ignore_index)
    invalid = counted & ((label < 0) | (label >= K))
    if PACKED:
        code = tl.where(invalid, INVALID, tl.where(counted, label, LEFT_OUT))
        low, high = tl.split(tl.reshape(code, [HEIGHT, WIDTH // 2, 2]))
        first, _ = tl.split(tl.reshape(place, [HEIGHT, WIDTH // 2, 2]))
        exists, _ = tl.split(tl.reshape(here.to(tl.int32), [HEIGHT, WIDTH // 2, 2]))
        byte = (low | high << 4).to(tl.uint8)
        tl.store(_nibbles(scratch, tl.num_programs(0)) + (first >> 1), byte, mask=exists > 0)

    stride = tl.cast(stride_k, tl.int64)
    top = tl.full([HEIGHT, WIDTH], float("-inf"), tl.float32)
    for k in range(K):
        top = tl.maximum(top, _read(base + k * stride, offset, here, EVEN))
    total = tl.zeros([HEIGHT, WIDTH], tl.float32)
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
    tl.atomic_add(
        sums + B * tl.cast(K * STRIDE, tl.int64) + image * SLOTS + chunk % SLOTS,
        count.to(tl.int64),
        sem="relaxed",
    )
    # Pixels that do not count are in a bin that does not exist.
    index = label * BLOCK_BINS + _bin(_exp(shifted) * inverse, BINS)
    index = tl.where(valid, index, BINS)
    true = tl.histogram(tl.reshape(index, [HEIGHT * WIDTH]), BLOCK_K * BLOCK_BINS)
    entry = tl.arange(0, BLOCK_K * BLOCK_BINS)
    there = (entry % BLOCK_BINS < BINS) & (true > 0)
    goal = slot + (entry // BLOCK_BINS) * STRIDE + 2 * BLOCK_BINS + entry % BLOCK_BINS
    tl.atomic_add(goal, true.to(tl.int64), mask=there, sem="relaxed")

    known = tl.where(counted, label, -1)
    for k in range(K):
        probs = _exp(_read(base + k * stride, offset, here, EVEN) - top) * inverse
        probs = tl.where(counted, probs, 0.0)  # which adds nothing
        if DICE:
            truth = tl.where(known == k, 1.0, 0.0)
            if DICE == LINEAR:
                dice_x = probs * truth
                dice_z = probs + truth
            else:
                dice_x = (probs - truth) * (probs - truth)
                dice_z = probs * probs + (truth if DICE == SQUARED else probs)
            length = tl.num_programs(0).to(tl.int64)
            place_x = dice + 4 * K * (1 if BATCH else B) + k * length + tl.program_id(0)
            tl.store(place_x, tl.sum(dice_x))
            tl.store(place_x + K * length, tl.sum(dice_z))
        bin = tl.minimum(_floor(probs * BINS), BINS - 1)
        u = bin + (probs * BINS - bin) * SHARE
        for n in tl.static_range(len(PARTS)):
            bins = STARTS[n] + tl.arange(0, PARTS[n])
            level = bins.to(tl.float32)[:, None, None]
            above = tl.sum(_clamped_difference(u[None, :, :], level), 1)
            fixed = (above * WHOLE + 0.5).to(tl.int32)
            number = tl.sum(fixed >> FRACTION, 1).to(tl.int64)
            rest = tl.sum(fixed & (WHOLE - 1), 1).to(tl.int64)
            at = slot + k * STRIDE + bins
            tl.atomic_add(at, number, sem="relaxed")
            tl.atomic_add(at + BLOCK_BINS, rest, sem="relaxed")


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
    counted = sums + tl.cast(B, tl.int64) * (K * SLOTS * 3 * BLOCK_BINS)
    counted = tl.sum(tl.load(counted + (tl.program_id(0) // K) * SLOTS + slots))
    above = tl.sum(tl.load(at), 0)
    below = tl.sum(tl.load(at - 1, mask=bins[None, :] > 0, other=0), 0)
    total = (tl.where(bins > 0, below, counted) - above).to(tl.float64)
    rest = tl.sum(tl.load(at + BLOCK_BINS), 0).to(tl.float64) / STEPS
    true = tl.sum(tl.load(at + 2 * BLOCK_BINS), 0).to(tl.float64)
    filled = (bins < BINS) & (total > 0)
    gap = tl.where(filled, (bins * total + rest) / BINS - true, 0.0)
    per_bin = 1.0 / tl.where(filled, total, 1.0)
    per_bin = per_bin / tl.maximum(tl.sum(filled.to(tl.float64)), 1.0)
    present = tl.where(tl.sum(true) > 0, 1.0, 0.0)
    sign = tl.where(gap > 0, per_bin, tl.where(gap < 0, -per_bin, 0.0))
    tl.store(ace + tl.program_id(0) * BLOCK_BINS + bins, sign.to(tl.float32))
    error = ace + B * K * BLOCK_BINS + tl.program_id(0)
    tl.store(error, (tl.sum(tl.abs(gap) * per_bin) * present).to(tl.float32))
    tl.store(error + B * K, present)
