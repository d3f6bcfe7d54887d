"""Code in PTX, the assembly language of NVIDIA, for tables in shared memory, which Triton lacks.

Each text is used as an operation on all values of a thread at once.
"""

import struct


def counting_code(bins: int, row: int, pixels: int) -> str:
    """PTX that adds the pixels of a warp, at most 31 in each thread, to the bins of a class.

    The operands of each pixel are a result without meaning, its probability times `bins`, or
    bins + 1 if it does not count, and the address of the sums of the class: int64 numbers of
    pixels and, `row` int64 later, summed r.
    """
    # A row of the table has 128 bytes. A word has the number from bit 24 on, and the sum below.
    # 2^23 + n has the bits of 2^23 plus n: here the bin from bit 16 on, and r below.
    above = (_bits(2**23) >> 16) * 128
    lines = [
        f".shared .align 16 .b8 table[{128 * (bins + 2)}];",
        ".reg .b32 start, lane, column, zero, at, word, a<4>, number, rest;",
        ".reg .f32 steps;",
        ".reg .b64 goal, sum;",
        ".reg .pred has, last;",
        "mov.u32 start, table;",
        "mov.u32 lane, %laneid;",
        "mad.lo.u32 column, lane, 4, start;",
        f"sub.u32 column, column, {above};",
        "bar.warp.sync 0xffffffff;",  # until the rows of the class before are read
        *_zeros(bins + 1),
        "bar.warp.sync 0xffffffff;",
    ]
    for n in range(pixels):
        lines += [
            f"fma.rn.f32 steps, ${pixels + n}, {_hex(2**16)}, {_hex(2**23)};",
            "mov.b32 word, steps;",
            "shr.u32 at, word, 16;",
            "mad.lo.u32 at, at, 128, column;",
            "and.b32 word, word, 0xffff;",
            "or.b32 word, word, 0x1000000;",
            "red.shared.add.u32 [at], word;",
        ]
    lines.append("bar.warp.sync 0xffffffff;")
    for first in range(0, bins + 1, 32):
        lines += [
            f"add.u32 at, lane, {first};",
            f"setp.le.u32 has, at, {bins};",
            f"setp.eq.u32 last, at, {bins};",
            f"min.u32 word, at, {bins - 1};",
            f"mad.wide.u32 goal, word, 8, ${2 * pixels};",
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
        lines += [
            "shl.b32 word, number, 16;",
            "@last add.u32 rest, rest, word;",  # in the last bin, at its upper border
            "setp.ne.and.u32 has, number, 0, has;",
        ]
        for name, distance in (("number", 0), ("rest", 8 * row)):
            lines += [
                f"cvt.u64.u32 sum, {name};",
                f"@has red.relaxed.gpu.global.add.u64 [goal+{distance}], sum;",
            ]
    return "{" + " ".join(lines) + "}"


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
    return "{" + " ".join(lines) + "}"


def storing_code(size: int, values: int) -> str:
    """PTX that copies `size` values to shared memory, `values` of them by each thread.

    The operands of each are the address of the copy, which is the same for all, its index, and the
    value.
    """
    lines = [
        f".shared .align 16 .b8 table[{4 * size}];",
        ".reg .b32 start, at;",
        "mov.u32 start, table;",
    ]
    for n in range(values):
        lines += [
            f"mad.lo.u32 at, ${values + n}, 4, start;",
            f"st.shared.f32 [at], ${2 * values + n};",
        ]
    lines += ["bar.sync 0;", *(f"mov.u32 ${n}, start;" for n in range(values))]
    return "{" + " ".join(lines) + "}"


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
