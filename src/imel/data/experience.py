"""Columns of experience: what a rollout hands on, and what an interpolator is given to see.

Dimensions, everywhere in the package:

    T  time steps of a rollout, or targets of a fit     d_s  state dimensions
    E  environments side by side                        d_a  action dimensions
    N  memories in a context                            d_z  features of a learned kernel
    d_v  interpolated value columns (d_a for improved means)

Actions, means and stds are in *policy units*: every Box bound is mapped to [-1, 1].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_KEPT = (
    *("states", "next_states", "actions", "means", "stds"),
    *("rewards", "episodes", "steps", "terminated"),
)
"""Columns of a rollout that the memory keeps."""


@dataclass(frozen=True)
class Rollout:
    """One batch of transitions, time-major: the paper's tuples E_t = (s, a, s', r, mu, sigma)."""

    states: Tensor  # [T, E, d_s] raw, as the environment gave them
    actions: Tensor  # [T, E, d_a] as sampled, not clipped
    means: Tensor  # [T, E, d_a] mu of the policy that acted
    stds: Tensor  # [T, E, d_a] sigma of the policy that acted
    rewards: Tensor  # [T, E]
    next_states: Tensor  # [T, E, d_s] the true successor, also where the episode ended
    terminated: Tensor  # [T, E] bool, the task ended: no value beyond
    truncated: Tensor  # [T, E] bool, only the clock ended it: bootstrap
    episodes: Tensor  # [T, E] int64, unique over a run
    steps: Tensor  # [T, E] int64, position within the episode

    def __len__(self) -> int:
        return self.rewards.numel()

    def rows(self, device: torch.device) -> dict[str, Tensor]:
        """Return the batch as rows of the memory, not improved yet."""
        rows = {name: flatten_time(getattr(self, name)).to(device) for name in _KEPT}
        rows["behaviour_means"] = rows["improved_means"] = rows["means"]
        rows["advantages"] = torch.zeros_like(rows["rewards"])
        return rows

    @property
    def ended(self) -> Tensor:
        """Where a trajectory stops within this rollout, for whatever reason."""  # [T, E]
        ended = self.terminated | self.truncated
        ended[-1] = True  # the rollout's edge cuts running episodes
        return ended


@dataclass(frozen=True)
class Context:
    """The paper's C = {(s, mu*)_i}: memories as an interpolator sees them, states normalised.

    Rows of one episode share an id, which is all that leave-one-episode-out needs.
    """

    states: Tensor  # [N, d_s]
    values: Tensor  # [N, d_v]
    episodes: Tensor  # [N] int64

    def __len__(self) -> int:
        return self.states.shape[0]

    def rows(self, index: Tensor) -> Context:
        """The context restricted to some of its rows."""
        return Context(self.states[index], self.values[index], self.episodes[index])


def flatten_time(column: Tensor) -> Tensor:
    """[T, E, ...] -> [E * T, ...], environment by environment, so that episodes are contiguous."""
    return column.transpose(0, 1).reshape(-1, *column.shape[2:])
