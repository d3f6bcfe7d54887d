"""The Triton kernels: one pass over logits and labels for the value, one for the gradient.

A program processes a strip: BLOCK columns (x of every slice of every image, side by side), along y
for RUN rows, with all K classes of each pixel. Labels vote for the prior without a loop over K
classes per neighbor: each neighbor adds one to a bit field of a packed integer, and the fields are
unpacked once. The votes of a row of labels are used by three rows of pixels, so they are carried
along the strip: 1 (2-D) or 3 (3-D) rows of labels are read for each row of pixels, in groups of
VECTOR, instead of 9 or 27 labels for each pixel. Patches that are not 3 wide in x and y are read
neighbor by neighbor.

If PACKED, the first pass stores the labels as nibbles for the second: two pixels in a byte, the
even one in its lower half. In units of bytes the label map then has half the width.

Dice needs two sums per class and image: x = sy and z = s + y (linear), or x = (s − y)² and
z = s² + y (squared), s² + s (proper). They are taken along the strip, added up by `dice_kernel`,
and turned into the two coefficients of the gradient, which the second pass reads.

If BINS, the gradient includes that of the average calibration error, whose sums are those of
`_triton_ace`: a coefficient for each bin of a class in an image, and its weight.

The two kernels begin with the same code. In a function that both call, Triton distributed the
classes of a pixel over several threads (measured: a tenth more instructions, and barriers).
"""

import os

import torch
import triton
import triton.language as tl

VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])

# Whether the GPU's approximate instructions are available. They are accurate to about 2 units in
# the last place and skip the treatment of denormal numbers, half of the work of `tl.exp`.
PTX = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1" and torch.version.cuda is not None)

# The formula, the prior and the border, as compile-time constants.
NONE = tl.constexpr(-1)  # no loss per pixel
CE, FOCAL, LS, SVLS, ECP, MBLS, NACL = (tl.constexpr(code) for code in range(7))
MEAN, GAUSSIAN, MAX, MIN, MEDIAN, MODE = (tl.constexpr(code) for code in range(6))
LINEAR, SQUARED, PROPER = (tl.constexpr(code) for code in range(1, 4))  # 0 is no Dice
REPLICATE, BACKGROUND, VALID = (tl.constexpr(code) for code in range(3))

# Bit fields of this width are the bytes of a word: one instruction moves a byte. A vote is 8.
BYTE = tl.constexpr(8)

# Length of the head of `scratch`, which holds the norms that the gradient divides by. The sums of
# the programs follow, then the labels as nibbles.
NORMS = tl.constexpr(8)

THREADS = tl.constexpr(128)  # of a program of the value and the gradient
STEPS = tl.constexpr(1 << 16)  # in a bin of the average calibration error

# The nibbles that are not classes: of an ignored pixel, and of an invalid label.
LEFT_OUT, INVALID = tl.constexpr(14), tl.constexpr(15)


@triton.jit
def _exp(x):
    if PTX:
        y = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * 1.4426950408889634],
            dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        y = tl.exp(x)
    return y


@triton.jit
def _log(x):
    """The logarithm of numbers ≥ 1, where the approximation is off by at most 1.2e-7."""
    if PTX:
        y = 0.6931471805599453 * tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        y = tl.log(x)
    return y


@triton.jit
def _inverse(x):
    if PTX:
        y = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        y = 1.0 / x
    return y


@triton.jit
def _nibbles(scratch, programs):
    """The address of the packed labels in `scratch`, behind the sums of `programs`, in bytes."""
    return (scratch + NORMS + 4 * programs).to(tl.pointer_type(tl.uint8))


