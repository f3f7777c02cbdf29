"""Launching passes of the GPU kernel: shapes of tiles, shares of the work, room for the results.

Called by `imel.kernels_cuda` with operands that `imel.kernels_layout` made.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from triton import knobs

from imel.kernels_layout import Layout, Ranges
from imel.kernels_triton import interpolation_pass

_GROUPED = {1: 32, 2: 8, 3: 8}
"""Tiles summed within the matrix units, by the parts of a number."""

_EMULATED = not knobs.runtime.interpret
"""Triton's interpreter knows no assembly."""


class Sums(NamedTuple):
    """What a pass adds up, apart for each share of the other side."""

    values: Tensor  # [splits, rows, columns] sum_i w_i v_i
    features: Tensor  # [splits, rows, columns] sum_i w_i (g.v_i) k_i
    shifts: Tensor  # [splits, rows] the power of two that the sums over values lack


class Tiles(NamedTuple):
    """How the work is cut up for the GPU."""

    rows: int
    columns: int
    warps: int
    stages: int
    """Tiles that are loaded ahead."""
    emulated: bool = False
    """Whether one exponential of four is made by the multiply-add units."""


class Pass:
    """Rows of one side against all of the other: operands of features and of values for each."""

    def __init__(
        self,
        layouts: tuple[Layout, Layout],
        left: tuple[Tensor, Tensor],
        right: tuple[Tensor, Tensor],
        ranges: Ranges,
    ) -> None:
        self._features, self._values = layouts
        self._left, self._right, self._ranges = left, right, ranges

    def launch(
        self, weights: bool = False, features: bool = False, again: Tensor | None = None
    ) -> Sums:
        """Sums over the other side; `again` repeats what was lost in an earlier launch."""
        rows, device = len(self._left[0]), self._left[0].device
        tiles = tile_shape(self._features, self._values, weights, features)
        count = len(self._right[0]) // tiles.columns
        share = -(-count // _splits(rows // tiles.rows, count, device))
        splits = -(-count // share)
        shifts = torch.zeros(splits, rows, device=device)
        sums, totals = Sums(shifts, shifts, shifts), shifts
        if again is not None:
            sums = sums._replace(values=again)
            totals = again[:, :, self._values.extra].sum(dim=0)
        elif weights:
            empty = torch.empty(splits, rows, self._values.width, device=device)
            sums = sums._replace(values=empty)
        if features:
            empty = torch.empty(splits, rows, self._features.leading, device=device)
            sums = sums._replace(features=empty)
        interpolation_pass[(rows // tiles.rows, splits)](
            *self._left, *self._right, *self._ranges, totals, *sums,
            len(self._ranges.first), count, share,
            WIDTH=self._features.width, OUT=self._features.leading, VALUES=self._values.width,
            FEATURES=features, WEIGHTS=weights, SPLIT=self._features.parts > 1,
            ONLINE=again is not None, ROWS=tiles.rows, COLUMNS=tiles.columns,
            EMULATED=tiles.emulated, GROUP=_GROUPED[self._features.parts],
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
        return sums


def tile_shape(features: Layout, values: Layout, weights: bool, slopes: bool) -> Tiles:
    """The fastest of those tried on an H200 for what a pass adds up."""
    wide = max(features.width, values.width)
    if features.parts > 1:
        if weights and slopes:
            return Tiles(64, 64, 4, 2) if wide <= 128 else Tiles(64, 32, 4, 2)
        return Tiles(64, 32, 4, 3 if wide <= 128 else 2)
    if wide > 64:
        return Tiles(64, 64, 4, 2) if wide <= 128 else Tiles(64, 32, 4, 2)
    if not slopes:
        return Tiles(64, 128, 4, 3, _EMULATED)
    return Tiles(128, 64, 4, 3) if weights else Tiles(64, 64, 4, 3)


def _splits(blocks: int, tiles: int, device: torch.device) -> int:
    """Shares of the other side, so that few rows still keep the whole GPU busy."""
    if device.type != "cuda":  # Triton's interpreter
        return min(2, tiles)
    wanted = 4 * torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(wanted // blocks, tiles // 4))
