"""Kernel interpolation fused on the GPU: no [T, N] matrix, one kernel for forward and backward.

`imel.kernels` hands tensors on a GPU over to here. In the scaled, centred features
a = sqrt(2 log2 e) u the logit in base 2 of query t and key i is

    a_t.a_i - |a_i|^2 / 2 - shift_t

and all of it is put into one dot product: rows carry the numbers |a_i|^2 / 2 and shift_t in extra
columns, against columns of ones, each number as a sum of three bfloat16 numbers. Values carry a
column of ones, whose average is the normaliser. Distances are never negative, so a fixed shift
keeps sums from overflowing; rows so far from all keys that their sum underflows are done again
with a running maximum. float32 numbers go through the bfloat16 units as sums of one, two or three
bfloat16 numbers, as `torch.set_float32_matmul_precision` asks: medium, high, highest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from imel.kernels_triton import interpolation_pass

_SCALE = math.sqrt(2.0 * math.log2(math.e))
_HEADROOM = 64.0
"""Sums of weights reach 2^64 times their number before and 2^-60 after the fixed shift."""
_FAR = -1e30
"""A logit whose weight is zero."""
_PADDING = 128
_PARTS = {"medium": 1, "high": 2, "highest": 3}
# Which part of the left number meets which part of the right one; the first `outputs` pairs hold
# the parts that a product with the weights needs
_PAIRS = {
    1: ((0, 0),),
    2: ((0, 0), (0, 1), (1, 0)),
    3: ((0, 0), (1, 1), (0, 1), (1, 0), (0, 2), (2, 0)),
}
_OUTPUT_PAIRS = {1: 1, 2: 3, 3: 2}


@dataclass(frozen=True)
class Layout:
    """How rows of `dim` numbers with `extras` numbers beside them become rows of bfloat16."""

    dim: int
    parts: int
    extras: int

    @property
    def width(self) -> int:
        """Columns in all."""
        return _power_of_two(len(_PAIRS[self.parts]) * self.dim + self.extras)

    @property
    def leading(self) -> int:
        """Columns that a product with the weights needs."""
        return _power_of_two(self.extra + self.extras)

    @property
    def extra(self) -> int:
        """Where the extra columns begin."""
        return _OUTPUT_PAIRS[self.parts] * self.dim

    def rows(self, numbers: Tensor, extras: list[Tensor | float], side: int, fill: int) -> Tensor:
        """The operand: padded rows have zeros, and _FAR in the extra column `fill`, if any."""
        count = numbers.shape[0]
        padded = _PADDING * -(-count // _PADDING)
        out = numbers.new_zeros(padded, self.width, dtype=torch.bfloat16)
        pieces = _split(numbers, self.parts)
        for place, pair in enumerate(_PAIRS[self.parts]):
            start = place * self.dim
            if place >= _OUTPUT_PAIRS[self.parts]:
                start += self.extras
            out[:count, start : start + self.dim] = pieces[pair[side]]
        for column, extra in enumerate(extras, start=self.extra):
            out[:count, column] = extra
        if fill >= 0:
            out[count:, self.extra + fill] = _FAR
        return out

    def numbers(self, out: Tensor, side: int) -> Tensor:
        """sum_i w_i x_i, from the products of weights and operands of a side."""
        sides = [pair[side] for pair in _PAIRS[self.parts][: _OUTPUT_PAIRS[self.parts]]]
        blocks = out[:, : self.extra].unflatten(1, (-1, self.dim)).unbind(1)
        return sum(blocks[sides.index(part)] for part in sorted(set(sides)))  # type: ignore[return-value]


class Ranges(NamedTuple):
    """For each row, the first and last (exclusive) row of the other side it must not see."""

    first: Tensor
    last: Tensor


def _power_of_two(number: int) -> int:
    return max(16, 1 << (number - 1).bit_length())


def _split(numbers: Tensor, parts: int) -> list[Tensor]:
    """A float32 tensor as a sum of bfloat16 ones."""
    pieces = []
    for _ in range(parts):
        pieces.append(numbers.to(torch.bfloat16))
        numbers = numbers - pieces[-1].float()
    return pieces


def _rounded(numbers: Tensor, parts: int) -> Tensor:
    return torch.stack([piece.float() for piece in _split(numbers, parts)]).sum(0)


class Passes:
    """The operands of one interpolation and the passes over them."""

    def __init__(self, keys: Tensor, values: Tensor, normalised: bool, parts: int) -> None:
        self.normalised, self.parts = normalised, parts
        self.features = Layout(keys.shape[1], parts, 6)
        self.values = Layout(values.shape[1], min(parts, 2), 3)
        if max(self.features.width, self.values.width) > 256:
            raise ValueError(
                f"features of {keys.shape[1]} and values of {values.shape[1]} dimensions are too "
                "many for the GPU kernel at this float32 matmul precision"
            )
        # Distances and averages do not depend on the origin; near the centre bits are not wasted
        self.centre = keys.float().mean(dim=0)
        self.value_centre = values.float().mean(dim=0) if normalised else values.new_zeros(())
        self.scaled_keys = _rounded(_SCALE * (keys.float() - self.centre), parts)
        self.key_rows = self._right(self.scaled_keys)
        self.value_rows = self.values.rows(values.float() - self.value_centre, [1.0] * 3, 1, -1)
        self.key_count = keys.shape[0]

    def scaled(self, queries: Tensor) -> Tensor:
        return _rounded(_SCALE * (queries.float() - self.centre), self.parts)

    def _right(self, keys: Tensor) -> Tensor:
        bias = _split(-0.5 * keys.square().sum(dim=1), 3)
        return self.features.rows(keys, [*bias, 1.0, 1.0, 1.0], 1, 0)

    def left(self, queries: Tensor, shift: Tensor) -> Tensor:
        return self.features.rows(queries, [1.0, 1.0, 1.0, *_split(-shift, 3)], 0, 3)

    def left_values(self, gradient: Tensor, offset: Tensor) -> Tensor:
        return self.values.rows(gradient, [*_split(-offset, 3)], 0, -1)

    def forward(self, queries: Tensor, ranges: Ranges | None) -> tuple[Tensor, Tensor]:
        """The answers, and the shift that makes the weights sum to one."""
        scaled = self.scaled(queries)
        shift = 0.5 * scaled.square().sum(dim=1)
        if self.normalised:
            shift -= _HEADROOM
        left = self.left(scaled, shift)
        launch = _Launch(self, left, self.value_rows, self.key_rows, self.value_rows)
        count = queries.shape[0]
        out, _, _ = launch.run(count, ranges, weights=True, features=False)
        if not self.normalised:
            return self.values.numbers(out.sum(dim=0), 1)[:count], shift
        ones = self.values.extra
        sums = out[:, :, ones].sum(dim=0)
        out, _, shifts = launch.run(count, ranges, weights=True, features=False, again=(out, sums))
        top = shifts.amax(dim=0)
        out = (out * torch.exp2(shifts - top)[:, :, None]).sum(dim=0)[:count]
        sums = out[:, ones, None]
        answer = self.values.numbers(out, 1) / sums + self.value_centre
        return answer, shift + top[:count] + sums[:, 0].log2()

    def backward(
        self,
        queries: Tensor,
        answer: Tensor,
        shift: Tensor,
        gradient: Tensor,
        ranges: tuple[Ranges, Ranges] | None,
        wants: tuple[bool, bool, bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The gradients of queries, keys and values, where wanted."""
        scaled = self.scaled(queries)
        rounded = _rounded(gradient.float(), self.values.parts)
        offset = ((answer - self.value_centre) * rounded).sum(dim=1)
        if not self.normalised:
            offset = torch.zeros_like(offset)
        query_rows = self.left(scaled, shift)
        gradient_rows = self.left_values(rounded, offset)
        query_ranges, key_ranges = ranges or (None, None)
        of_queries = of_keys = of_values = None
        if wants[0]:
            launch = _Launch(self, query_rows, gradient_rows, self.key_rows, self.value_rows)
            _, out, _ = launch.run(queries.shape[0], query_ranges, weights=False, features=True)
            of_queries = self._moved(out, 1, 3, scaled)
        if wants[1] or wants[2]:
            launch = _Launch(self, self.key_rows, self.value_rows, query_rows, gradient_rows)
            out_values, out, _ = launch.run(
                self.key_count, key_ranges, weights=wants[2], features=wants[1]
            )
            if wants[1]:
                of_keys = self._moved(out, 0, 0, self.scaled_keys)
            if wants[2]:
                of_values = self.values.numbers(out_values.sum(dim=0), 0)[: self.key_count]
        return of_queries, of_keys, of_values

    def _moved(self, out: Tensor, side: int, ones: int, own: Tensor) -> Tensor:
        # 2 sum dlogits (other - own), of which both parts have seen the same rounding
        out = out.sum(dim=0)[: own.shape[0]]
        total = out[:, self.features.extra + ones, None]
        return 2.0 / _SCALE * (self.features.numbers(out, side) - own * total)


