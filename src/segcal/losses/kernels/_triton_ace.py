"""The value pass of the average calibration error with hard bins, with or without CE and Dice.

The value needs, for each bin of a class in an image, the number of pixels, the sum of their
probabilities, and the number of pixels of this class. Triton cannot add to an element of shared
memory, so this is written in PTX, for programs of one warp. Each of its threads has its own column
of a table of the bins, so that no two threads add to the same bank. A probability at r of the
width of its bin adds 1 to the number and r, in steps of 1/65536, to the sum; both are in one word.
Then each thread adds up the row of a bin. The pixels of the true class are counted once, in a table
of all classes. All sums are integers, which do not depend on the order, so the atomic additions
to the memory of the GPU are deterministic.

The classes are processed one after the other, and read three times: twice from the cache.
"""

import struct

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

STEPS = tl.constexpr(1 << 16)  # of r


def lower_neighbor(x: float) -> float:
    """The float32 before a positive float32."""
    return float(struct.unpack("<f", struct.pack("<I", _bits(x) - 1))[0])


def counting_code(bins: int, row: int, pixels: int) -> str:
    """PTX that adds the pixels of a warp, at most 31 in each thread, to the bins of a class.

    The operands of each pixel are a result without meaning, its probability times `bins`, below
    `bins`, or bins + 1/2 if it does not count, and the address of the sums of the class: int64
    numbers of pixels and, `row` int64 later, summed r.
    """
    # A row of the table has 128 bytes. A word has the number from bit 24 on, and the sum below.
    # The bits of 2²³ + n are those of 2²³ plus n; 7 to the left they are 2³¹ + 128 n.
    lines = [
        f".shared .align 16 .b8 table[{128 * (bins + 1)}];",
        ".reg .b32 start, lane, column, zero, at, word, a<4>, number, rest;",
        ".reg .f32 x, whole;",
        ".reg .b64 goal, sum;",
        ".reg .pred has;",
        "mov.u32 start, table;",
        "mov.u32 lane, %laneid;",
        "mad.lo.u32 column, lane, 4, start;",
        "add.u32 column, column, 0x80000000;",
        "bar.warp.sync 0xffffffff;",  # until the rows of the class before are read
        *_zeros(bins),
        "bar.warp.sync 0xffffffff;",
    ]
    for n in range(pixels):
        lines += [
            f"add.rm.f32 whole, ${pixels + n}, {_hex(2**23)};",
            "mov.b32 at, whole;",
            "mad.lo.u32 at, at, 128, column;",
            f"sub.f32 whole, whole, {_hex(2**23)};",
            f"sub.f32 x, ${pixels + n}, whole;",
            f"fma.rn.f32 x, x, {_hex(STEPS.value)}, {_hex(2**23)};",
            "mov.b32 word, x;",
            f"add.u32 word, word, {((1 << 24) - _bits(2**23)) % 2**32};",
            "red.shared.add.u32 [at], word;",
        ]
    lines.append("bar.warp.sync 0xffffffff;")
    for first in range(0, bins, 32):
        lines += [
            f"add.u32 at, lane, {first};",
            f"setp.lt.u32 has, at, {bins};",
            f"mad.wide.u32 goal, at, 8, ${2 * pixels};",
            "selp.u32 at, at, 0, has;",
            "mad.lo.u32 column, at, 128, start;",
            "mov.u32 number, 0;",
            "mov.u32 rest, 0;",
        ]
        for part in range(8):
            # Threads read different columns at a time, which are in different banks.
            lines += [
                f"add.u32 at, lane, {part};",
                "and.b32 at, at, 7;",
                "mad.lo.u32 at, at, 16, column;",
                "ld.shared.v4.b32 {a0, a1, a2, a3}, [at];",
                "add.u32 a0, a0, a1;",
                "add.u32 a2, a2, a3;",
                "add.u32 a0, a0, a2;",
            ]
            if part % 2 == 0:
                lines.append("mov.u32 word, a0;")
            else:  # a word can hold the sums of eight columns
                lines += [
                    "add.u32 word, word, a0;",
                    "shr.u32 at, word, 24;",
                    "add.u32 number, number, at;",
                    "and.b32 at, word, 0xffffff;",
                    "add.u32 rest, rest, at;",
                ]
        lines.append("setp.ne.and.u32 has, number, 0, has;")
        for name, distance in (("number", 0), ("rest", 8 * row)):
            lines += [
                f"cvt.u64.u32 sum, {name};",
                f"@has red.relaxed.gpu.global.add.u64 [goal+{distance}], sum;",
            ]
    return "{\n" + "\n".join(lines) + "\n}"


