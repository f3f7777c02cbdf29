"""Kernel interpolation fused on the GPU: no [T, N] matrix, one kernel for forward and backward.

`imel.kernels` hands tensors on a GPU over to here. With a = sqrt(2 log2 e) u, from the centre of
the keys, the logit in base 2 of query t and key i is one dot product of rows with extra columns:

    a_t.a_i - |a_i|^2 / 2 - shift_t

Values carry a column of ones, whose weighted sum is the normaliser. Forward, the shift is
|a_t|^2 / 2 less some headroom: distances are never negative, so sums cannot overflow, and rows so
far from all keys that theirs underflow are done again with a running maximum. Backward, the shift
is the logarithm of the sum and the weights are made anew. float32 numbers are as exact as
`torch.set_float32_matmul_precision` asks: medium, high or highest.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from imel.kernels_launch import Pass
from imel.kernels_layout import FAR, LEFT, RIGHT, Carried, Layout, Orders, Ranges, rounded

_SCALE = math.sqrt(2.0 * math.log2(math.e))
_HEADROOM = 64.0
"""Weights go up to 2^64: the sum of a hundred million is then still far below float32's end."""
_PARTS = {"medium": 1, "high": 2, "highest": 3}
_WIDEST_FEATURES, _WIDEST_VALUES = 256, 128


class Passes:
    """The memories' operands, and what is done with them for given queries."""

    def __init__(
        self, keys: Tensor, values: Tensor, order: Tensor, normalised: bool, parts: int
    ) -> None:
        self._normalised = normalised
        self._features = Layout(keys.shape[1], parts, extras=6)
        self._values = Layout(values.shape[1], min(parts, 2), extras=3)
        self._layouts = (self._features, self._values)
        # Distances and averages do not depend on the origin; near the centre no bits are wasted
        self._centre = keys.float().mean(dim=0)
        self._value_centre: Tensor | None = None
        if normalised and values.dtype != torch.bfloat16:  # which is exact where it is
            self._value_centre = values.float().mean(dim=0)
        self._count, carried = len(keys), Carried(0, beyond=FAR)
        self._memories = (
            self._features.rows(keys, RIGHT, order, 3, carried, self._centre, _SCALE),
            self._values.rows(values, RIGHT, order, 0, centre=self._value_centre),
        )

    def forward(self, queries: Tensor, order: Tensor, ranges: Ranges) -> tuple[Tensor, Tensor]:
        """The answers [T, d_v] in order, and the shifts [T] with which the weights sum to one."""
        headroom = _HEADROOM if self._normalised else 0.0
        rows = self._query_rows(queries, order, Carried(3, headroom=headroom, beyond=FAR))
        shift = -self._features.carried(rows[: len(order)], 3)
        run = Pass(self._layouts, (rows, self._memories[1]), self._memories, ranges)
        sums = run.launch(weights=True)
        if not self._normalised:
            return self._values.numbers(_total(sums.values), RIGHT)[: len(order)], shift
        sums = run.launch(weights=True, again=sums.values)
        top = sums.shifts.amax(dim=0)
        total = _total(sums.values * torch.exp2(sums.shifts - top)[:, :, None])[: len(order)]
        normaliser = total[:, self._values.extra, None]
        answer = self._values.numbers(total, RIGHT) / normaliser
        if self._value_centre is not None:
            answer += self._value_centre
        return answer, shift + top[: len(order)] + normaliser[:, 0].log2()

    def backward(
        self,
        queries: Tensor,
        answer: Tensor,
        shift: Tensor,
        gradient: Tensor,
        orders: Orders,
        wants: tuple[bool, bool, bool],
    ) -> list[Tensor | None]:
        """The gradients of queries, keys and values in order, where wanted."""
        query_rows = self._query_rows(queries, orders.queries, Carried(3, shift, beyond=FAR))
        targets = (query_rows, self._gradient_rows(gradient, orders.queries, answer))
        found: list[Tensor | None] = [None, None, None]
        if wants[0]:
            sums = Pass(self._layouts, targets, self._memories, orders.query_ranges).launch(
                features=True
            )
            found[0] = self._moved(sums.features, RIGHT, 3, query_rows[: len(queries)])
        if wants[1] or wants[2]:
            run = Pass(self._layouts, self._memories, targets, orders.key_ranges)
            sums = run.launch(weights=wants[2], features=wants[1])
            if wants[1]:
                found[1] = self._moved(sums.features, LEFT, 0, self._memories[0][: self._count])
            if wants[2]:
                found[2] = self._values.numbers(_total(sums.values), LEFT)[: self._count]
        return found

    def _query_rows(self, queries: Tensor, order: Tensor, carried: Carried) -> Tensor:
        return self._features.rows(queries, LEFT, order, 0, carried, self._centre, _SCALE)

    def _gradient_rows(self, gradient: Tensor, order: Tensor, answer: Tensor) -> Tensor:
        offset = None
        if self._normalised:
            centred = answer if self._value_centre is None else answer - self._value_centre
            seen = rounded(gradient[order], self._values.parts)
            offset = Carried(0, (centred * seen).sum(dim=1))  # g.y
        return self._values.rows(gradient, LEFT, order, -1, offset)

    def _moved(self, sums: Tensor, side: int, ones: int, own: Tensor) -> Tensor:
        """2 sum dlogits (other - own), where both terms have seen the same rounded dlogits."""
        sums = _total(sums)[: len(own)]
        total = sums[:, self._features.extra + ones, None]
        others = self._features.numbers(sums, side)
        return 2.0 / _SCALE * (others - self._features.numbers(own, 1 - side) * total)


