"""Interpolation with a softmax kernel, and its leave-one-episode-out form.

The Mean Kernel Interpolation of the paper, with W = L L^T and u = L^T z, is

    y(s) = sum_i w_i y_i,   w = softmax_i(-|u - u_i|^2)                       (paper note 2)

|u|^2 is the same for every i and cancels, so the logits are 2 u.u_i - |u_i|^2: softmax attention
with a bias for each key. Leaving an episode out is a mask on it.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROWS = 64
"""Queries answered at once. Their weights on 4,096 keys stay in the cache; those of a whole memory
of queries would be allocated anew each time, which takes longer than computing them."""


def kernel_weights(
    queries: Tensor, keys: Tensor, normalised: bool = True, masked: Tensor | None = None
) -> Tensor:
    """Return the weight of each key at each query; where `masked` [T, N] it is zero.

    queries [T, d], keys [N, d] -> [T, N]: softmax_i(-|u_t - u_i|^2), or without `normalised` the
    exponential alone.
    """
    # Distances do not depend on the origin; near the keys' centre float32 loses less of them
    centre = keys.detach().mean(dim=0)
    queries, keys = queries - centre, keys - centre
    logits = torch.addmm(-keys.square().sum(dim=1), queries, keys.T, alpha=2.0)
    if masked is not None:
        with torch.no_grad():  # a weight of zero passes no gradient on
            logits.masked_fill_(masked, -torch.inf)
    if normalised:
        return logits.softmax(dim=1)
    return (logits - queries.square().sum(dim=1, keepdim=True)).exp()


def kernel_interpolation(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    query_episodes: Tensor | None = None,
    key_episodes: Tensor | None = None,
    normalised: bool = True,
) -> Tensor:
    """Return y_t = sum_i w_ti y_i, over the i whose episode differs from t's if episodes are given.

    queries [T, d], keys [N, d], values [N, d_v] -> [T, d_v]. Every query must have a key outside
    its own episode.
    """
    if (query_episodes is None) != (key_episodes is None):
        raise ValueError("give the episodes of queries and keys, or of neither")
    answers = []
    for start in range(0, max(1, len(queries)), _ROWS):
        rows, own = slice(start, start + _ROWS), None
        if query_episodes is not None and key_episodes is not None:
            own = query_episodes[rows, None] == key_episodes  # [rows, N]
        answers.append(kernel_weights(queries[rows], keys, normalised, masked=own) @ values)
    return torch.cat(answers)
