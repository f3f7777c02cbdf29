"""Nearest neighbours: the average of the closest memories. Nothing is learned."""

from __future__ import annotations

from dataclasses import dataclass

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

    def condition(self, context: Context) -> Weighted:
        """Search the memories as they are: 1/k at the k closest, zero elsewhere."""
        count = self.settings.neighbours
        return Weighted(
            lambda states: _shares(_distances(states, context.states), count), context.values
        )

    def leave_one_out(self, context: Context, targets: Context) -> Prediction:
        """The average over the closest memories of other episodes."""
        distances = _distances(targets.states, context.states)  # [T, N]
        own = targets.episodes[:, None] == context.episodes[None, :]
        distances = distances.masked_fill(own, torch.inf)
        return Prediction(_shares(distances, self.settings.neighbours) @ context.values)


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
