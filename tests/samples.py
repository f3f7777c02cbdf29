"""Made-up experiences and contexts, for tests of what improves and what interpolates them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Normal

from imel.data.experience import Context

RAGGED = (5, 1, 9, 3, 7)


class Batch(NamedTuple):
    """What the improvement is computed from, in the order its functions take it."""

    advantages: Tensor  # [T]
    actions: Tensor  # [T, d_a]
    means: Tensor  # [T, d_a]
    stds: Tensor  # [T, d_a]


def experiences(steps: int = 20, action_dim: int = 3) -> Batch:
    """A batch in which every step and dimension has a sigma of its own."""
    generator = torch.Generator().manual_seed(0)
    options: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    means = torch.randn(steps, action_dim, **options)
    stds = 0.1 + torch.rand(steps, action_dim, **options)
    actions = means + stds * torch.randn(steps, action_dim, **options)
    return Batch(torch.randn(steps, **options), actions, means, stds)


def mean_kl(new_means: Tensor, means: Tensor, stds: Tensor) -> float:
    """1/T sum_t |mu'_t - mu_t|^2 / (2 sigma_t^2): the mean KL of two policies with equal sigma."""
    return float((((new_means - means) / stds).double().square().sum(dim=-1) / 2.0).mean())


def ragged_context(
    lengths: Sequence[int] = RAGGED,
    state_dim: int = 3,
    value_dim: int = 2,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Context:
    """Random states with random values, in episodes of the given lengths.

    Ids are neither consecutive nor sorted, and rows of an episode are not contiguous: a memory
    promises none of that.
    """
    generator = torch.Generator().manual_seed(seed)
    count = sum(lengths)
    ids = torch.tensor([(7 * i) % 31 for i in range(len(lengths))])
    episodes = ids.repeat_interleave(torch.tensor(list(lengths)))
    order = torch.randperm(count, generator=generator)
    return Context(
        torch.randn(count, state_dim, generator=generator, dtype=dtype),
        torch.randn(count, value_dim, generator=generator, dtype=dtype),
        episodes[order],
    )


def smooth_field(states: Tensor) -> Tensor:
    """A smooth function of states [N, >=2] with two values, within [-1, 1]."""
    return torch.stack([torch.sin(2.0 * states[:, 0]), torch.tanh(states[:, 1])], dim=1)


def smooth_context(episodes: int = 12, length: int = 20, seed: int = 0) -> Context:
    """Episodes that visit a smooth field of two states, as random walks from random places."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randn(episodes, 1, 2, generator=generator)
    walks = starts + 0.3 * torch.randn(episodes, length, 2, generator=generator).cumsum(dim=1)
    states = walks.reshape(-1, 2).clamp(-3.0, 3.0)
    return Context(states, smooth_field(states), torch.arange(episodes).repeat_interleave(length))


def log_density(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """log N(x; mean, std), element by element."""
    density: Tensor = Normal(mean, std).log_prob(x)  # type: ignore[no-untyped-call]
    return density
