"""Exact interpolation with a softmax kernel, and its leave-one-episode-out form.

The Mean Kernel Interpolation of the paper, with W = L L^T and u = L^T z, is

    y(s) = sum_i w_i y_i,   w = softmax_i(-|u - u_i|^2)                       (paper note 2)

|u|^2 is the same for every i and cancels, so the logits are 2 u.u_i - |u_i|^2: softmax attention
with a bias for each key, and leaving an episode out is a mask on it. Queries go through in tiles
and the backward pass recomputes the weights, so no [T, N] matrix outlives a tile. Where Numba is
installed and it pays, `imel.kernels_compiled` does the same in one pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

_TILE_ELEMENTS = 1 << 19
"""Weights held at once: 2 MiB of float32, which stays in cache."""
_NARROW = 64
"""Features or values up to which the compiled form is the faster one; beyond, matrix products."""
_FEW_QUERIES, _FEW_KEYS = 32, 1 << 15
"""Up to these, acting is compiled: no quicker, but the simulator is that runs next, for a matrix
library's widest instructions slow the processor down for a while."""
_FEW_PAIRS = 1 << 21
"""Pairs up to which one thread of the compiled form is faster than several of torch."""


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Numbers below 1e-38 count as zero in here.

    The far memories of a sharp kernel have such weights, and arithmetic with them is several
    times slower.
    """
    tiny = torch.tensor([1e-38]) * 1e-2
    before = float(tiny) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def kernel_logits(queries: Tensor, keys: Tensor, normalised: bool = True) -> Tensor:
    """-|u_t - u_i|^2, less the part that a softmax over i cancels if `normalised`."""  # [T, N]
    logits = torch.addmm(-keys.square().sum(dim=1), queries, keys.T, alpha=2.0)
    if not normalised:
        logits -= queries.square().sum(dim=1, keepdim=True)
    return logits


class PreparedKeys:
    """Keys that many queries will meet: what depends on them alone is computed once."""

    def __init__(self, keys: Tensor, normalised: bool = True) -> None:
        # Distances do not change with the origin; near the keys' centre they lose less precision
        self._centre = keys.mean(dim=0)
        centred = keys - self._centre
        self._doubled = (2.0 * centred).T.contiguous()  # [d, N]
        self._bias = -centred.square().sum(dim=1)  # [N]
        self._normalised = normalised

    def weights(self, queries: Tensor, out: Tensor | None = None) -> Tensor:
        """The share of each key in the answer for each query, in `out` if that is given."""
        queries = queries - self._centre
        logits = torch.addmm(self._bias, queries, self._doubled, out=out)  # [T, N]
        if self._normalised:
            return torch.softmax(logits, dim=1, out=out)
        return logits.sub_(queries.square().sum(dim=1, keepdim=True)).exp_()


class PreparedAverage:
    """The kernel average over fixed keys and values, for many small batches of queries.

    Without gradients. What depends on keys and values alone is computed once, and what is as long
    as the keys is allocated once.
    """

    def __init__(self, keys: Tensor, values: Tensor, normalised: bool = True) -> None:
        self.values = values
        self._keys = PreparedKeys(keys, normalised)
        self._logits = values.new_empty(0, keys.shape[0])
        form = _compiled_form(keys[:_FEW_QUERIES], keys, values) if normalised else None
        small = len(keys) <= _FEW_KEYS
        self._packed = form.PackedKeys(keys, values) if form is not None and small else None

    def __call__(self, queries: Tensor) -> Tensor:
        """y at each query."""  # [T, d] -> [T, d_v]
        if self._packed is not None and len(queries) <= _FEW_QUERIES:
            answer: Tensor = self._packed.average(queries)[0]
            return answer
        if self._logits.shape[0] != queries.shape[0]:
            self._logits = self.values.new_empty(queries.shape[0], self._logits.shape[1])
        return self._keys.weights(queries, out=self._logits) @ self.values

    def weights(self, queries: Tensor) -> Tensor:
        """The share of each key in the answer for each query."""  # [T, N]
        return self._keys.weights(queries)


@cache
def compiled_module() -> ModuleType | None:
    """The compiled form, or None where Numba is missing or has nowhere to keep what it made."""
    try:
        from imel import kernels_compiled

        kernels_compiled.compile_elsewhere()
    except (ImportError, RuntimeError):
        return None
    return kernels_compiled


def on_cpu(column: Tensor) -> bool:
    """Whether the compiled form can read it: single precision in main memory."""
    return column.dtype == torch.float32 and column.device.type == "cpu"


def _compiled_form(queries: Tensor, keys: Tensor, values: Tensor) -> ModuleType | None:
    """The compiled form where it can be used and is faster."""
    if not (on_cpu(queries) and on_cpu(keys) and on_cpu(values)):
        return None
    if len(keys) == 0 or max(keys.shape[1], values.shape[1]) > _NARROW:
        return None
    if torch.get_num_threads() > 2 and queries.shape[0] * keys.shape[0] > _FEW_PAIRS:
        return None
    return compiled_module()


def kernel_interpolation(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    query_episodes: Tensor | None = None,
    key_episodes: Tensor | None = None,
    normalised: bool = True,
) -> Tensor:
    """y_t = sum_i w_ti y_i, over the i whose episode differs from t's where episodes are given.

    queries [T, d], keys [N, d], values [N, d_v] -> [T, d_v]. Differentiable in all three. Every
    query must have a key outside its own episode.
    """
    if (query_episodes is None) != (key_episodes is None):
        raise ValueError("give the episodes of queries and keys, or of neither")
    if queries.is_cuda and _is_fused(queries.shape[1], queries.dtype):
        from imel.kernels_cuda import fused_interpolation

        return fused_interpolation(queries, keys, values, query_episodes, key_episodes, normalised)
    form = _compiled_form(queries, keys, values)
    if form is not None and normalised and not values.requires_grad:
        compiled: Tensor = form.CompiledInterpolation.apply(
            queries, keys, values, query_episodes, key_episodes
        )
        return compiled
    if query_episodes is None or key_episodes is None:
        return _interpolate(queries, keys, values, [], normalised)
    # In the order of episodes, what a query must not see is one block of the weights
    query_order, key_order = query_episodes.argsort(), key_episodes.argsort()
    blocks = _own_blocks(query_episodes[query_order], key_episodes[key_order])
    answer = _interpolate(
        queries[query_order], keys[key_order], values[key_order], blocks, normalised
    )
    return answer[query_order.argsort()]


@cache
def _is_fused(features: int, dtype: torch.dtype) -> bool:
    """Whether the GPU kernel takes such features; if not, that is said once."""
    if dtype == torch.float64:
        return False
    if find_spec("triton") is None:
        warnings.warn("without Triton, interpolation on the GPU is not fused", stacklevel=3)
        return False
    from imel.kernels_cuda import fits

    if not fits(features, dtype):
        warnings.warn(f"interpolation of {features} features is not fused", stacklevel=3)
        return False
    return True


def _interpolate(
    queries: Tensor, keys: Tensor, values: Tensor, blocks: list[_Block], normalised: bool
) -> Tensor:
    answer: Tensor = _KernelInterpolation.apply(  # type: ignore[no-untyped-call]
        queries, keys, values, blocks, normalised
    )
    return answer


class _KernelInterpolation(torch.autograd.Function):
    """With p the weights, v the values, y the answer and g its gradient:

    dlogits = p (g.v - g.y) if normalised, p (g.v) if not;
    dq = 2 dlogits k, dk = 2 dlogits^T q - 2 k sum_t dlogits, dv = p^T g,
    and unnormalised logits, which contain -|q|^2, add -2 q sum_i dlogits to dq.
    """

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        blocks: list[_Block],
        normalised: bool,
    ) -> Tensor:
        answer = values.new_empty(queries.shape[0], values.shape[1])
        tiles = _tiles(queries.shape[0], keys.shape[0])
        for tile in tiles:
            weights = _tile_weights(queries, keys, blocks, normalised, tile)
            torch.mm(weights, values, out=answer[tile])
        # One tile's weights are worth keeping; more than one are made again when needed
        kept = weights if len(tiles) == 1 else None
        ctx.save_for_backward(queries, keys, values, answer, kept)
        ctx.blocks, ctx.normalised = blocks, normalised
        return answer

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        queries, keys, values, answer, kept = ctx.saved_tensors
        wants_features = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        wants_values = ctx.needs_input_grad[2]
        d_queries, d_keys = torch.zeros_like(queries), torch.zeros_like(keys)
        d_values, d_bias = torch.zeros_like(values), keys.new_zeros(keys.shape[0])
        for tile in _tiles(queries.shape[0], keys.shape[0]):
            weights = kept
            if weights is None:
                weights = _tile_weights(queries, keys, ctx.blocks, ctx.normalised, tile)
            if wants_values:
                d_values.addmm_(weights.T, gradient[tile])
            if not wants_features:
                continue
            d_logits = gradient[tile] @ values.T
            if ctx.normalised:
                d_logits -= (gradient[tile] * answer[tile]).sum(dim=1, keepdim=True)
            d_logits *= weights
            torch.mm(d_logits, keys, out=d_queries[tile])
            if not ctx.normalised:
                d_queries[tile] -= queries[tile] * d_logits.sum(dim=1, keepdim=True)
            d_keys.addmm_(d_logits.T, queries[tile])
            d_bias += d_logits.sum(dim=0)
        d_keys -= keys * d_bias[:, None]
        return 2.0 * d_queries, 2.0 * d_keys, d_values, None, None


_Block = tuple[int, int, int, int]
"""First and last query (exclusive), first and last key of an episode."""


def _own_blocks(query_episodes: Tensor, key_episodes: Tensor) -> list[_Block]:
    """For sorted episodes, where the queries of each meet its own keys."""
    episodes, counts = torch.unique_consecutive(query_episodes, return_counts=True)
    ends = counts.cumsum(0)
    first = torch.searchsorted(key_episodes, episodes)
    last = torch.searchsorted(key_episodes, episodes, right=True)
    columns = (ends - counts, ends, first, last)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _tiles(queries: int, keys: int) -> list[slice]:
    rows = max(1, _TILE_ELEMENTS // max(1, keys))
    return [slice(start, min(start + rows, queries)) for start in range(0, queries, rows)]


def _tile_weights(
    queries: Tensor, keys: Tensor, blocks: list[_Block], normalised: bool, tile: slice
) -> Tensor:
    logits = kernel_logits(queries[tile], keys, normalised)
    for start, end, first, last in blocks:
        if start < tile.stop and end > tile.start:
            rows = slice(max(start - tile.start, 0), end - tile.start)
            logits[rows, first:last] = -torch.inf
    return torch.softmax(logits, dim=1, out=logits) if normalised else logits.exp_()
