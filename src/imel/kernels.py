"""Exact interpolation with a softmax kernel, and its leave-one-episode-out form.

The Mean Kernel Interpolation of the paper, with W = L L^T and u = L^T z, is

    y(s) = sum_i w_i y_i,   w = softmax_i(-|u - u_i|^2)                       (paper note 2)

|u|^2 is the same for every i and cancels, so the logits are 2 u.u_i - |u_i|^2: softmax attention
with a bias for each key, and leaving an episode out is a mask on it. Queries go through in tiles
and the backward pass recomputes the weights, so no [T, N] matrix outlives a tile.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_TILE_ELEMENTS = 1 << 19
"""Weights held at once: 2 MiB of float32, which stays in cache."""


def kernel_logits(queries: Tensor, keys: Tensor, normalised: bool = True) -> Tensor:
    """-|u_t - u_i|^2, less the part that a softmax over i cancels if `normalised`."""  # [T, N]
    logits = torch.addmm(-keys.square().sum(dim=1), queries, keys.T, alpha=2.0)
    if not normalised:
        logits -= queries.square().sum(dim=1, keepdim=True)
    return logits


def kernel_weights(queries: Tensor, keys: Tensor, normalised: bool = True) -> Tensor:
    """The share of each key in the answer for each query."""  # [T, N]
    logits = kernel_logits(queries, keys, normalised)
    return logits.softmax(dim=1) if normalised else logits.exp_()


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
    answer: Tensor = _KernelInterpolation.apply(  # type: ignore[no-untyped-call]
        queries, keys, values, query_episodes, key_episodes, normalised
    )
    return answer


class _KernelInterpolation(torch.autograd.Function):
    """With p the weights, g the answer's gradient and s = |queries' own part|:

    dL/dlogits = p (g.v - g.y) if normalised, p (g.v) if not;
    dq = 2 dlogits k, dk = 2 dlogits^T q - 2 k sum_t dlogits, dv = p^T g.
    """

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        query_episodes: Tensor | None,
        key_episodes: Tensor | None,
        normalised: bool,
    ) -> Tensor:
        answer = torch.empty(
            queries.shape[0], values.shape[1], dtype=values.dtype, device=values.device
        )
        for tile in _tiles(queries.shape[0], keys.shape[0]):
            weights = _tile_weights(queries, keys, query_episodes, key_episodes, normalised, tile)
            torch.mm(weights, values, out=answer[tile])
        ctx.save_for_backward(queries, keys, values, answer, query_episodes, key_episodes)
        ctx.normalised = normalised
        return answer

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        queries, keys, values, answer, query_episodes, key_episodes = ctx.saved_tensors
        wants_queries, wants_keys, wants_values = ctx.needs_input_grad[:3]
        d_queries = torch.zeros_like(queries)
        d_keys = torch.zeros_like(keys)
        d_values = torch.zeros_like(values)
        d_bias = torch.zeros_like(keys[:, 0])
        for tile in _tiles(queries.shape[0], keys.shape[0]):
            weights = _tile_weights(
                queries, keys, query_episodes, key_episodes, ctx.normalised, tile
            )
            if wants_values:
                d_values.addmm_(weights.T, gradient[tile])
            if not (wants_queries or wants_keys):
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
        return 2.0 * d_queries, 2.0 * d_keys, d_values, None, None, None


def _tiles(queries: int, keys: int) -> list[slice]:
    rows = max(1, _TILE_ELEMENTS // max(1, keys))
    return [slice(start, min(start + rows, queries)) for start in range(0, queries, rows)]


def _tile_weights(
    queries: Tensor,
    keys: Tensor,
    query_episodes: Tensor | None,
    key_episodes: Tensor | None,
    normalised: bool,
    tile: slice,
) -> Tensor:
    logits = kernel_logits(queries[tile], keys, normalised)
    if query_episodes is not None and key_episodes is not None:
        own = query_episodes[tile, None] == key_episodes[None, :]
        logits.masked_fill_(own, -torch.inf)
    return torch.softmax(logits, dim=1, out=logits) if normalised else logits.exp_()
