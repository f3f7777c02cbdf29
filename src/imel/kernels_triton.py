"""The one GPU kernel behind kernel interpolation: forward and backward are passes of it.

Called by `imel.kernels_cuda`, which lays the operands out so that a plain dot product of a left
and a right row is already the shifted logit in base 2: the inner loop is two or four matrix
products and one exp2, without bias, running maximum or row sums.
"""

# ruff: noqa: D103, N803, PLR0913
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import struct

import triton
import triton.language as tl


def _hex(number: float) -> str:
    return f"0f{struct.unpack('>I', struct.pack('>f', number))[0]:08X}"


def _exp2_of_four(emulated: int) -> str:
    """PTX for 2^x of four numbers, the first `emulated` of them without the special-function unit.

    The nearest integer goes to the exponent and a cubic on [-1/2, 1/2] makes the mantissa, with a
    relative error of 7e-5, a twentieth of bfloat16's: the multiply-add units work meanwhile.
    """
    lines = [".reg .f32 x, n, f, p;", ".reg .b32 e, m;"]
    for i in range(4):
        if i >= emulated:
            lines.append(f"ex2.approx.ftz.f32 ${i}, ${i + 4};")
            continue
        lines += [
            f"max.f32 x, ${i + 4}, {_hex(-126.0)};",
            f"add.rn.f32 n, x, {_hex(3.0 * 2**22)};",  # leaves the integer in the low bits
            "mov.b32 e, n;",
            "shl.b32 e, e, 23;",
            f"sub.rn.f32 n, n, {_hex(3.0 * 2**22)};",
            "sub.rn.f32 f, x, n;",
            f"mov.f32 p, {_hex(0.05517167)};",
            *(f"fma.rn.f32 p, p, f, {_hex(c)};" for c in (0.24261113, 0.69326099, 0.99992807)),
            "mov.b32 m, p;",
            "add.s32 m, m, e;",
            f"mov.b32 ${i}, m;",
        ]
    return "\n".join(["{", *lines, "}"])


_QUARTER = tl.constexpr(_exp2_of_four(1))
_HALF = tl.constexpr(_exp2_of_four(2))
_REGISTERS = tl.constexpr("=f,=f,=f,=f,f,f,f,f")


@triton.jit
def _exp2(x, EMULATED: tl.constexpr):
    if EMULATED == 0:
        return tl.exp2(x)
    elif EMULATED == 1:
        return tl.inline_asm_elementwise(_QUARTER, _REGISTERS, [x], tl.float32, True, 4)
    else:
        return tl.inline_asm_elementwise(_HALF, _REGISTERS, [x], tl.float32, True, 4)


@triton.jit
def _own(columns, first, last):
    # The keys of a query's own episode are one range, because both sides are sorted by episode
    return (columns[None, :] >= first[:, None]) & (columns[None, :] < last[:, None])