class _Launch(NamedTuple):
    passes: Passes
    left: Tensor
    left_values: Tensor
    right: Tensor
    right_values: Tensor

    def run(
        self,
        row_count: int,
        ranges: Ranges | None,
        weights: bool,
        features: bool,
        again: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[splits, rows, columns] of the sums over values, over features, and [splits, rows]."""
        rows, device = self.left.shape[0], self.left.device
        layout, values = self.passes.features, self.passes.values
        tile = _tile_shape(layout, values, weights, features)
        tiles = self.right.shape[0] // tile.columns
        splits = _splits(rows // tile.rows, tiles, device)
        per_split = -(-tiles // splits)
        splits = -(-tiles // per_split)
        first, last = _padded(ranges, rows, device)
        shifts = torch.zeros(splits if again else 1, rows, device=device)
        out_values = out_features = shifts
        if again:
            out_values, sums = again
        else:
            sums = shifts
            if weights:
                out_values = torch.empty(splits, rows, values.width, device=device)
            if features:
                out_features = torch.empty(splits, rows, layout.leading, device=device)
        interpolation_pass[(rows // tile.rows, splits)](
            self.left, self.left_values, self.right, self.right_values, first, last, sums,
            out_features, out_values, shifts, row_count, tiles, per_split,
            WIDTH=layout.width, OUT=layout.leading, VALUES=values.width,
            FEATURES=features, WEIGHTS=weights, SPLIT=self.passes.parts > 1, ONLINE=bool(again),
            ROWS=tile.rows, COLUMNS=tile.columns, EMULATED=tile.emulated, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        return out_values, out_features, shifts


class _TileShape(NamedTuple):
    rows: int
    columns: int
    warps: int
    stages: int
    emulated: int = 0


def _tile_shape(features: Layout, values: Layout, weights: bool, slopes: bool) -> _TileShape:
    wide = max(features.width, values.width)
    if wide <= 32 and not slopes:
        return _TileShape(128, 128, 8, 3)
    if wide <= 64:
        return _TileShape(128, 64, 8, 3)
    return _TileShape(64, 64, 4, 2)


def _splits(blocks: int, tiles: int, device: torch.device) -> int:
    """Shares of the columns, so that few rows still keep the whole GPU busy."""
    if device.type != "cuda":
        return min(2, tiles)
    wanted = 4 * torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(wanted // blocks, tiles // 4))


def _padded(ranges: Ranges | None, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    first = torch.full((rows,), torch.iinfo(torch.int32).max, dtype=torch.int32, device=device)
    last = torch.zeros(rows, dtype=torch.int32, device=device)
    if ranges is not None:
        count = ranges.first.shape[0]
        some = ranges.first < ranges.last
        first[:count] = torch.where(some, ranges.first, first[:count])
        last[:count] = torch.where(some, ranges.last, 0)
    return first, last


class _Orders(NamedTuple):
    """How queries and keys are put in the order of their episodes, and what each must not see."""

    queries: Tensor
    keys: Tensor
    query_ranges: Ranges
    key_ranges: Ranges

    @classmethod
    def of(cls, query_episodes: Tensor, key_episodes: Tensor) -> _Orders:
        queries, query_order = query_episodes.sort(stable=True)
        keys, key_order = key_episodes.sort(stable=True)
        return cls(query_order, key_order, _own_range(queries, keys), _own_range(keys, queries))


def _own_range(episodes: Tensor, others: Tensor) -> Ranges:
    first = torch.searchsorted(others, episodes, out_int32=True)
    return Ranges(first, torch.searchsorted(others, episodes, right=True, out_int32=True))


def _ordered(rows: Tensor, order: Tensor | None) -> Tensor:
    return rows if order is None else rows[order]


def _restored(rows: Tensor, order: Tensor | None) -> Tensor:
    return rows if order is None else torch.empty_like(rows).index_copy_(0, order, rows)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        orders: _Orders | None,
        normalised: bool,
        parts: int,
    ) -> Tensor:
        key_order = orders.keys if orders else None
        passes = Passes(_ordered(keys, key_order), _ordered(values, key_order), normalised, parts)
        queries = _ordered(queries, orders.queries if orders else None)
        answer, shift = passes.forward(queries, orders.query_ranges if orders else None)
        ctx.save_for_backward(queries, answer, shift)
        ctx.passes, ctx.orders = passes, orders
        ctx.dtypes = queries.dtype, keys.dtype, values.dtype
        return _restored(answer, orders.queries if orders else None).to(values.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        orders: _Orders | None = ctx.orders
        query_order, key_order = (orders.queries, orders.keys) if orders else (None, None)
        found = ctx.passes.backward(
            *ctx.saved_tensors,
            _ordered(gradients[0], query_order),
            (orders.query_ranges, orders.key_ranges) if orders else None,
            ctx.needs_input_grad[:3],
        )
        restored = (
            None if of is None else _restored(of, order).to(dtype)
            for of, order, dtype in zip(
                found, (query_order, key_order, key_order), ctx.dtypes, strict=True
            )
        )
        return (*restored, None, None, None)


def fused_interpolation(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    query_episodes: Tensor | None = None,
    key_episodes: Tensor | None = None,
    normalised: bool = True,
) -> Tensor:
    """`imel.kernels.kernel_interpolation` for float32 and bfloat16 tensors on a GPU."""
    orders = None
    if query_episodes is not None and key_episodes is not None:
        orders = _Orders.of(query_episodes, key_episodes)
    answer: Tensor = _Fused.apply(  # type: ignore[no-untyped-call]
        queries, keys, values, orders, normalised, _parts(keys.dtype)
    )
    return answer


def _parts(dtype: torch.dtype) -> int:
    if dtype == torch.bfloat16:
        return 1
    return _PARTS[torch.get_float32_matmul_precision()]


class FusedMemories:
    """Keys and values that many queries will meet: laid out once, averaged by the fused kernel."""

    def __init__(self, keys: Tensor, values: Tensor, normalised: bool = True) -> None:
        self._passes = Passes(keys, values, normalised, _parts(keys.dtype))

    def __call__(self, queries: Tensor) -> Tensor:
        """sum_i w_i y_i for each query, without a gradient."""
        with torch.no_grad():
            return self._passes.forward(queries, None)[0].to(queries.dtype)
