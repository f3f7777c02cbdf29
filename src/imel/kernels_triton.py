"""The GPU kernel behind kernel interpolation, of which forward and backward are passes.

Called by `imel.kernels_cuda`. Operands are laid out (`imel.kernels_layout`) so that a plain dot
product of a left and a right row is already the shifted logit in base 2: the inner loop is two to
four matrix products and one exp2, without bias, running maximum or row sums.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import struct

import triton
import triton.language as tl


def _hex(number: float) -> str:
    return f"0f{struct.unpack('>I', struct.pack('>f', number))[0]:08X}"


def _exp2_of_four() -> str:
    """PTX for 2^x of four numbers, the first of them without the special-function unit.

    The nearest integer goes to the exponent and a cubic on [-1/2, 1/2] makes the mantissa, with a
    relative error of 7e-5, a twentieth of bfloat16's: the multiply-add units work meanwhile.
    """
    lines = [
        ".reg .f32 x, n, f, p;",
        ".reg .b32 e, m;",
        f"max.f32 x, $4, {_hex(-126.0)};",
        f"add.rn.f32 n, x, {_hex(3.0 * 2**22)};",  # leaves the integer in the low bits
        "mov.b32 e, n;",
        "shl.b32 e, e, 23;",
        f"sub.rn.f32 n, n, {_hex(3.0 * 2**22)};",
        "sub.rn.f32 f, x, n;",
        f"mov.f32 p, {_hex(0.05517167)};",
        *(f"fma.rn.f32 p, p, f, {_hex(c)};" for c in (0.24261113, 0.69326099, 0.99992807)),
        "mov.b32 m, p;",
        "add.s32 m, m, e;",
        "mov.b32 $0, m;",
        *(f"ex2.approx.ftz.f32 ${i}, ${i + 4};" for i in (1, 2, 3)),
    ]
    return "\n".join(["{", *lines, "}"])


_EXP2_OF_FOUR = tl.constexpr(_exp2_of_four())
_REGISTERS = tl.constexpr("=f,=f,=f,=f,f,f,f,f")


# fmt: off
# Arguments of kernels are grouped by what they are, not one to a line
@triton.jit
def _exp2(x, EMULATED: tl.constexpr):
    if EMULATED:
        y = tl.inline_asm_elementwise(_EXP2_OF_FOUR, _REGISTERS, [x], tl.float32, True, 4)
    else:
        y = tl.exp2(x)
    return y


@triton.jit
def _bfloat16(x):
    return x.to(tl.bfloat16).to(tl.float32)


@triton.jit(do_not_specialize=["count"])
def lay_out(
    numbers,
    order,
    centre,
    given,
    out,
    count,
    scale,
    headroom,
    padding,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    PAIRS: tl.constexpr,
    LEADING: tl.constexpr,
    PARTS_OF_PAIRS: tl.constexpr,
    EXTRAS: tl.constexpr,
    CARRIED: tl.constexpr,
    ONES: tl.constexpr,
    OF_DISTANCE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Rows of an operand, as `imel.kernels_layout.Layout` describes them.

    Three extra columns from CARRIED on sum to a number: `headroom` less half the squared norm if
    OF_DISTANCE, `-given` otherwise. Three from ONES on are ones. Negative places are not used.
    """
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    known = rows < count
    extra = columns - LEADING * DIM
    is_extra = (extra >= 0) & (extra < EXTRAS)
    at = tl.maximum(tl.where(extra < 0, columns, columns - EXTRAS), 0)
    pair, place = at // DIM, at % DIM
    holds = known[:, None] & ((pair < PAIRS) & (is_extra == 0))[None, :]
    source = tl.load(order + rows, known, 0)
    x = tl.load(numbers + source[:, None] * DIM + place[None, :], holds, 0.0).to(tl.float32)
    x = tl.where(holds, scale * (x - tl.load(centre + place)[None, :]), 0.0)
    high = _bfloat16(x)
    middle, low = _bfloat16(x - high), _bfloat16(x - high - _bfloat16(x - high))
    part = (PARTS_OF_PAIRS >> (2 * tl.minimum(pair, PAIRS - 1))) & 3
    out_row = tl.where((part == 0)[None, :], high, tl.where((part == 1)[None, :], middle, low))
    if CARRIED >= 0:
        if OF_DISTANCE:
            kept = high
            if PARTS > 1:
                kept += middle
            if PARTS > 2:
                kept += low
            kept = tl.where((columns < DIM)[None, :], kept, 0.0)
            number = headroom - 0.5 * tl.sum(kept * kept, axis=1)
        else:
            number = -tl.load(given + rows, known, 0.0)
        first = _bfloat16(number)
        second = _bfloat16(number - first)
        third = _bfloat16(number - first - second)
        first = tl.where(known, first, padding)
        second, third = tl.where(known, second, 0.0), tl.where(known, third, 0.0)
        out_row = tl.where((extra == CARRIED)[None, :], first[:, None], out_row)
        out_row = tl.where((extra == CARRIED + 1)[None, :], second[:, None], out_row)
        out_row = tl.where((extra == CARRIED + 2)[None, :], third[:, None], out_row)
    if ONES >= 0:
        one = known[:, None] & ((extra >= ONES) & (extra < ONES + 3))[None, :]
        out_row = tl.where(one, 1.0, out_row)
    tl.store(out + rows[:, None] * WIDTH + columns[None, :], out_row.to(tl.bfloat16))


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
    return tl.dot(weights.to(tl.bfloat16), right, total)