@triton.jit
def _accumulate(weights, right, total, SPLIT: tl.constexpr):
    if SPLIT:  # two bfloat16 numbers carry 16 of float32's 24 bits
        # Cutting bits off is cheaper than rounding, which would go through the exponentials' unit
        high = (weights.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
        total = tl.dot((weights - high).to(tl.bfloat16), right, total)
        weights = high
    total = tl.dot(weights.to(tl.bfloat16), right, total)
    return total


@triton.jit
def _tile(
    columns, left, left_values, right, right_values, first, last, to_features, to_values, shift,
    WIDTH: tl.constexpr, OUT: tl.constexpr, VALUES: tl.constexpr, FEATURES: tl.constexpr,
    WEIGHTS: tl.constexpr, SPLIT: tl.constexpr, MASKED: tl.constexpr, ONLINE: tl.constexpr,
    EMULATED: tl.constexpr,
):
    """One tile of columns: adds W v to `to_values` and, with D = W (g.v), D k to `to_features`."""
    rows = columns.to(tl.int64)[:, None]
    other = tl.load(right + rows * WIDTH + tl.arange(0, WIDTH)[None, :])
    other_values = tl.load(right_values + rows * VALUES + tl.arange(0, VALUES)[None, :])
    logits = tl.dot(left, tl.trans(other))
    if ONLINE:
        if MASKED:
            logits = tl.where(_own(columns, first, last), -1e30, logits)
        highest = tl.maximum(shift, tl.max(logits, axis=1))
        to_values *= tl.exp2(shift - highest)[:, None]
        logits -= highest[:, None]
        shift = highest
    weights = _exp2(logits, EMULATED)
    if MASKED:
        weights = tl.where(_own(columns, first, last), 0.0, weights)
    if WEIGHTS:
        to_values = _accumulate(weights, other_values, to_values, SPLIT)
    if FEATURES:
        slopes = weights * tl.dot(left_values, tl.trans(other_values))
        if OUT == WIDTH:
            answer = other
        else:
            answer = tl.load(right + rows * WIDTH + tl.arange(0, OUT)[None, :])
        to_features = _accumulate(slopes, answer, to_features, SPLIT)
    return to_features, to_values, shift


@triton.jit(do_not_specialize=["row_count", "column_tiles", "tiles_per_split"])
def interpolation_pass(
    left, left_values, right, right_values, firsts, lasts, sums, out_features, out_values, shifts,
    row_count, column_tiles, tiles_per_split,
    WIDTH: tl.constexpr, OUT: tl.constexpr, VALUES: tl.constexpr, FEATURES: tl.constexpr,
    WEIGHTS: tl.constexpr, SPLIT: tl.constexpr, ONLINE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, EMULATED: tl.constexpr,
):
    """A block of rows against a share of the columns, each row's own episode left out.

    WEIGHTS writes sum_i w_i v_i, FEATURES writes sum_i w_i (g.v_i) k_i. ONLINE is the careful form
    for rows whose `sums` left the range of float32: it follows the largest logit met so far.
    """
    block, split = tl.program_id(0), tl.program_id(1)
    rows = block * ROWS + tl.arange(0, ROWS)
    if ONLINE:
        total = tl.load(sums + rows)
        lost = (rows < row_count) & ~((total > 1e-18) & (total < 1e36))
        if tl.max(lost.to(tl.int32), axis=0) == 0:
            return
    first, last = tl.load(firsts + rows), tl.load(lasts + rows)
    start = split * tiles_per_split
    end = tl.minimum(start + tiles_per_split, column_tiles)
    # Tiles that hold some row's own episode; all others need no mask
    high = tl.minimum(tl.maximum(tl.cdiv(tl.max(last, axis=0), COLUMNS), start), end)
    low = tl.minimum(tl.maximum(tl.min(first, axis=0) // COLUMNS, start), high)
    long_rows = rows.to(tl.int64)[:, None]
    own = tl.load(left + long_rows * WIDTH + tl.arange(0, WIDTH)[None, :])
    own_values = tl.load(left_values + long_rows * VALUES + tl.arange(0, VALUES)[None, :])
    to_features = tl.zeros([ROWS, OUT], tl.float32)
    to_values = tl.zeros([ROWS, VALUES], tl.float32)
    shift = tl.full([ROWS], -1e30, tl.float32)
    lanes = tl.arange(0, COLUMNS)
    for i in range(start, end - (high - low)):
        tile = tl.where(i < low, i, i + (high - low))
        to_features, to_values, shift = _tile(
            tile * COLUMNS + lanes, own, own_values, right, right_values, first, last,
            to_features, to_values, shift,
            WIDTH, OUT, VALUES, FEATURES, WEIGHTS, SPLIT, False, ONLINE, EMULATED,
        )
    for i in range(low, high):
        to_features, to_values, shift = _tile(
            i * COLUMNS + lanes, own, own_values, right, right_values, first, last,
            to_features, to_values, shift,
            WIDTH, OUT, VALUES, FEATURES, WEIGHTS, SPLIT, True, ONLINE, EMULATED,
        )
    place = (split * tl.num_programs(0) * ROWS + rows).to(tl.int64)
    if WEIGHTS:
        tl.store(out_values + place[:, None] * VALUES + tl.arange(0, VALUES)[None, :], to_values)
    if FEATURES:
        tl.store(out_features + place[:, None] * OUT + tl.arange(0, OUT)[None, :], to_features)
    if ONLINE:
        tl.store(shifts + place, shift)
