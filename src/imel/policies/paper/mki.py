"""Mean Kernel Interpolation: a kernel average of improved means in a learned feature space.

With z = f^w(s), W = L L^T and u = L^T z it is

    y(s) = sum_i w_i y_i,   w = softmax_i(-|u - u_i|^2)                       (paper note 2)

|u|^2 is the same for every i and cancels, so the logits are 2 u.u_i - |u_i|^2: softmax attention
with a bias for each key. Leaving an episode out is a mask on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from imel.data.arithmetic import mlp
from imel.data.experience import Context
from imel.policies.paper.interpolator import Interpolator, Prediction, Weighted
from imel.policies.paper.paper_policy import (
    KL_BUDGETS,
    MEMORY_SIZES,
    InterpolatorSettings,
    PaperPolicy,
)
from imel.registry import register
from imel.settings import Range, setting

_ROWS = 64
"""Queries answered at once. Their weights on 4,096 keys stay in the cache; those of a whole memory
of queries would be allocated anew each time, which takes longer than computing them."""


@dataclass(frozen=True)
class MkiSettings(InterpolatorSettings):
    """Settings of `MkiPolicy`: the learned kernel, a longer memory, shorter steps at first."""

    memory_size: int = setting(4096, low=2, high=2**40, search=MEMORY_SIZES)
    kl_budget: float | str = setting("3:1", scheduled=True, search=KL_BUDGETS)
    features: int = setting(8, search=Range(2, 32))
    """d_z: dimensions of the feature space."""
    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of the feature network f^w."""
    kernel_scale: float = setting(3.0, search=Range(0.5, 10.0))
    """L starts as this multiple of the identity: how sharp the kernel is at first."""
    normalised: bool = True
    """Weights sum to one (Nadaraya-Watson). `False` is the paper's plain sum, with the missing
    minus sign: its answer grows with the memory (paper note 2)."""


class MeanKernelInterpolation(Interpolator):
    """y(s) = sum_i w_i y_i with w = softmax_i(-(z - z_i)^T W (z - z_i)), z = f^w(s), W = L L^T.

    The feature network has a linear path beside its hidden layers, so that distances in the state
    itself are available from the first step.
    """

    def __init__(self, state_dim: int, value_dim: int, settings: MkiSettings) -> None:
        super().__init__()
        del value_dim  # whatever is remembered is averaged as it is
        self.settings = settings
        self.network = mlp(state_dim, settings.hidden, settings.features)  # f^w
        self.skip = nn.Linear(state_dim, settings.features, bias=False)
        self.L = nn.Parameter(settings.kernel_scale * torch.eye(settings.features))

    def embed(self, states: Tensor) -> Tensor:
        """Return u = L^T z: features in which the kernel is a plain Gaussian."""  # [T, d_z]
        z: Tensor = self.network(states) + self.skip(states)
        return z @ self.L

    def condition(self, context: Context) -> Weighted:
        """Precompute the features of the memories."""
        values, normalised = context.values, self.settings.normalised
        with torch.no_grad():
            keys = self.embed(context.states)

        def weights(states: Tensor) -> Tensor:
            return kernel_weights(self.embed(states), keys, normalised)

        def answer(states: Tensor) -> Prediction:  # a few states at a time
            queries = self.embed(states)
            return Prediction(kernel_interpolation(queries, keys, values, normalised=normalised))

        return Weighted(weights, values, answer)

    def leave_one_out(self, context: Context, targets: Context) -> Prediction:
        """The kernel average over all other episodes."""
        queries, keys = self.embed(targets.states), self.embed(context.states)
        episodes, normalised = (targets.episodes, context.episodes), self.settings.normalised
        return Prediction(kernel_interpolation(queries, keys, context.values, episodes, normalised))


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
    episodes: tuple[Tensor, Tensor] | None = None,
    normalised: bool = True,
) -> Tensor:
    """Return y_t = sum_i w_ti y_i: queries [T, d], keys [N, d], values [N, d_v] -> [T, d_v].

    :param episodes: of queries [T] and keys [N], where keys of a query's own are to be left out
    """
    answers = []
    for start in range(0, max(1, len(queries)), _ROWS):
        rows, own = slice(start, start + _ROWS), None
        if episodes is not None:
            own = episodes[0][rows, None] == episodes[1]  # [rows, N]
        answers.append(kernel_weights(queries[rows], keys, normalised, masked=own) @ values)
    return torch.cat(answers)


@register("mki", label="IMeL, MKI")
class MkiPolicy(PaperPolicy):
    """Mean Kernel Interpolation: every action is a weighted mean of remembered ones."""

    Settings = MkiSettings
    interpolator: MeanKernelInterpolation
    interpolator_class = MeanKernelInterpolation