@triton.jit
def _first_of_two(pixels):
    """The value of the first pixel of each pair."""
    first, _ = tl.split(tl.reshape(pixels, [pixels.shape[0] // 2, 2]))
    return first


@triton.jit
def _pair(at, here, other):
    """The labels of the pairs of pixels whose bytes are at `at`: (GROUPS, 2)."""
    byte = tl.load(at, mask=here, other=other).to(tl.int32)
    return tl.join(byte & 15, byte >> 4)


@triton.jit
def _label(base, z, y, x, D, H, W, here, BORDER: tl.constexpr, PACKED: tl.constexpr):
    """The label at (z, y, x) under the border rule; −1 where no label votes."""
    inside = here
    if BORDER == REPLICATE:
        z = tl.minimum(tl.maximum(z, 0), D - 1)
        y = tl.minimum(tl.maximum(y, 0), H - 1)
        x = tl.minimum(tl.maximum(x, 0), W - 1)
    else:
        inside = here & (z >= 0) & (z < D) & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    at = (z * H + y) * W + x
    if PACKED:
        byte = tl.load(base + (at >> 1), mask=inside, other=0).to(tl.int32)
        label = (byte >> 4 * (at & 1)) & 15
    else:
        label = tl.load(base + at, mask=inside, other=0).to(tl.int32)
    if BORDER == VALID:
        label = tl.where(inside, label, -1)
    return label


@triton.jit
def _field(
    label, word, IGNORED: tl.constexpr, BITS: tl.constexpr, PER_WORD: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """One vote, in the bit field of the label.

    A label that is not a class of this word is, as an unsigned number, shifted past the last field
    or to 0, so it needs no test. IGNORED is the ignored label if it is a class, else −1.
    """
    if IGNORED >= 0:
        label = tl.where(label == IGNORED, -1, label)
    shift = (label - word * PER_WORD).to(tl.uint32) * BITS
    if PTX:  # a shift by more than the number of bits gives 0
        if BITS == BYTE:
            vote = tl.inline_asm_elementwise(
                "shl.b32 $0, 8, $1;", "=r,r", [shift], dtype=tl.int32, is_pure=True, pack=1
            )
        elif WIDE:
            vote = tl.inline_asm_elementwise(
                "shl.b64 $0, 1, $1;", "=l,r", [shift], dtype=tl.int64, is_pure=True, pack=1
            )
        else:
            vote = tl.inline_asm_elementwise(
                "shl.b32 $0, 1, $1;", "=r,r", [shift], dtype=tl.int32, is_pure=True, pack=1
            )
    elif BITS == BYTE:
        eight = tl.full(label.shape, 8, tl.int32)
        vote = tl.where(shift < 32, eight << tl.minimum(shift, 31).to(tl.int32), 0)
    elif WIDE:
        vote = tl.full(label.shape, 1, tl.int64) << tl.minimum(shift, 63).to(tl.int64)
    else:
        vote = tl.full(label.shape, 1, tl.int32) << tl.minimum(shift, 31).to(tl.int32)
    return vote


@triton.jit
def _unpack(packed, word, ks, BITS: tl.constexpr, PER_WORD: tl.constexpr):
    """Votes per class (BLOCK_K, BLOCK) of the classes of one word; 0 for the others."""
    field = ks - word * PER_WORD
    mine = (field >= 0) & (field < PER_WORD)
    down = tl.where(mine, field * BITS, 0)
    unpacked = (packed[None, :] >> down[:, None].to(packed.dtype)).to(tl.int32)
    return tl.where(mine[:, None], unpacked & ((1 << BITS) - 1), 0)


@triton.jit
def _votes(
    base, z, y, x, D, H, W, here, ks,
    K: tl.constexpr, IGNORED: tl.constexpr,
    RZ: tl.constexpr, RY: tl.constexpr, RX: tl.constexpr, SHELL: tl.constexpr,
    BORDER: tl.constexpr, BITS: tl.constexpr, PER_WORD: tl.constexpr, WIDE: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Votes per class of the pixels at squared distance SHELL (all of the patch if negative)."""
    PZ: tl.constexpr = 2 * RZ + 1
    PY: tl.constexpr = 2 * RY + 1
    PX: tl.constexpr = 2 * RX + 1
    WORDS: tl.constexpr = (K + PER_WORD - 1) // PER_WORD
    counts = tl.zeros([ks.shape[0], x.shape[0]], tl.int32)
    for word in tl.static_range(WORDS):
        packed = tl.zeros_like(x).to(tl.int64) if WIDE else tl.zeros_like(x)
        for i in tl.static_range(PZ * PY * PX):
            # Repeated, because an offset in a variable is no longer known at compile time.
            if (
                SHELL < 0
                or (i // (PY * PX) - RZ) * (i // (PY * PX) - RZ)
                + ((i // PX) % PY - RY) * ((i // PX) % PY - RY)
                + (i % PX - RX) * (i % PX - RX)
                == SHELL
            ):
                label = _label(
                    base, z + (i // (PY * PX) - RZ), y + ((i // PX) % PY - RY), x + (i % PX - RX),
                    D, H, W, here, BORDER, PACKED,
                )  # fmt: skip
                packed += _field(label, word, IGNORED, BITS, PER_WORD, WIDE)
        counts += _unpack(packed, word, ks, BITS, PER_WORD)
    return tl.where((ks < K)[:, None], counts, 0)


@triton.jit
def _sides(middle, left, right, VECTOR: tl.constexpr):
    """The left plus the right neighbor of each pixel of a group (GROUPS, VECTOR)."""
    if VECTOR == 1:
        beside = tl.reshape(left + right, [middle.shape[0], 1])
    elif VECTOR == 2:
        a, b = tl.split(middle)
        beside = tl.join(left + b, a + right)
    else:
        even, odd = tl.split(tl.reshape(middle, [middle.shape[0], 2, 2]))
        a, c = tl.split(even)
        b, d = tl.split(odd)
        pairs = tl.join(tl.join(left + b, b + d), tl.join(a + c, c + right))
        beside = tl.reshape(pairs, [middle.shape[0], 4])
    return beside


@triton.jit
def _edge(
    plane, line, x, W, inside, word,
    IGNORED: tl.constexpr, BORDER: tl.constexpr, BITS: tl.constexpr, PER_WORD: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """The vote of the pixel at x of a line of a plane, under the border rule."""
    if BORDER == REPLICATE:
        x = tl.minimum(tl.maximum(x, 0), W - 1)
    else:
        inside = inside & (x >= 0) & (x < W)
    label = tl.load(plane + (line + x), mask=inside, other=0).to(tl.int32)
    if BORDER == VALID:
        label = tl.where(inside, label, -1)
    return _field(label, word, IGNORED, BITS, PER_WORD, WIDE)


@triton.jit
def _packed_edge(
    at, first, last, inside, word, RIGHT: tl.constexpr, IGNORED: tl.constexpr,
    BORDER: tl.constexpr, BITS: tl.constexpr, PER_WORD: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """`_edge` left or right of each group whose byte is at `at`.

    At a replicated border the value is arbitrary: `_row` replaces it, which costs less than
    computing another address. The bytes before the first and after the last nibble can be read.
    """
    if BORDER != REPLICATE:
        inside = inside & (~last if RIGHT else ~first)
    if RIGHT:
        label = tl.load(at + 1, mask=inside, other=0).to(tl.int32) & 15
    else:
        label = tl.load(at - 1, mask=inside, other=0).to(tl.int32) >> 4
    if BORDER == VALID:
        label = tl.where(inside, label, -1)
    return _field(label, word, IGNORED, BITS, PER_WORD, WIDE)


@triton.jit
def _row(
    labels, offset, z, y, x, D, H, W, here,
    SLOT: tl.constexpr, GAUSS: tl.constexpr, RZ: tl.constexpr, IGNORED: tl.constexpr,
    BORDER: tl.constexpr, BITS: tl.constexpr, PER_WORD: tl.constexpr, WIDE: tl.constexpr,
    VECTOR: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """The packed votes of the labels at height y for each pixel of the groups that start at x.

    For a Gaussian, the votes at squared distance SLOT within the plane y; else all of them, for
    the classes of word SLOT. If PACKED, offset, x and W count bytes.
    """
    WORD: tl.constexpr = 0 if GAUSS else SLOT
    above = tl.zeros([x.shape[0], VECTOR], tl.int64 if WIDE else tl.int32)
    beside = above
    left = tl.zeros([x.shape[0]], above.dtype)
    right = left
    for i in tl.static_range(2 * RZ + 1):
        # Repeated, because an offset in a variable is no longer known at compile time.
        if not GAUSS or (i - RZ) * (i - RZ) == SLOT or (i - RZ) * (i - RZ) + 1 == SLOT:
            inside = here
            if BORDER == REPLICATE:
                zi = tl.minimum(tl.maximum(z + (i - RZ), 0), D - 1)
                yi = tl.minimum(tl.maximum(y, 0), H - 1)
            else:
                zi = z + (i - RZ)
                yi = y
                inside = here & (zi >= 0) & (zi < D) & (yi >= 0) & (yi < H)
            if WIDE:  # many classes leave no registers for addresses
                start = offset + (zi * H + yi) * W
                line = yi * 0
            else:  # most of the address stays the same along the strip
                start = offset + zi * (H * W)
                line = yi * W
            if PACKED:
                at = labels + (start + x) + line
                label = _pair(at, inside, 0)
            else:
                plane = labels + tl.multiple_of(start, VECTOR)
                at = (line + x)[:, None] + tl.arange(0, VECTOR)[None, :]
                at = tl.multiple_of(tl.max_contiguous(at, [1, VECTOR]), [1, VECTOR])
                label = tl.load(plane[:, None] + at, mask=inside[:, None], other=0).to(tl.int32)
            if BORDER == VALID:
                label = tl.where(inside[:, None], label, -1)
            votes = _field(label, WORD, IGNORED, BITS, PER_WORD, WIDE)
            if not GAUSS or (i - RZ) * (i - RZ) == SLOT:
                above += votes
            if not GAUSS or (i - RZ) * (i - RZ) + 1 == SLOT:
                beside += votes
                if PACKED:
                    left += _packed_edge(
                        at, x == 0, x == W - 1, inside,
                        WORD, False, IGNORED, BORDER, BITS, PER_WORD, WIDE,
                    )  # fmt: skip
                    right += _packed_edge(
                        at, x == 0, x == W - 1, inside,
                        WORD, True, IGNORED, BORDER, BITS, PER_WORD, WIDE,
                    )  # fmt: skip
                else:
                    left += _edge(
                        plane, line, x - 1, W, inside,
                        WORD, IGNORED, BORDER, BITS, PER_WORD, WIDE,
                    )  # fmt: skip
                    right += _edge(
                        plane, line, x + VECTOR, W, inside,
                        WORD, IGNORED, BORDER, BITS, PER_WORD, WIDE,
                    )  # fmt: skip
    if PACKED and BORDER == REPLICATE:  # the neighbor of an outermost pixel is the pixel itself
        even, odd = tl.split(beside)
        left = tl.where(x == 0, even, left)
        right = tl.where(x == W - 1, odd, right)
    return above + _sides(beside, left, right, VECTOR)


@triton.jit
def _rows(
    labels, offset, z, y, x, D, H, W, here,
    SLOTS: tl.constexpr, PRIOR: tl.constexpr, RZ: tl.constexpr, IGNORED: tl.constexpr,
    BORDER: tl.constexpr, BITS: tl.constexpr, PER_WORD: tl.constexpr, WIDE: tl.constexpr,
    VECTOR: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """`_row` of up to three slots; those beyond SLOTS are 0."""
    GAUSS: tl.constexpr = PRIOR == GAUSSIAN
    row0 = _row(
        labels, offset, z, y, x, D, H, W, here,
        0, GAUSS, RZ, IGNORED, BORDER, BITS, PER_WORD, WIDE, VECTOR, PACKED,
    )  # fmt: skip
    row1 = tl.zeros_like(row0)
    row2 = tl.zeros_like(row0)
    if SLOTS > 1:
        row1 = _row(
            labels, offset, z, y, x, D, H, W, here,
            1, GAUSS, RZ, IGNORED, BORDER, BITS, PER_WORD, WIDE, VECTOR, PACKED,
        )  # fmt: skip
    if SLOTS > 2:
        row2 = _row(
            labels, offset, z, y, x, D, H, W, here,
            2, GAUSS, RZ, IGNORED, BORDER, BITS, PER_WORD, WIDE, VECTOR, PACKED,
        )  # fmt: skip
    return row0, row1, row2


@triton.jit
def _shell(
    packed, sums, N: tl.constexpr, ks,
    WEIGHTS: tl.constexpr, BITS: tl.constexpr, PER_WORD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`sums` with the votes at one distance, N-th of the shells."""
    packed = tl.reshape(packed, [BLOCK])
    if BITS == BYTE and PTX:
        # The byte of a class, moved to the third byte, is a denormal number: 2⁻¹³⁰ for each vote.
        # No weight is above ⅛, so the product does not overflow; it must not become a float64.
        weight = tl.cast(WEIGHTS[N] * 2.0**130, tl.float32)
        sums = tl.inline_asm_elementwise(
            "{ .reg .b32 t; prmt.b32 t, $1, 0, $2; fma.rn.f32 $0, t, $3, $4; }", "=f,r,r,f,f",
            [packed[None, :], (ks * 256 + 0x4044)[:, None], weight, sums],
            dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    elif BITS == BYTE:
        sums += WEIGHTS[N] * (_unpack(packed, 0, ks, BITS, PER_WORD) // 8)
    else:
        sums += WEIGHTS[N] * _unpack(packed, 0, ks, BITS, PER_WORD)
    return sums


@triton.jit
def _proportions(counts, voted, ks, K: tl.constexpr, PRIOR: tl.constexpr):
    """τ from the votes per class (BLOCK_K, BLOCK) and their sum, in the form of `_walked_prior`."""
    if PRIOR == MEAN:
        tau = counts.to(tl.float32)
        scale = _inverse(tl.where(voted > 0, voted, 1).to(tl.float32))
    else:
        if PRIOR == MAX:
            index = tl.max(tl.where(counts > 0, ks[:, None], 0), 0)
        elif PRIOR == MIN:
            index = tl.min(tl.where(counts > 0, ks[:, None], K), 0)
        elif PRIOR == MODE:
            score = tl.where((ks < K)[:, None], counts * K + (K - 1 - ks[:, None]), -1)
            index = K - 1 - tl.max(score, 0) % K
        else:
            below = 2 * tl.cumsum(counts, 0) < voted[None, :]
            index = tl.sum(tl.where(below & (ks < K)[:, None], 1, 0), 0)
        tau = tl.where((ks[:, None] == index[None, :]) & (voted > 0)[None, :], 1.0, 0.0)
        scale = tl.full(voted.shape, 1.0, tl.float32)
    return tau, scale


@triton.jit
def _walked_prior(
    label, a0, b0, c0, a1, b1, c1, a2, b2, c2, ks,
    K: tl.constexpr, PRIOR: tl.constexpr, SLOTS: tl.constexpr, SHELL_WEIGHTS: tl.constexpr,
    BITS: tl.constexpr, PER_WORD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """τ from the packed votes of the rows above (a), at (b) and below (c) the pixels.

    Returns values per class, and a factor per pixel that callers can often apply later.
    """
    if PRIOR == GAUSSIAN:
        tau = tl.where(ks[:, None] == label[None, :], 0.5, 0.0)
        tau = _shell(b1 + a0 + c0, tau, 0, ks, SHELL_WEIGHTS, BITS, PER_WORD, BLOCK)
        if SLOTS > 2:
            tau = _shell(b2 + a1 + c1, tau, 1, ks, SHELL_WEIGHTS, BITS, PER_WORD, BLOCK)
            tau = _shell(a2 + c2, tau, 2, ks, SHELL_WEIGHTS, BITS, PER_WORD, BLOCK)
        else:
            tau = _shell(a1 + c1, tau, 1, ks, SHELL_WEIGHTS, BITS, PER_WORD, BLOCK)
        # The ignored label may be the number of a class that only pads the tile.
        tau = tl.where((ks < K)[:, None], tau, 0.0)
        total = tl.sum(tau, 0)
        scale = _inverse(tl.where(total > 0, total, 1.0))
    else:
        counts = _unpack(tl.reshape(a0 + b0 + c0, [BLOCK]), 0, ks, BITS, PER_WORD)
        if SLOTS > 1:
            counts += _unpack(tl.reshape(a1 + b1 + c1, [BLOCK]), 1, ks, BITS, PER_WORD)
        if SLOTS > 2:
            counts += _unpack(tl.reshape(a2 + b2 + c2, [BLOCK]), 2, ks, BITS, PER_WORD)
        counts = tl.where((ks < K)[:, None], counts, 0)
        tau, scale = _proportions(counts, tl.sum(counts, 0), ks, K, PRIOR)
    return tau, scale


@triton.jit
def _prior(
    base, label, z, y, x, D, H, W, here, ks,
    K: tl.constexpr, IGNORED: tl.constexpr, PRIOR: tl.constexpr,
    RZ: tl.constexpr, RY: tl.constexpr, RX: tl.constexpr,
    SHELLS: tl.constexpr, SHELL_WEIGHTS: tl.constexpr,
    BORDER: tl.constexpr, BITS: tl.constexpr, PER_WORD: tl.constexpr, WIDE: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """`_walked_prior` for any patch, read neighbor by neighbor."""
    if PRIOR == GAUSSIAN:
        tau = tl.where(ks[:, None] == label[None, :], 0.5, 0.0)
        for n in tl.static_range(len(SHELLS)):
            counts = _votes(
                base, z, y, x, D, H, W, here, ks,
                K, IGNORED, RZ, RY, RX, SHELLS[n], BORDER, BITS, PER_WORD, WIDE, PACKED,
            )  # fmt: skip
            tau += SHELL_WEIGHTS[n] * counts
        total = tl.sum(tau, 0)
        scale = _inverse(tl.where(total > 0, total, 1.0))
    else:
        counts = _votes(
            base, z, y, x, D, H, W, here, ks,
            K, IGNORED, RZ, RY, RX, -1, BORDER, BITS, PER_WORD, WIDE, PACKED,
        )  # fmt: skip
        tau, scale = _proportions(counts, tl.sum(counts, 0), ks, K, PRIOR)
    return tau, scale


@triton.jit
def _place(column, B, D, W, FLAT: tl.constexpr, EVEN: tl.constexpr):
    """Image, slice and x of columns, and whether they exist."""
    row = column // W
    x = column - row * W
    if FLAT:
        image = row
        z = row * 0
    else:
        image = row // D
        z = row - image * D
    if EVEN:
        here = tl.full(column.shape, True, tl.int1)
    else:
        here = column < B * D * W
    return image.to(tl.int64), z, x, here


@triton.jit
def _at(start, ks, stride_k, ROWS: tl.constexpr, K: tl.constexpr, VECTOR: tl.constexpr):
    """Addresses of the logits of pixels, with the number that are contiguous in memory.

    A thread takes that many. With all that is known of W at run time it would take more, and the
    classes of a pixel would be in different threads.
    """
    at = start[None, :] + ks[:, None].to(tl.int64) * stride_k
    if ROWS:
        at = tl.multiple_of(tl.max_contiguous(at, [1, VECTOR]), [1, VECTOR])
    else:
        at = tl.multiple_of(tl.max_contiguous(at, [K & -K, 1]), [K & -K, 1])
    return at


@triton.jit
def _load_logits(at, here, ks, K: tl.constexpr):
    values = tl.load(at, mask=(ks < K)[:, None] & here[None, :], other=float("-inf"))
    # A pixel outside the batch gets zeros, so that nothing below becomes NaN.
    return tl.where(here[None, :], values.to(tl.float32), 0.0)


@triton.jit
def _bin(probs, BINS: tl.constexpr):
    """The bin of each probability, rounded to steps of its width; any bin if it is NaN."""
    if PTX:  # a float32 of 2^23 + n has the bits of 2^23 plus n
        steps = tl.inline_asm_elementwise(
            "{.reg .f32 x; fma.rn.f32 x, $1, 0f47800000, 0f4b000000; mov.b32 $0, x;}", "=r,f",
            [probs * BINS], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
        bin = (steps >> 16) - 0x4B00
    else:
        bin = tl.maximum((probs * BINS * STEPS + 0.5).to(tl.int32), 0) // STEPS
    return tl.minimum(bin, BINS - 1)


@triton.jit
def _shared_table(values, STORE: tl.constexpr, OPERANDS: tl.constexpr):
    """The address of a copy of `values` in shared memory.

    STORE is PTX for all values of a thread at once: a second copy of it would have a second table.
    """
    SIZE: tl.constexpr = values.shape[0]
    places = tl.inline_asm_elementwise(
        STORE, OPERANDS, [tl.arange(0, SIZE), values],
        dtype=tl.int32, is_pure=False, pack=SIZE // THREADS if SIZE > THREADS else 1,
    )  # fmt: skip
    return tl.max(places)


@triton.jit
def _read_shared(at):
    return tl.inline_asm_elementwise(
        "ld.shared.f32 $0, [$1];", "=f,r", [at], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _pixel_sums(values, VECTOR: tl.constexpr):
    """(BLOCK_K, BLOCK) → (BLOCK_K, BLOCK // VECTOR): sums over the pixels of one thread."""
    if VECTOR == 1:
        return values
    classes: tl.constexpr = values.shape[0]
    groups: tl.constexpr = values.shape[1] // VECTOR
    return tl.sum(tl.reshape(values, [classes, groups, VECTOR]), 2)


@triton.jit(do_not_specialize=["W"])
def value_kernel(
    logits, labels, weights, first, second, scratch, dice,
    B, D, H, W, stride_b, stride_k, stride_s, ignore_index, parameter, scale,
    K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK: tl.constexpr, RUN: tl.constexpr,
    KIND: tl.constexpr, WEIGHTED: tl.constexpr, SOFTMAX: tl.constexpr, SQUARE: tl.constexpr,
    MAPS: tl.constexpr, SPLIT: tl.constexpr, FLAT: tl.constexpr, EVEN: tl.constexpr,
    ROWS: tl.constexpr, IGNORED: tl.constexpr, PRIOR: tl.constexpr,
    RZ: tl.constexpr, RY: tl.constexpr, RX: tl.constexpr,
    SHELLS: tl.constexpr, SHELL_WEIGHTS: tl.constexpr, BORDER: tl.constexpr,
    BITS: tl.constexpr, PER_WORD: tl.constexpr, WIDE: tl.constexpr,
    VECTOR: tl.constexpr, SLOTS: tl.constexpr, PACKED: tl.constexpr,
    DICE: tl.constexpr, BATCH: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Cross-entropy part and penalty of every pixel: as maps, or summed per program in `scratch`.

    The maps are `first` and `second`, or their sum in `first` unless SPLIT. If PACKED, the labels
    are left in `scratch`.
    """
    runs = tl.cdiv(H, RUN)
    column = (tl.program_id(0) // runs) * BLOCK
    y0 = (tl.program_id(0) % runs) * RUN
    ks = tl.arange(0, BLOCK_K)
    real = (ks < K)[:, None]
    image, z, x, exists = _place(column + tl.arange(0, BLOCK), B, D, W, FLAT, EVEN)
    base = labels + image * (D * H * W)
    pixel = z * (H * W) + x
    if WEIGHTED:
        w = tl.load(weights + ks, mask=ks < K, other=0.0)
    parameter = tl.cast(parameter, tl.float32)  # double in a compiled step
    scale = tl.cast(scale, tl.float32)
    # Votes of the rows above (a), at (b) and below (c) the pixels, in up to three slots.
    ce_sum = tl.zeros([BLOCK], tl.float32)
    penalty_sum = tl.zeros([BLOCK], tl.float32)
    count = tl.zeros([BLOCK], tl.float32)
    weight_sum = tl.zeros([BLOCK], tl.float32)
    if DICE:
        x_sum = tl.zeros([BLOCK_K, BLOCK // VECTOR], tl.float32)
        z_sum = tl.zeros([BLOCK_K, BLOCK // VECTOR], tl.float32)
    if SLOTS > 0:
        group = column + VECTOR * tl.arange(0, BLOCK // VECTOR)
        gi, gz, gx, ghere = _place(group, B, D, W, FLAT, EVEN)
        offset = gi * (D * H * W)
        a0, a1, a2 = _rows(
            labels, offset, gz, y0 - 1, gx, D, H, W, ghere,
            SLOTS, PRIOR, RZ, IGNORED, BORDER, BITS, PER_WORD, WIDE, VECTOR, False,
        )  # fmt: skip
        b0, b1, b2 = _rows(
            labels, offset, gz, y0, gx, D, H, W, ghere,
            SLOTS, PRIOR, RZ, IGNORED, BORDER, BITS, PER_WORD, WIDE, VECTOR, False,
        )  # fmt: skip
    for i in range(RUN):
        y = y0 + i
        here = exists if EVEN else exists & (y < H)
        s = pixel + y * W
        if SLOTS > 0:
            c0, c1, c2 = _rows(
                labels, offset, gz, y + 1, gx, D, H, W, ghere,
                SLOTS, PRIOR, RZ, IGNORED, BORDER, BITS, PER_WORD, WIDE, VECTOR, False,
            )  # fmt: skip
        at = _at(image * stride_b + s * stride_s, ks, stride_k, ROWS, K, VECTOR)
        l = _load_logits(logits + at, here, ks, K)  # noqa: E741
        place = image * (D * H * W) + s
        place = tl.multiple_of(tl.max_contiguous(place, VECTOR), VECTOR)
        label = tl.load(labels + place, mask=here, other=0).to(tl.int32)
        counted = here & (label != ignore_index)
        invalid = counted & ((label < 0) | (label >= K))
        own = ks[:, None] == label[None, :]
        if PACKED:
            code = tl.where(invalid, INVALID, tl.where(counted, label, LEFT_OUT))
            low, high = tl.split(tl.reshape(code, [BLOCK // 2, 2]))
            byte = (low | high << 4).to(tl.uint8)
            # Computed in each row: an address kept along the strip would take registers.
            at_byte = _nibbles(scratch, tl.num_programs(0)) + _first_of_two(place >> 1)
            tl.store(at_byte, byte, mask=_first_of_two(here))

        top = tl.max(l, 0)
        shifted = l - top[None, :]
        e = _exp(shifted)
        total = tl.sum(e, 0)
        log_total = _log(total)
        if WEIGHTED:
            weight = tl.sum(tl.where(own, w[:, None], 0.0), 0)
        else:
            weight = tl.full([BLOCK], 1.0, tl.float32)

        if KIND == SVLS or KIND == NACL:
            if SLOTS > 0:
                tau, tau_scale = _walked_prior(
                    tl.where(counted, label, -1), a0, b0, c0, a1, b1, c1, a2, b2, c2, ks,
                    K, PRIOR, SLOTS, SHELL_WEIGHTS, BITS, PER_WORD, BLOCK,
                )  # fmt: skip
            else:
                tau, tau_scale = _prior(
                    base, tl.where(counted, label, -1), z, y, x, D, H, W, here, ks,
                    K, IGNORED, PRIOR, RZ, RY, RX, SHELLS, SHELL_WEIGHTS,
                    BORDER, BITS, PER_WORD, WIDE, False,
                )  # fmt: skip

        if KIND == NACL:
            tau = tau * tau_scale[None, :]

        if KIND == LS or KIND == SVLS:
            if KIND == LS:
                q = tl.where(own, 1 - parameter, 0.0) + parameter / K
                q_scale = tl.full([BLOCK], 1.0, tl.float32)
            else:
                q = tau
                q_scale = tau_scale
            if WEIGHTED:
                q = q * w[:, None]
            q = tl.where(real, q, 0.0)
            ce = log_total * tl.sum(q, 0) - tl.sum(tl.where(real, q * shifted, 0.0), 0)
            ce = ce * q_scale
        else:
            ce = log_total - tl.sum(tl.where(own, shifted, 0.0), 0)
            if KIND == FOCAL:
                uncertain = tl.sum(tl.where(own, 0.0, e), 0) / total
                ce = ce * tl.exp(parameter * tl.log(tl.maximum(uncertain, 1e-12)))
            ce = ce * weight

        if KIND == ECP:
            log_probs = shifted - log_total[None, :]
            penalty = tl.sum(tl.where(real, _exp(log_probs) * log_probs, 0.0), 0)
        elif KIND == MBLS:
            penalty = tl.sum(tl.where(real, tl.maximum(-shifted - parameter, 0.0), 0.0), 0)
        elif KIND == NACL:
            if SOFTMAX:
                gap = tau - e * _inverse(total)[None, :]
            else:
                gap = tau - l
            gap = tl.where(real, gap, 0.0)
            penalty = tl.sum(gap * gap if SQUARE else tl.abs(gap), 0)
        else:
            penalty = tl.zeros([BLOCK], tl.float32)

        ce = tl.where(invalid, float("nan"), tl.where(counted, ce, 0.0))
        penalty = tl.where(counted, penalty * scale, 0.0)
        if DICE:
            probs = e * _inverse(total)[None, :]
            truth = tl.where(own, 1.0, 0.0)
            if DICE == LINEAR:
                dice_x = probs * truth
                dice_z = probs + truth
            else:
                dice_x = (probs - truth) * (probs - truth)
                dice_z = probs * probs + (truth if DICE == SQUARED else probs)
            # The pixels of a thread first: half or a quarter of the registers.
            x_sum += _pixel_sums(tl.where(counted[None, :], dice_x, 0.0), VECTOR)
            z_sum += _pixel_sums(tl.where(counted[None, :], dice_z, 0.0), VECTOR)
        if MAPS:
            if SPLIT:
                tl.store(first + place, ce, mask=here)
                tl.store(second + place, penalty, mask=here)
            else:
                tl.store(first + place, ce + penalty, mask=here)
        else:
            ce_sum += ce
            penalty_sum += penalty
            count += counted.to(tl.float32)
            if WEIGHTED:
                weight_sum += tl.where(counted, weight, 0.0)
        if SLOTS > 0:
            a0, a1, a2, b0, b1, b2 = b0, b1, b2, c0, c1, c2
    if not MAPS:
        # One row per quantity, for contiguous reads.
        programs = tl.num_programs(0)
        mine = scratch + NORMS + tl.program_id(0)
        tl.store(mine, tl.sum(ce_sum))
        if KIND >= ECP:
            tl.store(mine + programs, tl.sum(penalty_sum))
        tl.store(mine + 2 * programs, tl.sum(count))
        if WEIGHTED:
            tl.store(mine + 3 * programs, tl.sum(weight_sum))
    if DICE:
        # One row for each sum of each class; in it, SPANS places for the images of each program.
        length = tl.num_programs(0).to(tl.int64) * SPANS
        sums = dice + 4 * K * (1 if BATCH else B)
        sums += ks * length + tl.program_id(0).to(tl.int64) * SPANS
        first_image = column // (D * W)
        owner = (column + VECTOR * tl.arange(0, BLOCK // VECTOR)) // (D * W)
        for m in range(SPANS):
            if SPANS == 1:
                mine_x = x_sum
                mine_z = z_sum
            else:
                mine_x = tl.where((owner == first_image + m)[None, :], x_sum, 0.0)
                mine_z = tl.where((owner == first_image + m)[None, :], z_sum, 0.0)
            tl.store(sums + m, tl.sum(mine_x, 1), mask=ks < K)
            tl.store(sums + m + K * length, tl.sum(mine_z, 1), mask=ks < K)


@triton.jit
def dice_kernel(
    dice, programs, runs, rows, columns, smooth,
    DICE: tl.constexpr, BATCH: tl.constexpr, SPANS: tl.constexpr, K: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Add up the two sums of one class in one image, of `columns` columns, in a fixed order.

    Stores, in four arrays (rows, K): both coefficients of the gradient, the loss, and the size z.
    """
    row = tl.program_id(0) // K
    k = tl.program_id(0) % K
    if BATCH:
        start = 0
        end = programs
    else:
        start = (row * columns // BLOCK) * runs
        end = (((row + 1) * columns - 1) // BLOCK + 1) * runs
    x = tl.zeros([CHUNK], tl.float64)
    z = tl.zeros([CHUNK], tl.float64)
    length = tl.cast(programs, tl.int64) * SPANS
    sums = dice + 4 * K * rows + k * length
    for chunk in range(CHUNKS):
        program = start + chunk * CHUNK + tl.arange(0, CHUNK)
        at = program.to(tl.int64) * SPANS
        if SPANS > 1:
            at += row - (program // runs) * BLOCK // columns
        x += tl.load(sums + at, mask=program < end, other=0.0).to(tl.float64)
        z += tl.load(sums + K * length + at, mask=program < end, other=0.0).to(tl.float64)
    overlap = tl.sum(x)
    size = tl.sum(z)
    smooth = tl.cast(smooth, tl.float32).to(tl.float64)
    inverse = 1.0 / (size + smooth)
    if DICE == LINEAR:
        ratio = (2 * overlap + smooth) * inverse
        loss = (size - 2 * overlap) * inverse  # 1 − ratio, exactly 0 without pixels
        on_x = -2 * inverse
        on_z = ratio * inverse
    else:
        loss = overlap * inverse
        on_x = 2 * inverse
        on_z = -2 * loss * inverse  # not used by PROPER: no gradient flows through the size
    mine = dice + tl.program_id(0)
    tl.store(mine, on_x.to(tl.float32))
    tl.store(mine + rows * K, on_z.to(tl.float32))
    tl.store(mine + 2 * rows * K, loss.to(tl.float32))
    tl.store(mine + 3 * rows * K, size.to(tl.float32))


@triton.jit
def finish_kernel(
    scratch, first, second, third, fourth, dice, ace,
    programs, rows, ace_rows, pixel_weight, dice_weight, ace_weight,
    AVERAGE: tl.constexpr, PENALIZED: tl.constexpr, WEIGHTED: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK: tl.constexpr, DICE: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, CHUNKS: tl.constexpr,
    BLOCK_BINS: tl.constexpr, ACE_CHUNKS: tl.constexpr,
):  # fmt: skip
    """Add the sums of the programs in a fixed order; store what the gradient is multiplied by.

    `first` is the cross-entropy part, `second` the penalty, `third` Dice, of `rows` images (or
    1, over the batch), and `fourth` the calibration error of `ace_rows` images (if BLOCK_BINS); or
    `first` is their sum unless SPLIT.
    """
    index = tl.arange(0, BLOCK)
    here = index < programs
    partial = scratch + NORMS + index
    ce = tl.sum(tl.load(partial, mask=here, other=0.0).to(tl.float64))
    count = tl.sum(tl.load(partial + 2 * programs, mask=here, other=0.0).to(tl.float64))
    penalty = ce * 0.0
    if PENALIZED:
        penalty = tl.sum(tl.load(partial + programs, mask=here, other=0.0).to(tl.float64))
    per_count = tl.full([], 1.0, tl.float64)
    per_weight = per_count
    if AVERAGE:
        per_count = 1.0 / tl.maximum(count, 1.0)
        per_weight = per_count
        if WEIGHTED:
            heavy = tl.sum(tl.load(partial + 3 * programs, mask=here, other=0.0).to(tl.float64))
            per_weight = 1.0 / tl.where(heavy == 0.0, 1.0, heavy)
    per_count = per_count * tl.cast(pixel_weight, tl.float32)
    per_weight = per_weight * tl.cast(pixel_weight, tl.float32)
    ce = ce * per_weight
    penalty = penalty * per_count
    overlap = ce * 0.0
    if DICE:
        ks = tl.arange(0, BLOCK_K)[None, :]
        rest = tl.zeros([BLOCK_ROWS, BLOCK_K], tl.float64)
        images = tl.zeros([BLOCK_ROWS], tl.float64)
        for chunk in range(CHUNKS):
            row = chunk * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
            at = dice + row * K + ks
            exists = (row < rows) & (ks < K)
            rest += tl.load(at + 2 * rows * K, mask=exists, other=0.0).to(tl.float64)
            size = tl.max(tl.load(at + 3 * rows * K, mask=exists, other=0.0), 1)
            images += tl.where(size > 0, 1.0, 0.0)  # an image without pixels has size 0
        per_row = tl.cast(dice_weight, tl.float32).to(tl.float64) / K
        if AVERAGE:
            per_row = per_row / tl.maximum(tl.sum(images), 1.0)
        overlap = tl.sum(rest) * per_row
        tl.store(scratch + 2, per_row.to(tl.float32))
    gap = ce * 0.0  # NaN if a logit or label is invalid
    if BLOCK_BINS:
        ks = tl.arange(0, BLOCK_K)[None, :]
        errors = tl.zeros([BLOCK_ROWS], tl.float64)
        filled = tl.zeros([BLOCK_ROWS], tl.float64)
        for chunk in range(ACE_CHUNKS):
            row = chunk * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
            at = ace + ace_rows * (K * BLOCK_BINS) + row * K + ks
            exists = (row < ace_rows) & (ks < K)
            present = tl.load(at + ace_rows * K, mask=exists, other=0.0)
            share = 1.0 / tl.maximum(tl.sum(present, 1), 1.0)
            error = tl.sum(tl.load(at, mask=exists, other=0.0).to(tl.float64), 1)
            errors += error * share
            filled += tl.max(present, 1)
            tl.store(at + ace_rows * K, present * share[:, None], mask=exists)
        per_image = tl.cast(ace_weight, tl.float32).to(tl.float64)
        if AVERAGE:
            per_image = per_image / tl.maximum(tl.sum(filled), 1.0)
        gap += tl.sum(errors) * per_image
        tl.store(scratch + 3, per_image.to(tl.float32))
    if SPLIT:
        tl.store(first, ce.to(tl.float32))
        tl.store(second, penalty.to(tl.float32))
        if DICE:
            tl.store(third, overlap.to(tl.float32))
        if BLOCK_BINS:
            tl.store(fourth, gap.to(tl.float32))
    else:
        value = ce + penalty
        if DICE:
            value += overlap
        if BLOCK_BINS:
            value += gap
        tl.store(first, value.to(tl.float32))
    tl.store(scratch, per_weight.to(tl.float32))
    tl.store(scratch + 1, per_count.to(tl.float32))


@triton.jit(do_not_specialize=["W"])
def gradient_kernel(
    logits, labels, weights, grad, ce_grad, penalty_grad, scratch,
    dice_grad, dice, ace_grad, ace,
    B, D, H, W, stride_b, stride_k, stride_s, ignore_index, parameter, scale, programs,
    K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK: tl.constexpr, RUN: tl.constexpr,
    KIND: tl.constexpr, WEIGHTED: tl.constexpr, SOFTMAX: tl.constexpr, SQUARE: tl.constexpr,
    MAPS: tl.constexpr, SPLIT: tl.constexpr, FLAT: tl.constexpr, EVEN: tl.constexpr,
    ROWS: tl.constexpr, IGNORED: tl.constexpr, PRIOR: tl.constexpr,
    RZ: tl.constexpr, RY: tl.constexpr, RX: tl.constexpr,
    SHELLS: tl.constexpr, SHELL_WEIGHTS: tl.constexpr, BORDER: tl.constexpr,
    BITS: tl.constexpr, PER_WORD: tl.constexpr, WIDE: tl.constexpr,
    VECTOR: tl.constexpr, SLOTS: tl.constexpr, PACKED: tl.constexpr,
    DICE: tl.constexpr, BATCH: tl.constexpr, SPANS: tl.constexpr,
    BINS: tl.constexpr, BLOCK_BINS: tl.constexpr, ONE_IMAGE: tl.constexpr, TABLE: tl.constexpr,
    STORE: tl.constexpr, OPERANDS: tl.constexpr,
):  # fmt: skip
    """The gradient of every logit; all intermediate values are computed again.

    Only the sums were kept, of `programs` programs, and, if PACKED, half a byte for each pixel: its
    label, in `scratch`.
    `labels` is not read then, and `ignore_index` is LEFT_OUT.
    """
    if PACKED:
        labels = _nibbles(scratch, programs)
    runs = tl.cdiv(H, RUN)
    column = (tl.program_id(0) // runs) * BLOCK
    y0 = (tl.program_id(0) % runs) * RUN
    ks = tl.arange(0, BLOCK_K)
    real = (ks < K)[:, None]
    image, z, x, exists = _place(column + tl.arange(0, BLOCK), B, D, W, FLAT, EVEN)
    base = labels + ((image * (D * H * W)) >> 1 if PACKED else image * (D * H * W))
    pixel = z * (H * W) + x
    if WEIGHTED:
        w = tl.load(weights + ks, mask=ks < K, other=0.0)
    parameter = tl.cast(parameter, tl.float32)  # double in a compiled step
    scale = tl.cast(scale, tl.float32)
    # Votes of the rows above (a), at (b) and below (c) the pixels, in up to three slots.
    if not MAPS:
        all_ce = tl.load(ce_grad) * tl.load(scratch)
        all_penalty = tl.load(penalty_grad) * tl.load(scratch + 1) * scale
    if DICE:
        all_dice = tl.load(dice_grad) * tl.load(scratch + 2)
        rows = 1 if BATCH else B
        if SPANS == 1:
            image_row = 0 if BATCH else column // (D * W)
            coefficient = dice + (image_row * K + ks)[:, None]
            present = real
        else:
            coefficient = dice + image[None, :] * K + ks[:, None]
            present = real & exists[None, :]
        on_x = tl.load(coefficient, mask=present, other=0.0) * all_dice
        if DICE != PROPER:
            on_z = tl.load(coefficient + rows * K, mask=present, other=0.0) * all_dice
    if BINS:
        # A coefficient is read for every probability: from shared memory if there is a TABLE.
        first = column // (D * W)
        if ONE_IMAGE:
            ace_row = first * K + ks[:, None]
            present = real
        else:
            ace_row = image[None, :] * K + ks[:, None]
            present = real & exists[None, :]
        on_gap = tl.load(ace + B * K * (BLOCK_BINS + 1) + ace_row, mask=present, other=0.0)
        on_gap = on_gap * (tl.load(ace_grad) * tl.load(scratch + 3))
        if TABLE:
            entry = tl.arange(0, TABLE)
            k = entry // BLOCK_BINS % BLOCK_K
            source = first + entry // (BLOCK_BINS * BLOCK_K)
            values = ace + (source * K + k) * BLOCK_BINS + entry % BLOCK_BINS
            values = tl.load(values, mask=(k < K) & (source < B), other=0.0)
            table = _shared_table(values, STORE, OPERANDS) + ks[:, None] * (4 * BLOCK_BINS)
            if not ONE_IMAGE:
                table += tl.where(exists, image - first, 0)[None, :] * (4 * BLOCK_BINS * BLOCK_K)
        else:
            table = ace + ace_row * BLOCK_BINS
    if SLOTS > 0 or PACKED:
        group = column + VECTOR * tl.arange(0, BLOCK // VECTOR)
        gi, gz, gx, ghere = _place(group, B, D, W, FLAT, EVEN)
        offset = gi * (D * H * W)
        width = W
        if PACKED:
            offset = offset >> 1
            gx = gx >> 1
            width = W >> 1
    if SLOTS > 0:
        a0, a1, a2 = _rows(
            labels, offset, gz, y0 - 1, gx, D, H, width, ghere,
            SLOTS, PRIOR, RZ, IGNORED, BORDER, BITS, PER_WORD, WIDE, VECTOR, PACKED,
        )  # fmt: skip
        b0, b1, b2 = _rows(
            labels, offset, gz, y0, gx, D, H, width, ghere,
            SLOTS, PRIOR, RZ, IGNORED, BORDER, BITS, PER_WORD, WIDE, VECTOR, PACKED,
        )  # fmt: skip
    for i in range(RUN):
        y = y0 + i
        here = exists if EVEN else exists & (y < H)
        s = pixel + y * W
        if SLOTS > 0:
            c0, c1, c2 = _rows(
                labels, offset, gz, y + 1, gx, D, H, width, ghere,
                SLOTS, PRIOR, RZ, IGNORED, BORDER, BITS, PER_WORD, WIDE, VECTOR, PACKED,
            )  # fmt: skip
        at = _at(image * stride_b + s * stride_s, ks, stride_k, ROWS, K, VECTOR)
        l = _load_logits(logits + at, here, ks, K)  # noqa: E741
        place = image * (D * H * W) + s
        place = tl.multiple_of(tl.max_contiguous(place, VECTOR), VECTOR)
        if PACKED:
            exist = ghere if EVEN else ghere & (y < H)
            label = _pair(labels + (offset + gz * (H * width) + gx) + y * width, exist, 0)
            label = tl.reshape(label, [BLOCK])
        else:
            label = tl.load(labels + place, mask=here, other=0).to(tl.int32)
        counted = here & (label != ignore_index)
        invalid = counted & ((label < 0) | (label >= K))
        own = ks[:, None] == label[None, :]

        if MAPS:
            to_ce = tl.load(ce_grad + place, mask=here, other=0.0)
            to_penalty = tl.load(penalty_grad + place, mask=here, other=0.0)
            to_penalty = to_penalty * scale
        else:
            to_ce = tl.full([BLOCK], 0.0, tl.float32) + all_ce
            to_penalty = tl.full([BLOCK], 0.0, tl.float32) + all_penalty
        to_ce = tl.where(invalid, float("nan"), to_ce)

        top = tl.max(l, 0)
        shifted = l - top[None, :]
        e = _exp(shifted)
        total = tl.sum(e, 0)
        log_total = _log(total)
        probs = e * _inverse(total)[None, :]
        if WEIGHTED:
            weight = tl.sum(tl.where(own, w[:, None], 0.0), 0)

        if KIND == SVLS or KIND == NACL:
            if SLOTS > 0:
                tau, tau_scale = _walked_prior(
                    tl.where(counted, label, -1), a0, b0, c0, a1, b1, c1, a2, b2, c2, ks,
                    K, PRIOR, SLOTS, SHELL_WEIGHTS, BITS, PER_WORD, BLOCK,
                )  # fmt: skip
            else:
                tau, tau_scale = _prior(
                    base, tl.where(counted, label, -1), z, y, x, D, H, W, here, ks,
                    K, IGNORED, PRIOR, RZ, RY, RX, SHELLS, SHELL_WEIGHTS,
                    BORDER, BITS, PER_WORD, WIDE, PACKED,
                )  # fmt: skip

        if KIND == NACL:
            tau = tau * tau_scale[None, :]

        if KIND == LS or KIND == SVLS:
            if KIND == LS:
                q = tl.where(own, 1 - parameter, 0.0) + parameter / K
                q_scale = tl.full([BLOCK], 1.0, tl.float32)
            else:
                q = tau
                q_scale = tau_scale
            if WEIGHTED:
                q = q * w[:, None]
            q = tl.where(real, q, 0.0)
            g = e * (_inverse(total) * tl.sum(q, 0))[None, :] - q
            g = g * (q_scale[None, :] * to_ce[None, :])
        elif KIND == NONE:
            g = tl.where(invalid, float("nan"), 0.0)[None, :] + probs * 0.0
        else:
            g = probs - tl.where(own, 1.0, 0.0)
            if KIND == FOCAL:
                ce = log_total - tl.sum(tl.where(own, shifted, 0.0), 0)
                uncertain = tl.sum(tl.where(own, 0.0, e), 0) / total
                floor = tl.maximum(uncertain, 1e-12)
                power = tl.exp(parameter * tl.log(floor))
                sure = tl.sum(tl.where(own, probs, 0.0), 0)
                slope = tl.where(uncertain >= 1e-12, parameter * ce * sure * power / floor, 0.0)
                g = g * (power + slope)[None, :]
            if WEIGHTED:
                g = g * weight[None, :]
            g = g * to_ce[None, :]

        if KIND == ECP:
            log_probs = tl.where(real, shifted - log_total[None, :], 0.0)
            mean = tl.sum(probs * log_probs, 0)
            g += probs * (log_probs - mean[None, :]) * to_penalty[None, :]
        elif KIND == MBLS:
            over = tl.where(real & (-shifted > parameter), 1.0, 0.0)
            largest = tl.where(real & (shifted == 0.0), 1.0, 0.0)
            share = tl.sum(over, 0) / tl.sum(largest, 0)
            g += (largest * share[None, :] - over) * to_penalty[None, :]
        elif KIND == NACL:
            if SOFTMAX:
                gap = tau - probs
            else:
                gap = tau - l
            if SQUARE:
                pull = -2.0 * gap
            else:
                pull = tl.where(gap > 0, -1.0, tl.where(gap < 0, 1.0, gap))
            pull = tl.where(real, pull, 0.0)
            if SOFTMAX:
                pull = probs * (pull - tl.sum(probs * pull, 0)[None, :])
            g += pull * to_penalty[None, :]

        if BINS:
            bin = _bin(probs, BINS)
            if TABLE:
                to_probs = on_gap * _read_shared(table + 4 * bin)
            else:
                valued = real & here[None, :]
                to_probs = on_gap * tl.load(table + bin, mask=valued, other=0.0)
        if DICE:
            truth = tl.where(own, 1.0, 0.0)
            if DICE == LINEAR:
                pull = on_x * truth + on_z
            elif DICE == SQUARED:
                pull = on_x * (probs - truth) + on_z * probs
            else:
                pull = on_x * (probs - truth)
            to_probs = pull + to_probs if BINS else pull
        if DICE or BINS:
            g += probs * (to_probs - tl.sum(probs * to_probs, 0)[None, :])

        g = tl.where(counted[None, :], g, 0.0)
        tl.store(grad + at, g.to(grad.dtype.element_ty), mask=real & here[None, :])
        if SLOTS > 0:
            a0, a1, a2, b0, b1, b2 = b0, b1, b2, c0, c1, c2
