"""The reservoir of improved experiences: the paper's replay memory RM (Alg. 1 l. 1 and l. 12).

A memory is preallocated columns of a fixed capacity. Its valid rows are always the first `size`
ones, so that what interpolators see is a view, never a copy. What is forgotten goes as whole
rollouts or whole episodes (paper note 9).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

Forgetting = Literal["fifo", "reservoir"]
ForgettingUnit = Literal["rollout", "episode"]

PRIOR = -1
"""The iteration of rows that belong to the prior context."""


@dataclass(frozen=True)
class MemorySettings:
    """What is remembered, and what is forgotten."""

    memory_size: int = 2048
    """Capacity in transitions."""
    anchor_size: int = 2048
    """An anchored policy interpolates the means of its newest memories, this many."""
    forgetting: Forgetting = "fifo"
    """`fifo`: the oldest goes first. `reservoir`: beside the newest, what is kept is a uniform
    sample of the whole history (paper note 9)."""
    newest_kept: int = 0
    """Of so many newest transitions a `reservoir` forgets nothing; of the newest batch never."""
    forgetting_unit: ForgettingUnit = "rollout"
    """Forget whole rollouts, or whole episodes."""
    prior_size: int = 64
    """Points of the prior context C^0, which makes the first policy and is then forgotten."""
    prior_std: float = 0.1
    """Deviation of the prior context's means around zero, in policy units (paper note 5)."""