@triton.jit
def _tile(
    columns,
    left,
    left_values,
    right,
    right_values,
    first,
    last,
    to_features,
    to_values,
    shift,
    WIDTH: tl.constexpr,
    OUT: tl.constexpr,
    VALUES: tl.constexpr,
    FEATURES: tl.constexpr,
    WEIGHTS: tl.constexpr,
    SPLIT: tl.constexpr,
    MASKED: tl.constexpr,
    ONLINE: tl.constexpr,
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


@triton.jit
def _sweep(
    begin,
    end,
    skip_from,
    skip,
    left,
    left_values,
    right,
    right_values,
    first,
    last,
    to_features,
    to_values,
    shift,
    WIDTH: tl.constexpr,
    OUT: tl.constexpr,
    VALUES: tl.constexpr,
    FEATURES: tl.constexpr,
    WEIGHTS: tl.constexpr,
    SPLIT: tl.constexpr,
    MASKED: tl.constexpr,
    ONLINE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EMULATED: tl.constexpr,
    GROUP: tl.constexpr,
):
    # The matrix units cut sums off where they should round them: over a million columns that
    # would cost three digits, so what a group of tiles adds up to is added on outside of them
    for group in range(begin, end, GROUP):
        features, values = tl.zeros([ROWS, OUT], tl.float32), tl.zeros([ROWS, VALUES], tl.float32)
        before = shift
        for i in range(group, tl.minimum(group + GROUP, end)):
            tile = tl.where(i < skip_from, i, i + skip)
            features, values, shift = _tile(
                tile * COLUMNS + tl.arange(0, COLUMNS),
                left,
                left_values,
                right,
                right_values,
                first,
                last,
                features,
                values,
                shift,
                WIDTH,
                OUT,
                VALUES,
                FEATURES,
                WEIGHTS,
                SPLIT,
                MASKED,
                ONLINE,
                EMULATED,
            )
        if ONLINE:
            to_values *= tl.exp2(before - shift)[:, None]
        if WEIGHTS:
            to_values += values
        if FEATURES:
            to_features += features
    return to_features, to_values, shift


@triton.jit(do_not_specialize=["row_count", "column_tiles", "tiles_per_split"])
def interpolation_pass(
    left,
    left_values,
    right,
    right_values,
    firsts,
    lasts,
    sums,
    out_values,
    out_features,
    shifts,
    row_count,
    column_tiles,
    tiles_per_split,
    WIDTH: tl.constexpr,
    OUT: tl.constexpr,
    VALUES: tl.constexpr,
    FEATURES: tl.constexpr,
    WEIGHTS: tl.constexpr,
    SPLIT: tl.constexpr,
    ONLINE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EMULATED: tl.constexpr,
    GROUP: tl.constexpr,
):
    """A block of rows against a share of the columns, each row's own episode left out.

    WEIGHTS writes sum_i w_i v_i, FEATURES writes sum_i w_i (g.v_i) k_i. ONLINE is the careful form
    for rows whose `sums` left the range of float32: it follows the largest logit met so far.
    """
    block, split = tl.program_id(0), tl.program_id(1)
    rows = block * ROWS + tl.arange(0, ROWS)
    known = rows < row_count
    if ONLINE:
        total = tl.load(sums + rows)
        lost = known & ~((total > 1e-18) & (total < 1e36))
        if tl.max(lost.to(tl.int32), axis=0) == 0:
            return
    first, last = tl.load(firsts + rows, known, 0), tl.load(lasts + rows, known, 0)
    start = split * tiles_per_split
    end = tl.minimum(start + tiles_per_split, column_tiles)
    # Tiles that hold some row's own episode; all others need no mask
    some = first < last
    high = tl.cdiv(tl.max(tl.where(some, last, 0), axis=0), COLUMNS)
    high = tl.minimum(tl.maximum(high, start), end)
    low = tl.min(tl.where(some, first, column_tiles * COLUMNS), axis=0) // COLUMNS
    low = tl.minimum(tl.maximum(low, start), high)
    long_rows = rows.to(tl.int64)[:, None]
    own = tl.load(left + long_rows * WIDTH + tl.arange(0, WIDTH)[None, :])
    own_values = tl.load(left_values + long_rows * VALUES + tl.arange(0, VALUES)[None, :])
    to_features = tl.zeros([ROWS, OUT], tl.float32)
    to_values = tl.zeros([ROWS, VALUES], tl.float32)
    shift = tl.full([ROWS], -1e30, tl.float32)
    to_features, to_values, shift = _sweep(
        start,
        end - (high - low),
        low,
        high - low,
        own,
        own_values,
        right,
        right_values,
        first,
        last,
        to_features,
        to_values,
        shift,
        WIDTH,
        OUT,
        VALUES,
        FEATURES,
        WEIGHTS,
        SPLIT,
        False,
        ONLINE,
        ROWS,
        COLUMNS,
        EMULATED,
        GROUP,
    )
    to_features, to_values, shift = _sweep(
        low,
        high,
        high,
        0,
        own,
        own_values,
        right,
        right_values,
        first,
        last,
        to_features,
        to_values,
        shift,
        WIDTH,
        OUT,
        VALUES,
        FEATURES,
        WEIGHTS,
        SPLIT,
        True,
        ONLINE,
        ROWS,
        COLUMNS,
        EMULATED,
        GROUP,
    )
    place = (split * tl.num_programs(0) * ROWS + rows).to(tl.int64)
    if WEIGHTS:
        tl.store(out_values + place[:, None] * VALUES + tl.arange(0, VALUES)[None, :], to_values)
    if FEATURES:
        tl.store(out_features + place[:, None] * OUT + tl.arange(0, OUT)[None, :], to_features)
    if ONLINE:
        tl.store(shifts + place, shift)