def _total(sums: Tensor) -> Tensor:
    return sums[0] if len(sums) == 1 else sums.sum(dim=0)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        orders: Orders,
        normalised: bool,
        parts: int,
    ) -> Tensor:
        ctx.dtypes = queries.dtype, keys.dtype, values.dtype
        passes = Passes(keys, values, orders.keys, normalised, parts)
        answer, shift = passes.forward(queries, orders.queries, orders.query_ranges)
        ctx.save_for_backward(queries, answer, shift)
        ctx.passes, ctx.orders = passes, orders
        return _restored(answer, orders.queries, values.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        orders: Orders = ctx.orders
        found = ctx.passes.backward(
            *ctx.saved_tensors, gradients[0], orders, ctx.needs_input_grad[:3]
        )
        places = (orders.queries, orders.keys, orders.keys)
        restored = (
            None if of is None else _restored(of, order, dtype)
            for of, order, dtype in zip(found, places, ctx.dtypes, strict=True)
        )
        return (*restored, None, None, None)


def _restored(rows: Tensor, order: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(rows, dtype=dtype).index_copy_(0, order, rows.to(dtype))


def fused_interpolation(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    query_episodes: Tensor | None = None,
    key_episodes: Tensor | None = None,
    normalised: bool = True,
) -> Tensor:
    """`imel.kernels.kernel_interpolation` for float32 and bfloat16 tensors on a GPU."""
    if not len(queries):
        return values.new_empty(0, values.shape[1])
    if query_episodes is None or key_episodes is None:
        orders = Orders.none(queries, keys)
    else:
        orders = Orders.of(query_episodes, key_episodes)
    parts = _parts(keys.dtype)
    answers: list[Tensor] = [
        _Fused.apply(queries, keys, some, orders, normalised, parts)  # type: ignore[no-untyped-call]
        for some in torch.split(values, _values_at_once(parts), dim=1)
    ]
    return answers[0] if len(answers) == 1 else torch.cat(answers, dim=1)


def fits(features: int, dtype: torch.dtype) -> bool:
    """Whether features of so many dimensions go through the kernel."""
    return Layout(features, _parts(dtype), extras=6).width <= _WIDEST_FEATURES


def _parts(dtype: torch.dtype) -> int:
    return 1 if dtype == torch.bfloat16 else _PARTS[torch.get_float32_matmul_precision()]


def _values_at_once(parts: int) -> int:
    return max(dim for dim in (32, 64) if Layout(dim, min(parts, 2), 3).width <= _WIDEST_VALUES)


class FusedMemories:
    """Keys and values that many queries will meet: laid out once, averaged by the fused kernel."""

    def __init__(self, keys: Tensor, values: Tensor, normalised: bool = True) -> None:
        parts, order = _parts(keys.dtype), torch.arange(len(keys), device=keys.device)
        self._passes = [
            Passes(keys, some, order, normalised, parts)
            for some in torch.split(values, _values_at_once(parts), dim=1)
        ]

    def __call__(self, queries: Tensor) -> Tensor:
        """sum_i w_i y_i for each query, without a gradient."""  # [T, d_v]
        order = torch.arange(len(queries), device=queries.device)
        nothing = Ranges.none(len(queries), queries.device)
        with torch.no_grad():
            answers = [passes.forward(queries, order, nothing)[0] for passes in self._passes]
        return torch.cat(answers, dim=1).to(queries.dtype)
