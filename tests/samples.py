"""Made-up experiences and contexts, for tests of what improves and what interpolates them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Normal

from imel.data.memory import Memory

RAGGED = (5, 1, 9, 3, 7)
"""Lengths of the episodes of a `ragged_context`."""


class Batch(NamedTuple):
    """What the improvement is computed from, in the order its functions take it."""

    advantages: Tensor  # [T]
    actions: Tensor  # [T, d_a]
    means: Tensor  # [T, d_a]
    stds: Tensor  # [T, d_a]


def rows_for(memory: Memory, count: int, **columns: Tensor) -> dict[str, Tensor]:
    """Rows of a memory: zeros in all columns but those given."""
    names = [name for name in memory.column_names if name != "iterations"]
    blank = {name: torch.zeros(count, *memory.get_buffer(name).shape[1:]) for name in names}
    return blank | columns


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


def log_density(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """log N(x; mean, std), element by element."""
    density: Tensor = Normal(mean, std).log_prob(x)  # type: ignore[no-untyped-call]
    return density
