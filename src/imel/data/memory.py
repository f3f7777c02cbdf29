"""The replay memory of improved experiences, RM (Alg. 1 l. 1 and l. 12).

Preallocated columns of a fixed capacity, in the order in which experience came. The oldest
rollouts are forgotten first, each as a whole (paper note 9).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

PRIOR = -1
"""The iteration of rows that belong to the prior context."""


class Memory(nn.Module):
    """Fixed-capacity columns of experiences with their improved means, saved with the policy."""

    states: Tensor  # [capacity, d_s] raw
    next_states: Tensor  # [capacity, d_s] raw
    actions: Tensor  # [capacity, d_a] as sampled
    means: Tensor  # [capacity, d_a] mu of the policy that is improved
    behaviour_means: Tensor  # [capacity, d_a] mu of the policy that acted
    improved_means: Tensor  # [capacity, d_a] mu*
    stds: Tensor  # [capacity, d_a] sigma of the policy that acted
    rewards: Tensor  # [capacity]
    advantages: Tensor  # [capacity] as used by the improvement
    terminated: Tensor  # [capacity] 1 where the task ended
    episodes: Tensor  # [capacity] int64
    steps: Tensor  # [capacity] int64, position within the episode
    iterations: Tensor  # [capacity] int64, the iteration that made the row
    _size: Tensor  # [] int64

    def __init__(self, capacity: int, state_dim: int, action_dim: int) -> None:
        super().__init__()
        for name in ("states", "next_states"):
            self.register_buffer(name, torch.zeros(capacity, state_dim))
        for name in ("actions", "means", "behaviour_means", "improved_means", "stds"):
            self.register_buffer(name, torch.zeros(capacity, action_dim))
        for name in ("rewards", "advantages", "terminated"):
            self.register_buffer(name, torch.zeros(capacity))
        for name in ("episodes", "steps", "iterations"):
            self.register_buffer(name, torch.zeros(capacity, dtype=torch.int64))
        self.register_buffer("_size", torch.zeros((), dtype=torch.int64))

    @property
    def capacity(self) -> int:
        """The largest number of rows."""
        return self.states.shape[0]

    def __len__(self) -> int:
        return int(self._size)

    @property
    def column_names(self) -> list[str]:
        """The names of the columns, in order."""
        return [name for name, _ in self.named_buffers() if name != "_size"]

    def column(self, name: str) -> Tensor:
        """Return the valid rows of a column, as a view."""
        return self.get_buffer(name)[: len(self)]

    @property
    def holds_prior(self) -> bool:
        """Whether the prior context is all that is remembered."""
        return len(self) > 0 and int(self.iterations[0]) == PRIOR

    def set_prior(self, states: Tensor, means: Tensor) -> None:
        """Set C^0: a context for the first policy, forgotten when experience comes (note 5)."""
        self._size.fill_(0)
        zeros, ids = states.new_zeros(len(states)), torch.arange(len(states), device=states.device)
        rows = dict.fromkeys(("rewards", "advantages", "terminated", "steps"), zeros)
        rows |= dict.fromkeys(("states", "next_states"), states)
        rows |= dict.fromkeys(("actions", "means", "behaviour_means", "improved_means"), means)
        # Each point is an episode of its own, with an id no real episode has
        self.add(rows | {"stds": torch.ones_like(means), "episodes": -1 - ids}, PRIOR)

    def add(self, rows: dict[str, Tensor], iteration: int) -> None:
        """Append all columns of an iteration (Alg. 1 l. 12); forget what no longer fits."""
        count = rows["states"].shape[0]
        if count > self.capacity:
            raise ValueError(f"{count} transitions do not fit into {self.capacity} rows")
        forgotten = self._oldest(count)
        kept = len(self) - forgotten
        for name in self.column_names:
            column = self.get_buffer(name)
            if forgotten:
                column[:kept] = column[forgotten : forgotten + kept].clone()
            new = column[kept : kept + count]
            new.fill_(iteration) if name == "iterations" else new.copy_(rows[name])
        self._size.fill_(kept + count)

    def _oldest(self, arriving: int) -> int:
        """Count the rows at the front that must go, as whole rollouts, for others to fit."""
        if self.holds_prior:
            return len(self)
        excess = len(self) + arriving - self.capacity
        if excess <= 0:
            return 0
        iterations = self.column("iterations")
        return int((iterations <= iterations[excess - 1]).sum())

    def rollouts(self) -> list[tuple[int, slice]]:
        """Return the iteration and the rows of every rollout remembered, the oldest first."""
        iterations, counts = torch.unique_consecutive(self.column("iterations"), return_counts=True)
        columns = zip(iterations.tolist(), counts.tolist(), counts.cumsum(0).tolist(), strict=True)
        return [(iteration, slice(end - count, end)) for iteration, count, end in columns]

    def in_time(self) -> tuple[Tensor, Tensor]:
        """Return the order of rows by episode and step, and where the next row follows in time."""
        episodes, steps = self.column("episodes"), self.column("steps")
        by_step = steps.argsort(stable=True)
        order = by_step[episodes[by_step].argsort(stable=True)]
        episodes, steps = episodes[order], steps[order]
        follows = torch.zeros_like(order, dtype=torch.bool)
        follows[:-1] = (episodes[1:] == episodes[:-1]) & (steps[1:] == steps[:-1] + 1)
        return order, follows

    def forget_episodes(self, episodes: Tensor) -> None:
        """Forget all rows of some episodes."""
        self._keep(~torch.isin(self.column("episodes"), episodes.to(self.states.device)))

    def forget_rows(self, rows: Tensor) -> None:
        """Forget some rows by their indices; the others move up and keep their order."""
        keep = torch.ones(len(self), dtype=torch.bool, device=self.states.device)
        keep[rows.to(keep.device)] = False
        self._keep(keep)

    def _keep(self, keep: Tensor) -> None:
        for name in self.column_names:
            kept = self.column(name)[keep]
            self.get_buffer(name)[: kept.shape[0]] = kept
        self._size.fill_(int(keep.sum()))