def true_class_code(entries: int, row: int, stride: int, pixels: int) -> str:
    """PTX that counts the pixels of a warp by entry, class · row + bin, of which are `entries`.

    The operands of each pixel are a result without meaning, the entry, or the next multiple of 32
    after all if it does not count, and the address of the counts: int64 in rows, at the distance of
    `stride`.
    """
    groups = -(-entries // 32)
    shift = row.bit_length() - 1
    lines = [
        f".shared .align 16 .b8 table[{128 * (groups + 1)}];",
        ".reg .b32 start, lane, zero, at, number;",
        ".reg .b64 goal, sum;",
        ".reg .pred has;",
        "mov.u32 start, table;",
        "mov.u32 lane, %laneid;",
        *_zeros(groups),
        "bar.warp.sync 0xffffffff;",
    ]
    for n in range(pixels):
        lines += [f"mad.lo.u32 at, ${pixels + n}, 4, start;", "red.shared.add.u32 [at], 1;"]
    lines += [
        "bar.warp.sync 0xffffffff;",
        "mad.lo.u32 start, lane, 4, start;",
        f"shr.u32 at, lane, {shift};",
        f"mad.wide.u32 goal, at, {8 * stride}, ${2 * pixels};",
        f"and.b32 at, lane, {row - 1};",
        "mad.wide.u32 goal, at, 8, goal;",
    ]
    for first in range(0, 32 * groups, 32):
        distance = 8 * ((first >> shift) * stride + (first & (row - 1)))
        lines += [
            f"ld.shared.b32 number, [start+{4 * first}];",
            "setp.ne.u32 has, number, 0;",
            "cvt.u64.u32 sum, number;",
            f"@has red.relaxed.gpu.global.add.u64 [goal+{distance}], sum;",
        ]
    return "{\n" + "\n".join(lines) + "\n}"


def _zeros(rows: int) -> list[str]:
    """Code that sets the first rows of the table, of 128 bytes, to 0."""
    lines = ["mov.u32 zero, 0;", "mad.lo.u32 at, lane, 16, start;"]
    for first in range(0, rows, 4):
        store = f"st.shared.v4.b32 [at+{128 * first}], {{zero, zero, zero, zero}};"
        if rows - first < 4:
            lines.append(f"setp.lt.u32 has, lane, {8 * (rows - first)};")
            store = f"@has {store}"
        lines.append(store)
    return lines


def _bits(x: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", x))[0])


def _hex(x: float) -> str:
    return f"0f{_bits(x):08x}"


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
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr,
    PACKED: tl.constexpr, BELOW: tl.constexpr, COUNT: tl.constexpr, COUNT_TRUE: tl.constexpr,
    OPERANDS: tl.constexpr, OPERANDS_TRUE: tl.constexpr,
):  # fmt: skip
    """The sums of HEIGHT · WIDTH pixels of one image, one chunk.

    `sums` receives for each bin of a class in an image, (B, K, SLOTS, 3, BLOCK_BINS): the number of
    pixels, the summed r, and the number of pixels of this class. Several slots keep programs from
    waiting for each other. The constants after PACKED are those
    of `binning_constants`.
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
    entry = label * BLOCK_BINS + _bin(_exp(shifted) * inverse, BINS)
    entry = tl.where(valid, entry, (K * BLOCK_BINS + 31) // 32 * 32)
    if PTX:
        tl.inline_asm_elementwise(
            COUNT_TRUE, OPERANDS_TRUE, [entry, (slot + 2 * BLOCK_BINS).to(tl.int64)],
            dtype=tl.int32, is_pure=False, pack=HEIGHT,
        )  # fmt: skip
    known = tl.where(counted, label, -1)
    for k in range(K):
        probs = _exp(_read(base + k * stride, offset, here, EVEN) - top) * inverse
        if DICE:
            dice_probs = tl.where(counted, probs, 0.0)  # which adds nothing
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
        position = tl.where(counted, tl.minimum(probs * BINS, BELOW), BINS + 0.5)
        at = slot + k * STRIDE
        if PTX:
            tl.inline_asm_elementwise(
                COUNT, OPERANDS, [position, at.to(tl.int64)],
                dtype=tl.int32, is_pure=False, pack=HEIGHT,
            )  # fmt: skip
        else:
            bin = position.to(tl.int32)
            steps = ((position - bin) * STEPS + 0.5).to(tl.int32)
            bins = tl.arange(0, BLOCK_BINS)
            inside = (bin[None, :, :] == bins[:, None, None]) & (bins < BINS)[:, None, None]
            true = entry[None, :, :] == (k * BLOCK_BINS + bins)[:, None, None]
            _add_counts(at + bins, tl.where(inside, 1, 0))
            _add_counts(at + BLOCK_BINS + bins, tl.where(inside, steps[None, :, :], 0))
            _add_counts(at + 2 * BLOCK_BINS + bins, tl.where(true, 1, 0))


@triton.jit
def _add_counts(at, counts):
    total = tl.sum(tl.sum(counts, 2), 1)
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
