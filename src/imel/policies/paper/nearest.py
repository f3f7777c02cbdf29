"""Nearest neighbours: the average of the closest memories. Nothing is learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from imel.data.experience import Context
from imel.policies.paper.interpolator import Interpolator, Prediction, Weighted
from imel.policies.paper.paper_policy import ContextSettings, PaperPolicy
from imel.registry import register
from imel.settings import Range, setting


@dataclass(frozen=True)
class NearestSettings(ContextSettings):
    """Settings of `NearestPolicy`."""

    neighbours: int = setting(16, search=Range(1, 64))
    """Memories averaged, each with the same weight."""


class NearestNeighbours(Interpolator):
    """y(s) = 1/k sum of the values of the k memories closest in normalised state."""

    def __init__(self, state_dim: int, value_dim: int, settings: NearestSettings) -> None:
        super().__init__()
        del state_dim, value_dim
        self.settings = settings

    def condition(self, context: Context) -> ConditionedNearest:
        """Keep the memories as they are."""
        return ConditionedNearest(context, self.settings.neighbours)

    def leave_one_out(self, context: Context, targets: Context) -> Prediction:
        """The average over the closest memories of other episodes."""
        distances = _distances(targets.states, context.states)  # [T, N]
        own = targets.episodes[:, None] == context.episodes[None, :]
        distances = distances.masked_fill(own, torch.inf)
        return Prediction(_shares(distances, self.settings.neighbours) @ context.values)


class ConditionedNearest(Weighted):
    """The memories, to be searched."""

    exact: ClassVar[bool] = True

    def __init__(self, context: Context, neighbours: int) -> None:
        self._states, self.values = context.states, context.values
        self._neighbours = neighbours

    def weights(self, states: Tensor) -> Tensor:
        """1/k at the k closest memories, zero elsewhere."""  # [T, N]
        return _shares(_distances(states, self._states), self._neighbours)


def _distances(states: Tensor, remembered: Tensor) -> Tensor:  # [T, N]
    # Not by a product of matrices, whose rounding depends on how many states are asked together
    return torch.cdist(states, remembered, compute_mode="donot_use_mm_for_euclid_dist")


def _shares(distances: Tensor, neighbours: int) -> Tensor:
    """Equal weights on the smallest finite distances of each row."""
    count = min(neighbours, distances.shape[1])
    closest = distances.topk(count, dim=1, largest=False)
    chosen = torch.isfinite(closest.values).to(distances.dtype)
    weights = torch.zeros_like(distances).scatter_(1, closest.indices, chosen)
    return weights / weights.sum(dim=1, keepdim=True)


@register("nearest", label="IMeL, nearest")
class NearestPolicy(PaperPolicy):
    """Nearest neighbours: nothing is learned but the memory."""

    Settings = NearestSettings
    interpolator_class = NearestNeighbours
