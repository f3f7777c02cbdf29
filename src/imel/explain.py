"""Why this action: the memories behind an answer of the policy, each with its share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imel.errors import ImelError
from imel.interpolators.base import Weighted, effective_neighbours
from imel.policy import ImelPolicy

Array = NDArray[Any]


@dataclass(frozen=True)
class Explanation:
    """An action's mean and every memory's share in it, the largest share first.

    For exact interpolators (MKI, nearest neighbours) `contributions` sum to `mean`: they are the
    weights times the improved means. For attention the weights say where the policy looked.
    Means and actions are in policy units: the action range is [-1, 1].
    """

    mean: Array  # [d_a]
    exact: bool
    effective_neighbours: float
    weights: Array  # [N]
    contributions: Array  # [N, d_a]
    improved_means: Array  # [N, d_a]
    means: Array  # [N, d_a]
    actions: Array  # [N, d_a]
    advantages: Array  # [N]
    states: Array  # [N, d_s] raw
    episodes: Array  # [N]
    steps: Array  # [N]

    def __str__(self) -> str:
        def vector(values: Array) -> str:
            return "[" + " ".join(f"{value:+.2f}" for value in values[:6]) + "]"

        kind = "is the weighted sum of" if self.exact else "comes from attention to"
        lines = [
            f"mean {vector(self.mean)} {kind} about {self.effective_neighbours:.0f} memories",
            f"{'share':>7}  {'episode':>7}  {'step':>5}  {'advantage':>9}  mu -> mu*",
        ]
        lines += [
            f"{self.weights[i]:7.1%}  {self.episodes[i]:7d}  {self.steps[i]:5d}  "
            f"{self.advantages[i]:+9.2f}  {vector(self.means[i])} -> "
            f"{vector(self.improved_means[i])}"
            for i in range(min(8, len(self.weights)))
        ]
        return "\n".join(lines)


def explain(policy: ImelPolicy, observation: Array) -> Explanation:
    """The memories behind the policy's mean at one observation."""
    observation = np.asarray(observation, dtype=np.float32)
    if observation.shape != policy.observation_space.shape:
        raise ImelError(
            f"one observation of shape {policy.observation_space.shape} is explained at a time, "
            f"not {observation.shape}"
        )
    acting = policy.acting
    if not isinstance(acting.interpolate, Weighted):
        raise ImelError(
            f"memories have no weights in a {type(policy).__name__}; MkiPolicy, NearestPolicy and "
            "AnpPolicy have them"
        )
    with torch.no_grad():
        states = torch.as_tensor(observation, device=policy.device)[None]
        mean = acting(states)[0][0]
        normalised = policy.normaliser(states)
        weights = acting.interpolate.weights(normalised)
        contributions = acting.interpolate.contributions(normalised)[0]
        order = weights[0].argsort(descending=True)
        shares = weights[0][order]

        def column(name: str) -> Array:
            return policy.memory.column(name)[order].cpu().numpy()

        improved = column("improved_means")
        return Explanation(
            mean=mean.cpu().numpy(),
            exact=acting.interpolate.exact,
            effective_neighbours=float(effective_neighbours(weights)),
            weights=shares.cpu().numpy(),
            contributions=contributions[order].cpu().numpy(),
            improved_means=improved,
            means=column("means"),
            actions=column("actions"),
            advantages=column("advantages"),
            states=column("states"),
            episodes=column("episodes"),
            steps=column("steps"),
        )
