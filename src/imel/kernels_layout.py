"""How rows of numbers become the bfloat16 operands of the GPU kernel.

Called by `imel.kernels_cuda`. The matrix units take bfloat16, so a float32 number goes in as a sum
of one, two or three bfloat16 numbers, and a product of two as the sum of the products that matter.
Extra columns carry numbers that are to be added to every product, against ones on the other side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from imel.kernels_triton import lay_out

PADDING = 128
"""Rows are padded to a multiple of this, of which tiles are fractions."""
FAR = -1e30
"""A logit whose weight is zero."""
LEFT, RIGHT = 0, 1
_LAID_OUT_ROWS = 32
# Which part of a left number meets which part of a right one. Products with the weights need only
# the leading pairs, in which every part that matters occurs
_PAIRS = {
    1: ((0, 0),),
    2: ((0, 0), (0, 1), (1, 0)),
    3: ((0, 0), (1, 1), (0, 1), (1, 0), (0, 2), (2, 0)),
}
_LEADING_PAIRS = {1: 1, 2: 3, 3: 2}


@dataclass(frozen=True)
class Layout:
    """Columns: the leading pairs' parts, the extra numbers, the other pairs' parts, zeros."""

    dim: int
    parts: int
    extras: int

    @property
    def stride(self) -> int:
        """Columns of one part, a power of two.

        A column's place in its part is then a matter of bits. Division by three becomes packed
        16-bit additions, of which the assembler that comes with Triton 3.6 loses a constant.
        """
        return _power_of_two(self.dim, least=8)

    @property
    def width(self) -> int:
        """Columns in all."""
        return _power_of_two(len(_PAIRS[self.parts]) * self.stride + self.extras, least=16)

    @property
    def extra(self) -> int:
        """Where the extra columns begin."""
        return _LEADING_PAIRS[self.parts] * self.stride

    @property
    def leading(self) -> int:
        """Columns that a product with the weights needs."""
        return _power_of_two(self.extra + self.extras, least=16)

    def rows(
        self,
        numbers: Tensor,
        side: int,
        order: Tensor,
        ones: int,
        carried: Carried | None = None,
        centre: Tensor | None = None,
        scale: float = 1.0,
    ) -> Tensor:
        """The operand of a side: `scale * (numbers - centre)` in some order, and extra columns.

        There are ones in three extra columns from `ones` on (nowhere if negative), and three that
        sum to what is `carried`. Rows of zeros follow up to a multiple of the padding.
        """
        count, pairs = len(order), _PAIRS[self.parts]
        out = numbers.new_empty(-(-count // PADDING) * PADDING, self.width, dtype=torch.bfloat16)
        if centre is None:
            centre = numbers.new_zeros(self.dim, dtype=torch.float32)
        numbers, centre = (pad(x, (0, self.stride - self.dim)) for x in (numbers, centre))
        given = None if carried is None else carried.numbers
        lay_out[(len(out) // _LAID_OUT_ROWS,)](
            numbers.contiguous(), order, centre, centre if given is None else given, out, count,
            scale, carried.headroom if carried else 0.0, carried.beyond if carried else 0.0,
            DIM=self.stride, WIDTH=self.width, PARTS=self.parts, PAIRS=len(pairs),
            LEADING=_LEADING_PAIRS[self.parts], EXTRAS=self.extras, ONES=ones,
            PARTS_OF_PAIRS=sum(pair[side] << 2 * place for place, pair in enumerate(pairs)),
            CARRIED=carried.place if carried else -1, OF_DISTANCE=given is None,
            ROWS=_LAID_OUT_ROWS,
        )  # fmt: skip
        return out

    def carried(self, rows: Tensor, place: int) -> Tensor:
        """The number that three extra columns sum to."""
        start = self.extra + place
        return rows[:, start : start + 3].float().sum(dim=1)

    def numbers(self, products: Tensor, side: int) -> Tensor:
        """sum_i w_i x_i, from the products of weights with the operand of a side."""
        pairs = _PAIRS[self.parts][: _LEADING_PAIRS[self.parts]]
        parts = [pair[side] for pair in pairs]
        total = products[:, : self.dim].float()
        for part in range(1, max(parts) + 1):
            start = parts.index(part) * self.stride
            total = total + products[:, start : start + self.dim].float()
        return total


class Carried(NamedTuple):
    """A number in three extra columns of each row."""

    place: int
    """The first of the three columns."""
    numbers: Tensor | None = None
    """The negatives of the numbers; if None, they are `headroom` less half the squared norms."""
    headroom: float = 0.0
    beyond: float = 0.0
    """The number of padding rows."""


def rounded(numbers: Tensor, parts: int) -> Tensor:
    """What is left of float32 numbers in a sum of so many bfloat16 ones."""
    rest = numbers.float()
    for _ in range(parts):
        rest = rest - rest.to(torch.bfloat16).float()
    return numbers - rest


def _power_of_two(number: int, least: int) -> int:
    return max(least, 1 << (number - 1).bit_length())


class Ranges(NamedTuple):
    """For each row, the first and last (exclusive) row of the other side that it must not see."""

    first: Tensor
    last: Tensor

    @classmethod
    def of(cls, episodes: Tensor, others: Tensor) -> Ranges:
        """Where each of the sorted episodes is among the others, sorted as well."""
        first = torch.searchsorted(others, episodes, out_int32=True)
        return cls(first, torch.searchsorted(others, episodes, right=True, out_int32=True))

    @classmethod
    def none(cls, rows: int, device: torch.device) -> Ranges:
        """Nothing is left out."""
        nothing = torch.zeros(rows, dtype=torch.int32, device=device)
        return cls(nothing, nothing)


class Orders(NamedTuple):
    """Queries and keys in the order of their episodes, and what each must not see."""

    queries: Tensor
    keys: Tensor
    query_ranges: Ranges
    key_ranges: Ranges

    @classmethod
    def of(cls, query_episodes: Tensor, key_episodes: Tensor) -> Orders:
        """Sorted by episode, what a row must not see is one range."""
        queries, query_order = query_episodes.sort(stable=True)
        keys, key_order = key_episodes.sort(stable=True)
        return cls(query_order, key_order, Ranges.of(queries, keys), Ranges.of(keys, queries))

    @classmethod
    def none(cls, queries: Tensor, keys: Tensor) -> Orders:
        """As they come, and nothing is left out."""
        orders = [torch.arange(len(side), device=side.device) for side in (queries, keys)]
        ranges = [Ranges.none(len(side), side.device) for side in (queries, keys)]
        return cls(orders[0], orders[1], ranges[0], ranges[1])
