"""What the explorer asks of a policy; the only place where it looks inside one.

An `Insight` is a policy seen as memories with shares in its answers. Rows are those of the memory
as it was loaded: they keep their numbers when some of them are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imel.errors import ImelError
from imel.explain import familiarity_of, policy_without
from imel.interpolators.base import Weighted, effective_neighbours
from imel.interpolators.mki import MeanKernelInterpolation
from imel.policy import ImelPolicy

Array = NDArray[Any]

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
    """[d_a] the average of what the policy does at the memories, before their improvements, where
    the answer is exact."""
    exact: bool = False
    """Whether the mean *is* the sum of the contributions."""
    effective_neighbours: float | None = None


class Insight:
    """A policy with all of its memory, or with some of it left out."""

    def __init__(self, policy: ImelPolicy, forgotten: Array | None = None) -> None:
        self.policy = policy
        self.rows = len(policy.memory)
        self.forgotten = np.zeros(self.rows, dtype=bool) if forgotten is None else forgotten
        self.left = policy if forgotten is None else policy_without(policy, forgotten)
        """The policy that answers."""

    def require_memories(self) -> None:
        """Refuse to be asked about an empty memory."""
        if not self.rows:
            raise ImelError("the model remembers nothing yet: it has not been trained")

    def without(self, rows: Array) -> Insight:
        """The same policy, had it never known some more of its memories."""
        forgotten = self.forgotten.copy()
        forgotten[rows] = True
        return Insight(self.policy, forgotten)

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
        model = self.policy.interpolator
        if not isinstance(model, MeanKernelInterpolation):
            raise ImelError("this policy has no learned features; choose another projection")
        return model.features(self.policy.normaliser(self._tensor(states))).cpu().numpy()

    @property
    def has_features(self) -> bool:
        """Whether it learned a kernel."""
        return isinstance(self.policy.interpolator, MeanKernelInterpolation)

    @property
    def weighted(self) -> bool:
        """Whether each memory has a share in every answer."""
        return isinstance(self.left.settled.interpolate, Weighted)

    def act(self, states: Array) -> tuple[Array, Array]:
        """mu and sigma at many raw states."""  # [T, d_s] -> [T, d_a], [T, d_a]
        size = max(1, _WEIGHTS_AT_ONCE // max(1, self.rows))
        parts = []
        for start in range(0, len(states), size):
            mean, std = self.left.decide(self._tensor(states[start : start + size]))
            parts.append((mean.cpu().numpy(), std.cpu().numpy()))
        means, stds = zip(*parts, strict=True)
        return np.concatenate(means), np.concatenate(stds)

    def answer(self, state: Array) -> Answer:
        """The mean at one state and where it comes from."""
        states = self._tensor(state)[None]
        mean, std = (part[0].cpu().numpy() for part in self.left.decide(states))
        score = float(familiarity_of(self.left)(states)[0])
        familiarity = None if np.isnan(score) else score
        interpolate = self.left.settled.interpolate
        if not isinstance(interpolate, Weighted):
            return Answer(mean, std, familiarity)
        with torch.no_grad():
            normalised = self.left.normaliser(states)
            shares = interpolate.weights(normalised)[0]  # [kept]
            added = interpolate.contributions(normalised)[0]
        return Answer(
            mean,
            std,
            familiarity,
            weights=self._spread(shares),
            contributions=self._spread(added),
            anchor=self._anchor(shares) if interpolate.exact else None,
            exact=interpolate.exact,
            effective_neighbours=float(effective_neighbours(shares.abs()[None])),
        )

    def _anchor(self, shares: Tensor) -> Array:
        return (shares @ self.left.anchor_means()).cpu().numpy()

    def _spread(self, values: Tensor) -> Array:
        """Values of the rows that are left, at those rows' own numbers, and zero elsewhere."""
        spread = np.zeros((self.rows, *values.shape[1:]), dtype=np.float32)
        spread[~self.forgotten] = values.cpu().numpy()
        return spread

    def _tensor(self, states: Array) -> Tensor:
        return torch.as_tensor(np.asarray(states, dtype=np.float32), device=self.policy.device)
