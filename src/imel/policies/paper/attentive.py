"""Attentive Neural Process: what the decoder reads at a state is an average over like memories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from imel.data.arithmetic import mlp
from imel.data.experience import Context
from imel.policies.paper.interpolator import Weighted
from imel.policies.paper.mki import kernel_interpolation, kernel_weights
from imel.policies.paper.neural_process import (
    DeterministicPath,
    LatentSettings,
    NeuralProcess,
    pairs,
)
from imel.policies.paper.paper_policy import PaperPolicy
from imel.registry import register
from imel.settings import Range, setting


@dataclass(frozen=True)
class AnpSettings(LatentSettings):
    """Settings of `AnpPolicy`: the attention."""

    features: int = setting(16, search=Range(4, 64))
    """Dimensions of the space in which states attend to memories."""


class AttentiveNeuralProcess(NeuralProcess):
    """A Neural Process whose deterministic path attends to the memories most like the state."""

    settings: AnpSettings

    def make_path(self, state_dim: int, value_dim: int) -> DeterministicPath | None:
        """Attention in place of the mean."""
        return AttentionPath(state_dim, value_dim, self.settings.hidden, self.settings.features)

    @torch.no_grad()
    def condition(self, context: Context) -> Weighted:
        """Precompute the encoded memories; weights say where it looked, not what it added."""
        path = self.path
        assert isinstance(path, AttentionPath)
        keys, answer = path.features(context.states), super().condition(context)

        def weights(states: Tensor) -> Tensor:
            return kernel_weights(path.features(states), keys)

        return Weighted(weights, context.values, answer, exact=False)


class AttentionPath(DeterministicPath):
    """sum_i w_i r_i: MKI with encoded memories r_i for values, and features of its own."""

    def __init__(
        self, state_dim: int, value_dim: int, hidden: tuple[int, ...], features: int
    ) -> None:
        super().__init__(state_dim, value_dim, hidden)
        self.embed = mlp(state_dim, hidden[:1], features)
        self.skip = nn.Linear(state_dim, features, bias=False)

    def features(self, states: Tensor) -> Tensor:
        """Queries and keys."""  # [T, features]
        features: Tensor = self.embed(states) + self.skip(states)
        return features

    def condition(self, context: Context) -> Callable[[Tensor], Tensor]:
        """Average encoded memories by the attention that a state pays to each."""
        keys, encoded = self.features(context.states), self.encoder(pairs(context))
        return lambda states: kernel_weights(self.features(states), keys) @ encoded

    def leave_one_out(self, context: Context, targets: Context) -> Tensor:
        """Attention to the memories of other episodes."""
        queries, keys = self.features(targets.states), self.features(context.states)
        episodes, encoded = (targets.episodes, context.episodes), self.encoder(pairs(context))
        return kernel_interpolation(queries, keys, encoded, episodes)


@register("anp", label="IMeL, ANP")
class AnpPolicy(PaperPolicy):
    """Attentive Neural Process."""

    Settings = AnpSettings
    interpolator_class = AttentiveNeuralProcess
