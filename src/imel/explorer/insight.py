"""What the explorer asks of a policy that is made of memories.

An `Insight` is a policy seen as memories with shares in its answers. Rows are those of the memory
as it was loaded: they keep their numbers when some of them are left out. A `RidgePolicy` is made of
lessons instead: see `lessons`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imel.errors import ImelError
from imel.explain import familiarity_of, policy_without
from imel.policies import MkiPolicy, PaperPolicy, Policy
from imel.policies.names import DimensionNames
from imel.policies.paper.interpolator import Weighted, effective_neighbours

Array = NDArray[Any]
Projection = Literal["features", "states", "dimensions", "run", "taught"]
Colour = Literal["advantage", "age", "return", "reward", "action", "improved", "size"]

_WEIGHTS_AT_ONCE = 1 << 23
"""Shares held in memory while many states are answered: 32 MiB of float32."""


@dataclass(frozen=True)
class Answer:
    """The policy's mean and sigma at one state, and every memory's share in the mean."""

    mean: Array  # [d_a]
    std: Array  # [d_a]
    familiarity: float | None  # None where it cannot be said
    weights: Array | None = None  # [N], or None where memories have no shares
    contributions: Array | None = None  # [N, d_a] what each adds, or None likewise
    anchor: Array | None = None
    """[d_a] the average of the memories' means before their improvements, where the answer is
    exact."""
    exact: bool = False
    """Whether the mean *is* the sum of the contributions."""
    effective_neighbours: float | None = None


class Insight:
    """A policy with all of its memory, or with some of it left out."""

    kind = "memories"
    """What its rows are: the points of the map, which can be forgotten."""

    def __init__(
        self, policy: Policy, names: DimensionNames, forgotten: Array | None = None
    ) -> None:
        self.policy, self.names = policy, names
        self.rows = self._count()
        self.forgotten = np.zeros(self.rows, dtype=bool) if forgotten is None else forgotten
        self.left = policy if forgotten is None else self._reduced()
        """The policy that answers."""

    def _count(self) -> int:
        return len(self.policy.memory)

    def _reduced(self) -> Policy:
        return policy_without(self.policy, self.forgotten)

    def require_memories(self) -> None:
        """Refuse to be asked about an empty memory."""
        if not self.rows:
            raise ImelError("the model remembers nothing yet: it has not been trained")

    def without(self, rows: Array) -> Self:
        """Return the same policy without some more of its rows."""
        forgotten = self.forgotten.copy()
        forgotten[rows] = True
        return type(self)(self.policy, self.names, forgotten)

    def table(self) -> dict[str, Array]:
        """Return the columns that a page needs of every row."""
        names = ("episodes", "steps", "iterations", "advantages", "rewards")
        return {name: self.column(name) for name in names}

    @property
    def last_step(self) -> int | None:
        """The environment steps of the run after the last of its rows, if that is known."""
        return None

    def column(self, name: str) -> Array:
        """A column of the memory, all rows of it."""
        return self.policy.memory.column(name).cpu().numpy()

    @torch.no_grad()
    def normalised(self, states: Array) -> Array:
        """States in units of their running deviation."""  # [n, d_s]
        normalised: Tensor = self.policy.normaliser(self._tensor(states))
        return normalised.cpu().numpy()

    @torch.no_grad()
    def features(self, states: Array) -> Array:
        """z of raw states in the learned kernel; refused where there is no such kernel."""
        if not self.has_features:
            raise ImelError("this policy has no learned features; choose another projection")
        return self.policy.embed(self._tensor(states)).cpu().numpy()

    @property
    def has_features(self) -> bool:
        """Whether it learned a kernel."""
        return isinstance(self.policy, MkiPolicy)

    @property
    def first_projection(self) -> Projection:
        """The map that is shown first."""
        return "features" if self.has_features else "states"

    @property
    def weighted(self) -> bool:
        """Whether each memory has a share in every answer."""
        policy = self.left
        return isinstance(policy, PaperPolicy) and isinstance(policy.conditioned, Weighted)

    def act(self, states: Array) -> tuple[Array, Array]:
        """mu and sigma at many raw states."""  # [T, d_s] -> [T, d_a], [T, d_a]
        size = max(1, _WEIGHTS_AT_ONCE // max(1, self.rows))
        parts = []
        for start in range(0, len(states), size):
            mean, std = self.left.act(self._tensor(states[start : start + size]))
            parts.append((mean.cpu().numpy(), std.cpu().numpy()))
        means, stds = zip(*parts, strict=True)
        return np.concatenate(means), np.concatenate(stds)

    def answer(self, state: Array) -> Answer:
        """The mean at one state and where it comes from."""
        states = self._tensor(state)[None]
        mean, std = (part[0].cpu().numpy() for part in self.left.act(states))
        score = float(familiarity_of(self.left)(states)[0])
        familiarity = None if np.isnan(score) else score
        if not self.policy.distribution.has_std:
            std = np.zeros_like(std)
        answer = Answer(mean, std, familiarity)
        assert isinstance(self.left, PaperPolicy)
        conditioned = self.left.conditioned
        if not isinstance(conditioned, Weighted):
            return answer
        with torch.no_grad():
            normalised = self.left.normaliser(states)
            shares = conditioned.weights(normalised)[0]  # [kept]
            added = conditioned.contributions(normalised)[0]
        before = (shares @ self.left.memory.column("means")).cpu().numpy()
        return replace(
            answer,
            weights=self._spread(shares),
            contributions=self._spread(added),
            anchor=before if conditioned.exact else None,
            exact=conditioned.exact,
            effective_neighbours=float(effective_neighbours(shares.abs()[None])),
        )

    def _spread(self, values: Tensor) -> Array:
        """Values of the rows that are left, at those rows' own numbers, and zero elsewhere."""
        spread = np.zeros((self.rows, *values.shape[1:]), dtype=np.float32)
        spread[~self.forgotten] = values.cpu().numpy()
        return spread

    def _tensor(self, states: Array) -> Tensor:
        return torch.as_tensor(np.asarray(states, dtype=np.float32), device=self.policy.device)
