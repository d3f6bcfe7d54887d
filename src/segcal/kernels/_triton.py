"""The Triton kernels: one pass over logits and labels for the value, one for the gradient.

A program takes BLOCK pixels of one image and all K classes of each. Labels vote for the prior
without a K-wide loop per neighbour: each neighbour adds one to a bit field of a packed integer,
and the fields are unpacked once. A Gaussian has few distinct weights, so its neighbours are
packed shell by shell (pixels at the same distance).
"""

import triton
import triton.language as tl

# What a kernel computes, and its options, as compile-time constants.
CE: tl.constexpr = tl.constexpr(0)
FOCAL: tl.constexpr = tl.constexpr(1)
LS: tl.constexpr = tl.constexpr(2)
SVLS: tl.constexpr = tl.constexpr(3)
ECP: tl.constexpr = tl.constexpr(4)
MBLS: tl.constexpr = tl.constexpr(5)
NACL: tl.constexpr = tl.constexpr(6)

MEAN: tl.constexpr = tl.constexpr(0)
GAUSSIAN: tl.constexpr = tl.constexpr(1)
MAX: tl.constexpr = tl.constexpr(2)
MIN: tl.constexpr = tl.constexpr(3)
MEDIAN: tl.constexpr = tl.constexpr(4)
MODE: tl.constexpr = tl.constexpr(5)

REPLICATE: tl.constexpr = tl.constexpr(0)
BACKGROUND: tl.constexpr = tl.constexpr(1)
VALID: tl.constexpr = tl.constexpr(2)


@triton.jit
def _label(base, z, y, x, D, H, W, here, BORDER: tl.constexpr):
    """The label at (z, y, x) under the border rule; −1 where nothing votes."""
    if BORDER == REPLICATE:
        z = tl.minimum(tl.maximum(z, 0), D - 1)
        y = tl.minimum(tl.maximum(y, 0), H - 1)
        x = tl.minimum(tl.maximum(x, 0), W - 1)
        return tl.load(base + (z * H + y) * W + x, mask=here, other=-1).to(tl.int32)
    inside = (z >= 0) & (z < D) & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    label = tl.load(base + (z * H + y) * W + x, mask=here & inside, other=0).to(tl.int32)
    if BORDER == VALID:
        label = tl.where(inside, label, -1)
    return label