class Memory(nn.Module):
    """Fixed-capacity columns of experiences with their improved means.

    It is a module so that it moves between devices, is copied and is saved with the policy it
    belongs to. `means` (the anchor) and `improved_means` are kept apart: their difference is the
    improvement each memory asks for.
    """

    states: Tensor  # [capacity, d_s] raw
    next_states: Tensor  # [capacity, d_s] raw
    actions: Tensor  # [capacity, d_a] as sampled
    means: Tensor  # [capacity, d_a] mu: the anchor, which follows the policy if updates do
    behaviour_means: Tensor  # [capacity, d_a] mu of the policy that acted
    improved_means: Tensor  # [capacity, d_a] mu*
    settled_means: Tensor  # [capacity, d_a] the mean of recent policies, if updates keep one
    stds: Tensor  # [capacity, d_a] sigma of the policy that acted
    rewards: Tensor  # [capacity]
    advantages: Tensor  # [capacity] as used by the improvement
    terminated: Tensor  # [capacity] 1 where the task ended
    episodes: Tensor  # [capacity] int64
    steps: Tensor  # [capacity] int64, position within the episode
    iterations: Tensor  # [capacity] int64, the iteration that made the row
    keys: Tensor  # [capacity] float64, what has the lowest key is forgotten first
    _size: Tensor  # [] int64

    def __init__(self, capacity: int, state_dim: int, action_dim: int) -> None:
        super().__init__()
        widths = {
            "states": (state_dim,),
            "next_states": (state_dim,),
            "actions": (action_dim,),
            "means": (action_dim,),
            "behaviour_means": (action_dim,),
            "improved_means": (action_dim,),
            "settled_means": (action_dim,),
            "stds": (action_dim,),
            "rewards": (),
            "advantages": (),
            "terminated": (),
        }
        for name, width in widths.items():
            self.register_buffer(name, torch.zeros(capacity, *width))
        for name in ("episodes", "steps", "iterations"):
            self.register_buffer(name, torch.zeros(capacity, dtype=torch.int64))
        self.register_buffer("keys", torch.zeros(capacity, dtype=torch.float64))
        self.register_buffer("_size", torch.zeros((), dtype=torch.int64))

    @property
    def capacity(self) -> int:
        """The most rows it can hold."""
        return self.states.shape[0]

    def __len__(self) -> int:
        return int(self._size)

    @property
    def column_names(self) -> list[str]:
        """The names of the columns, in order."""
        return [name for name, _ in self.named_buffers() if name != "_size"]

    def column(self, name: str) -> Tensor:
        """The valid rows of a column, as a view."""
        column = self.get_buffer(name)
        return column[: len(self)]

    @property
    def holds_prior(self) -> bool:
        """Whether all there is to remember is the prior context."""
        return len(self) > 0 and int(self.iterations[0]) == PRIOR

    def set_prior(self, states: Tensor, means: Tensor) -> None:
        """C^0: a context for the first policy, forgotten when experience comes (paper note 5)."""
        count = states.shape[0]
        if count > self.capacity:
            raise ValueError(f"{count} prior points do not fit into {self.capacity} rows")
        self._size.fill_(count)
        for column in (self.column(name) for name in self.column_names):
            column.zero_()
        self.column("states").copy_(states)
        self.column("next_states").copy_(states)
        means_of = ("means", "behaviour_means", "improved_means", "settled_means")
        for name in ("actions", *means_of):
            self.column(name).copy_(means)
        self.column("stds").fill_(1.0)
        # Each point is an episode of its own, with an id no real episode has
        self.column("episodes").copy_(-1 - torch.arange(count, device=self.states.device))
        self.column("iterations").fill_(PRIOR)

    def add(
        self,
        rows: dict[str, Tensor],
        iteration: int,
        settings: MemorySettings,
        generator: torch.Generator,
    ) -> None:
        """C^k = C^{k-1} u {(s, mu*)_t} (Alg. 1 l. 12), after forgetting what no longer fits.

        `rows` has every column but `iterations` and `keys`. Freed rows are refilled in place, and
        holes that remain are closed with rows from the end: only what changes is moved.
        """
        count = rows["states"].shape[0]
        if count > self.capacity:
            raise ValueError(f"{count} transitions do not fit into {self.capacity} rows")
        device = self.states.device
        rows = rows | {"iterations": torch.full((count,), iteration, device=device)}
        unit = "episodes" if settings.forgetting_unit == "episode" else "iterations"
        rows["keys"] = (
            rows["iterations"].double()
            if settings.forgetting == "fifo"
            else self._random_keys(rows[unit], unit, generator)
        )
        sure = 0 if settings.forgetting == "fifo" else settings.newest_kept - count
        forgotten = self._rows_to_forget(rows[unit], unit, sure)
        kept = len(self) - forgotten.numel()
        size = kept + count
        # The new rows go where something was forgotten, then behind the last row
        places = torch.cat([forgotten, torch.arange(len(self), self.capacity, device=device)])
        places = places[places < size]
        movers = torch.arange(
            min(size, len(self)), len(self), device=device
        )  # kept rows behind the new end
        movers = movers[~torch.isin(movers, forgotten)]
        holes, targets = places[: movers.numel()], places[movers.numel() :]
        for name in self.column_names:
            column = self.get_buffer(name)
            column[holes] = column[movers]
            column[targets] = rows[name].to(column.dtype)
        self._size.fill_(size)

    def newest(self, count: int) -> Tensor:
        """Indices of the newest `count` rows, or of all if there are no more."""
        ages = self.column("iterations").argsort(descending=True, stable=True)
        return ages[:count]

    def in_time(self, rows: Tensor | slice = slice(None)) -> tuple[Tensor, Tensor]:
        """The order of rows by episode and step, and where the next in it follows in time."""
        episodes, steps = self.column("episodes")[rows], self.column("steps")[rows]
        by_step = steps.argsort(stable=True)
        order = by_step[episodes[by_step].argsort(stable=True)]
        episodes, steps = episodes[order], steps[order]
        follows = torch.zeros_like(order, dtype=torch.bool)
        follows[:-1] = (episodes[1:] == episodes[:-1]) & (steps[1:] == steps[:-1] + 1)
        return order, follows

    def forget_episodes(self, episodes: Tensor) -> None:
        """Forget all that is remembered of some episodes."""
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

    def _random_keys(self, labels: Tensor, unit: str, generator: torch.Generator) -> Tensor:
        """A key drawn once for each unit.

        Keeping the units with the highest of independent random keys is uniform sampling without
        replacement from all units ever seen.
        """
        names, member = torch.unique(labels, return_inverse=True)
        keys = torch.rand(names.numel(), generator=generator, dtype=torch.float64)
        keys = keys.to(labels.device)
        known = self.column(unit)  # an episode that goes on keeps the key it has
        for place in torch.nonzero(torch.isin(names, known)).flatten().tolist():
            keys[place] = self.column("keys")[known == names[place]][0]
        return keys[member]

    def _rows_to_forget(self, arriving: Tensor, unit: str, sure: int) -> Tensor:
        """Indices of the rows that must go, as whole units, for the arriving ones to fit.

        The newest `sure` of them go last, and the oldest of these first. A unit that goes on in
        the arriving rows is only torn if all others do not suffice, and loses its oldest rows.
        """
        device = self.states.device
        if self.holds_prior:
            return torch.arange(len(self), device=device)
        excess = len(self) + arriving.numel() - self.capacity
        if excess <= 0:
            return torch.empty(0, dtype=torch.int64, device=device)
        units, member, sizes = torch.unique(
            self.column(unit), return_inverse=True, return_counts=True
        )
        keys = torch.full((units.numel(),), -torch.inf, dtype=torch.float64, device=device)
        # A unit of several rollouts is as old as its newest part
        keys = keys.scatter_reduce(0, member, self.column("keys"), reduce="amax")
        if sure > 0:
            newest = self.newest(sure)
            ages = torch.full_like(keys, -torch.inf)
            iterations = self.column("iterations")[newest].double()
            ages = ages.scatter_reduce(0, member[newest], iterations, reduce="amax")
            # Drawn keys are below one; iterations of logged data are below zero
            above = 1.0 + ages - iterations.min()
            keys = torch.where(ages.isfinite(), above, keys)
        going_on = torch.isin(units, arriving)
        order = torch.argsort(keys, stable=True)
        order = order[~going_on[order]]
        freed = sizes[order].cumsum(0)
        leaving = order[: int((freed < excess).sum()) + 1]
        rows = torch.nonzero(torch.isin(member, leaving)).flatten()
        missing = excess - rows.numel()
        if missing > 0:
            torn = torch.nonzero(going_on[member]).flatten()
            torn = torn[self.column("steps")[torn].argsort(stable=True)]
            ages = self.column("iterations")[torn].argsort(stable=True)
            rows = torch.cat([rows, torn[ages[:missing]]])
        return rows