@triton.jit
def _votes(
    base, z, y, x, D, H, W, here, ks,
    K: tl.constexpr, IGNORED: tl.constexpr,
    RZ: tl.constexpr, RY: tl.constexpr, RX: tl.constexpr, SHELL: tl.constexpr,
    BORDER: tl.constexpr, BITS: tl.constexpr, PER_WORD: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Votes per class of the pixels at squared distance SHELL (all of the patch if negative).

    Whatever is no class of this word, as an unsigned number, is shifted past its last field:
    no test is needed. IGNORED is the ignored label if it is a class, else −1.
    """
    PZ: tl.constexpr = 2 * RZ + 1
    PY: tl.constexpr = 2 * RY + 1
    PX: tl.constexpr = 2 * RX + 1
    WORDS: tl.constexpr = (K + PER_WORD - 1) // PER_WORD
    counts = tl.zeros([ks.shape[0], x.shape[0]], tl.int32)
    for word in tl.static_range(WORDS):
        packed = tl.zeros_like(x).to(tl.int64) if WIDE else tl.zeros_like(x)
        one = packed + 1
        for i in tl.static_range(PZ * PY * PX):
            # Written out twice: an offset given a name is no longer known at compile time.
            if (
                SHELL < 0
                or (i // (PY * PX) - RZ) * (i // (PY * PX) - RZ)
                + ((i // PX) % PY - RY) * ((i // PX) % PY - RY)
                + (i % PX - RX) * (i % PX - RX)
                == SHELL
            ):
                label = _label(
                    base, z + (i // (PY * PX) - RZ), y + ((i // PX) % PY - RY), x + (i % PX - RX),
                    D, H, W, here, BORDER,
                )  # fmt: skip
                if IGNORED >= 0:
                    label = tl.where(label == IGNORED, -1, label)
                shift = (label - word * PER_WORD).to(tl.uint32) * BITS
                packed += one << tl.minimum(shift, 63 if WIDE else 31).to(packed.dtype)
        field = ks - word * PER_WORD
        mine = (field >= 0) & (field < PER_WORD)
        down = tl.where(mine, field * BITS, 0)
        unpacked = (packed[None, :] >> down[:, None].to(packed.dtype)).to(tl.int32)
        counts += tl.where(mine[:, None], unpacked & ((1 << BITS) - 1), 0)
    return tl.where((ks < K)[:, None], counts, 0)


@triton.jit
def _prior(
    base, label, z, y, x, D, H, W, here, ks,
    K: tl.constexpr, IGNORED: tl.constexpr, PRIOR: tl.constexpr,
    RZ: tl.constexpr, RY: tl.constexpr, RX: tl.constexpr,
    SHELLS: tl.constexpr, SHELL_WEIGHTS: tl.constexpr, CENTRE_WEIGHT: tl.constexpr,
    BORDER: tl.constexpr, BITS: tl.constexpr, PER_WORD: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """τ (BLOCK_K, BLOCK), as `segcal.priors.neighbourhood_prior` defines it."""
    if PRIOR == GAUSSIAN:
        sums = tl.where(ks[:, None] == label[None, :], CENTRE_WEIGHT, 0.0)
        for s in tl.static_range(len(SHELLS)):
            counts = _votes(
                base, z, y, x, D, H, W, here, ks,
                K, IGNORED, RZ, RY, RX, SHELLS[s], BORDER, BITS, PER_WORD, WIDE,
            )  # fmt: skip
            sums += SHELL_WEIGHTS[s] * counts
        total = tl.sum(sums, 0)
        return sums * (1.0 / tl.where(total > 0, total, 1.0))[None, :]
    counts = _votes(
        base, z, y, x, D, H, W, here, ks,
        K, IGNORED, RZ, RY, RX, -1, BORDER, BITS, PER_WORD, WIDE,
    )  # fmt: skip
    voted = tl.sum(counts, 0)
    if PRIOR == MEAN:
        return counts * (1.0 / tl.where(voted > 0, voted, 1))[None, :]
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
    return tl.where((ks[:, None] == index[None, :]) & (voted > 0)[None, :], 1.0, 0.0)


@triton.jit
def _place(pid, S, D, H, W, FLAT: tl.constexpr, BLOCK: tl.constexpr):
    """Image, pixel numbers in it, whether they exist, and their coordinates."""
    blocks = tl.cdiv(S, BLOCK)
    image = (pid // blocks).to(tl.int64)
    s = (pid % blocks) * BLOCK + tl.arange(0, BLOCK)
    here = s < S
    row = s // W
    x = s - row * W
    if FLAT:  # one slice: no second division
        return image, s, here, row * 0, row, x
    z = row // H
    return image, s, here, z, row - z * H, x


@triton.jit
def _load_logits(logits, image, s, here, ks, stride_b, stride_k, stride_s, K: tl.constexpr):
    where = logits + image * stride_b + ks[:, None].to(tl.int64) * stride_k
    exists = (ks < K)[:, None] & here[None, :]
    values = tl.load(where + s[None, :] * stride_s, mask=exists, other=float("-inf"))
    # A pixel that does not exist gets zeros, so that nothing below turns into NaN.
    return tl.where(here[None, :], values.to(tl.float32), 0.0)


@triton.jit
def value_kernel(
    logits, labels, weights, ce_map, penalty_map, partial,
    S, D, H, W, stride_b, stride_k, stride_s, ignore_index, parameter, scale,
    K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr,
    WEIGHTED: tl.constexpr, SOFTMAX: tl.constexpr, SQUARE: tl.constexpr, MAPS: tl.constexpr,
    FLAT: tl.constexpr, IGNORED: tl.constexpr,
    PRIOR: tl.constexpr, RZ: tl.constexpr, RY: tl.constexpr, RX: tl.constexpr,
    SHELLS: tl.constexpr, SHELL_WEIGHTS: tl.constexpr, CENTRE_WEIGHT: tl.constexpr,
    BORDER: tl.constexpr, BITS: tl.constexpr, PER_WORD: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Cross-entropy part and penalty of every pixel, summed per program (or written as maps)."""
    pid = tl.program_id(0)
    image, s, here, z, y, x = _place(pid, S, D, H, W, FLAT, BLOCK)
    ks = tl.arange(0, BLOCK_K)
    real = (ks < K)[:, None]
    l = _load_logits(logits, image, s, here, ks, stride_b, stride_k, stride_s, K)  # noqa: E741
    base = labels + image * S
    label = tl.load(base + s, mask=here, other=0).to(tl.int32)
    counted = here & (label != ignore_index)
    strange = counted & ((label < 0) | (label >= K))
    own = ks[:, None] == label[None, :]

    top = tl.max(l, 0)
    shifted = l - top[None, :]
    e = tl.exp(shifted)
    total = tl.sum(e, 0)
    log_total = tl.log(total)
    if WEIGHTED:
        w = tl.load(weights + ks, mask=ks < K, other=0.0)
        weight = tl.sum(tl.where(own, w[:, None], 0.0), 0)
    else:
        weight = tl.full([BLOCK], 1.0, tl.float32)

    if KIND == SVLS or KIND == NACL:
        tau = _prior(
            base, tl.where(counted, label, -1), z, y, x, D, H, W, here, ks,
            K, IGNORED, PRIOR, RZ, RY, RX, SHELLS, SHELL_WEIGHTS, CENTRE_WEIGHT,
            BORDER, BITS, PER_WORD, WIDE,
        )  # fmt: skip

    if KIND == LS or KIND == SVLS:
        if KIND == LS:
            q = tl.where(own, 1 - parameter, 0.0) + parameter / K
        else:
            q = tau
        if WEIGHTED:
            q = q * w[:, None]
        ce = tl.sum(tl.where(real, q * (log_total[None, :] - shifted), 0.0), 0)
    else:
        ce = log_total - tl.sum(tl.where(own, shifted, 0.0), 0)
        if KIND == FOCAL:
            unsure = tl.sum(tl.where(own, 0.0, e), 0) / total
            ce = ce * tl.exp(parameter * tl.log(tl.maximum(unsure, 1e-12)))
        ce = ce * weight

    if KIND == ECP:
        log_probs = shifted - log_total[None, :]
        penalty = tl.sum(tl.where(real, tl.exp(log_probs) * log_probs, 0.0), 0)
    elif KIND == MBLS:
        penalty = tl.sum(tl.where(real, tl.maximum(-shifted - parameter, 0.0), 0.0), 0)
    elif KIND == NACL:
        if SOFTMAX:
            gap = tau - e * (1.0 / total)[None, :]
        else:
            gap = tau - l
        gap = tl.where(real, gap, 0.0)
        penalty = tl.sum(gap * gap if SQUARE else tl.abs(gap), 0)
    else:
        penalty = tl.zeros([BLOCK], tl.float32)

    ce = tl.where(strange, float("nan"), tl.where(counted, ce, 0.0))
    penalty = tl.where(counted, penalty * scale, 0.0)
    if MAPS:
        tl.store(ce_map + image * S + s, ce, mask=here)
        tl.store(penalty_map + image * S + s, penalty, mask=here)
    else:
        # One row per quantity, so that they are read in order.
        mine = partial + pid
        rows = tl.num_programs(0)
        tl.store(mine, tl.sum(ce))
        if KIND >= ECP:
            tl.store(mine + rows, tl.sum(penalty))
        tl.store(mine + 2 * rows, tl.sum(counted.to(tl.float32)))
        if WEIGHTED:
            tl.store(mine + 3 * rows, tl.sum(tl.where(counted, weight, 0.0)))


@triton.jit
def finish_kernel(
    partial, out, rows,
    ROUNDS: tl.constexpr, AVERAGE: tl.constexpr, PENALISED: tl.constexpr, WEIGHTED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the programs' sums in one fixed order; out: ce, penalty, total, 1/weight, 1/count."""
    index = tl.arange(0, BLOCK)
    ce = tl.zeros([BLOCK], tl.float64)
    penalty = tl.zeros([BLOCK], tl.float64)
    count = tl.zeros([BLOCK], tl.float64)
    weight = tl.zeros([BLOCK], tl.float64)
    for i in range(ROUNDS):
        at = i * BLOCK + index
        here = at < rows
        ce += tl.load(partial + at, mask=here, other=0.0)
        if PENALISED:
            penalty += tl.load(partial + rows + at, mask=here, other=0.0)
        count += tl.load(partial + 2 * rows + at, mask=here, other=0.0)
        if WEIGHTED:
            weight += tl.load(partial + 3 * rows + at, mask=here, other=0.0)
    per_count = tl.full([], 1.0, tl.float64)
    per_weight = tl.full([], 1.0, tl.float64)
    if AVERAGE:
        per_count = 1.0 / tl.maximum(tl.sum(count), 1.0)
        per_weight = per_count
        if WEIGHTED:
            heavy = tl.sum(weight)
            per_weight = 1.0 / tl.where(heavy == 0.0, 1.0, heavy)
    total_ce = tl.sum(ce) * per_weight
    total_penalty = tl.sum(penalty) * per_count
    tl.store(out, total_ce.to(tl.float32))
    tl.store(out + 1, total_penalty.to(tl.float32))
    tl.store(out + 2, (total_ce + total_penalty).to(tl.float32))
    tl.store(out + 3, per_weight.to(tl.float32))
    tl.store(out + 4, per_count.to(tl.float32))


@triton.jit
def gradient_kernel(
    logits, labels, weights, grad, ce_grad, penalty_grad, norms,
    S, D, H, W, stride_b, stride_k, stride_s, ignore_index, parameter, scale,
    K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr,
    WEIGHTED: tl.constexpr, SOFTMAX: tl.constexpr, SQUARE: tl.constexpr, MAPS: tl.constexpr,
    FLAT: tl.constexpr, IGNORED: tl.constexpr,
    PRIOR: tl.constexpr, RZ: tl.constexpr, RY: tl.constexpr, RX: tl.constexpr,
    SHELLS: tl.constexpr, SHELL_WEIGHTS: tl.constexpr, CENTRE_WEIGHT: tl.constexpr,
    BORDER: tl.constexpr, BITS: tl.constexpr, PER_WORD: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The gradient of every logit; everything is computed again, nothing was kept."""
    pid = tl.program_id(0)
    image, s, here, z, y, x = _place(pid, S, D, H, W, FLAT, BLOCK)
    ks = tl.arange(0, BLOCK_K)
    real = (ks < K)[:, None]
    l = _load_logits(logits, image, s, here, ks, stride_b, stride_k, stride_s, K)  # noqa: E741
    base = labels + image * S
    label = tl.load(base + s, mask=here, other=0).to(tl.int32)
    counted = here & (label != ignore_index)
    strange = counted & ((label < 0) | (label >= K))
    own = ks[:, None] == label[None, :]

    if MAPS:
        to_ce = tl.load(ce_grad + image * S + s, mask=here, other=0.0)
        to_penalty = tl.load(penalty_grad + image * S + s, mask=here, other=0.0)
    else:
        to_ce = tl.load(ce_grad) * tl.load(norms) + tl.zeros([BLOCK], tl.float32)
        to_penalty = tl.load(penalty_grad) * tl.load(norms + 1) + tl.zeros([BLOCK], tl.float32)
    to_penalty = to_penalty * scale

    top = tl.max(l, 0)
    shifted = l - top[None, :]
    e = tl.exp(shifted)
    total = tl.sum(e, 0)
    log_total = tl.log(total)
    probs = e * (1.0 / total)[None, :]
    if WEIGHTED:
        w = tl.load(weights + ks, mask=ks < K, other=0.0)
        weight = tl.sum(tl.where(own, w[:, None], 0.0), 0)

    if KIND == SVLS or KIND == NACL:
        tau = _prior(
            base, tl.where(counted, label, -1), z, y, x, D, H, W, here, ks,
            K, IGNORED, PRIOR, RZ, RY, RX, SHELLS, SHELL_WEIGHTS, CENTRE_WEIGHT,
            BORDER, BITS, PER_WORD, WIDE,
        )  # fmt: skip

    if KIND == LS or KIND == SVLS:
        if KIND == LS:
            q = tl.where(own, 1 - parameter, 0.0) + parameter / K
        else:
            q = tau
        if WEIGHTED:
            q = q * w[:, None]
        q = tl.where(real, q, 0.0)
        g = probs * tl.sum(q, 0)[None, :] - q
    else:
        g = probs - tl.where(own, 1.0, 0.0)
        if KIND == FOCAL:
            ce = log_total - tl.sum(tl.where(own, shifted, 0.0), 0)
            unsure = tl.sum(tl.where(own, 0.0, e), 0) / total
            floor = tl.maximum(unsure, 1e-12)
            power = tl.exp(parameter * tl.log(floor))
            sure = tl.sum(tl.where(own, probs, 0.0), 0)
            slope = tl.where(unsure >= 1e-12, parameter * ce * sure * power / floor, 0.0)
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

    g = tl.where(strange[None, :], float("nan"), tl.where(counted[None, :], g, 0.0))
    where = grad + image * stride_b + ks[:, None].to(tl.int64) * stride_k + s[None, :] * stride_s
    tl.store(where, g.to(grad.dtype.element_ty), mask=real & here[None, :])
