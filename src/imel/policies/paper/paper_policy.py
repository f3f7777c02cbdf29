"""The paper's policies: an interpolator of the improved means in memory (Alg. 1-2).

    mu(s) = interpolator(s; C),    C = {(s, mu*)_i} the memory

One class for each kind of interpolator, with the settings under which that kind learns.
"""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from gymnasium import spaces
from torch import Tensor

from imel.data.experience import Context
from imel.errors import SettingsError, SpaceError
from imel.policies.base import ImelPolicy
from imel.policies.names import DimensionNames
from imel.policies.paper.attentive import AttentiveNeuralProcess, AttentiveOptions
from imel.policies.paper.interpolator import Conditioned, Interpolator
from imel.policies.paper.mki import MeanKernelInterpolation, MkiOptions
from imel.policies.paper.nearest import NearestNeighbours, NearestOptions
from imel.policies.paper.neural_process import NeuralProcess, NeuralProcessOptions
from imel.policies.paper.regressor import Regressor, RegressorOptions
from imel.settings import (
    ContextSettings,
    FitSettings,
    InterpolatorSettings,
    MkiSettings,
    NpSettings,
    PaperSettings,
)

if TYPE_CHECKING:
    from imel.explain.by_memories import Explanation


class PaperPolicy(ImelPolicy, ABC):
    """A policy whose mean interpolates the improved means of its memory.

    :param own_std: act with the interpolator's own sigma (Alg. 1) instead of the policy's
    """

    interpolator_class: ClassVar[type[Any]]  # of Interpolator; constructors differ in options

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        own_std: bool = False,
        **arguments: Any,
    ) -> None:
        super().__init__(observation_space, action_space, **arguments)
        if own_std and not self.distribution.scaled:
            raise SpaceError(f"std_mode='model' is of no use with {action_space}, without a sigma")
        self.own_std = own_std
        self.interpolator: Interpolator = self.interpolator_class(
            self.state_dim, self.action_dim, self.options
        )

    @classmethod
    def settings_arguments(cls, settings: PaperSettings) -> dict[str, Any]:
        """Return memory size, least sigma, and whose sigma it is."""
        own = settings.std_mode == "model"
        return {**super().settings_arguments(settings), "own_std": own}

    @classmethod
    def check_settings(cls, settings: PaperSettings) -> None:
        """Refuse the interpolator's own sigma where it has none."""
        if settings.std_mode == "model" and not cls.interpolator_class.predicts_std:
            raise SettingsError(
                f"std_mode='model' needs an interpolator with a sigma of its own (NpPolicy, "
                f"AnpPolicy), which {cls.__name__} is not"
            )

    def context(self) -> Context:
        """Return C: improved means at states normalised as they are at present."""
        memory = self.memory
        return Context(
            self.normaliser(memory.column("states")),
            memory.column("improved_means"),
            memory.column("episodes"),
        )

    @property
    @torch.no_grad()
    def conditioned(self) -> Conditioned:
        """The interpolator with the memory in place; made anew after `invalidate`."""
        return self.cached("conditioned", lambda: self.interpolator.condition(self.context()))

    def _act(self, states: Tensor) -> tuple[Tensor, Tensor]:
        mean, own_std = self.conditioned(self.normaliser(states))
        if not self.own_std:
            return mean, self.std.expand_as(mean)
        assert own_std is not None
        return mean, own_std.clamp_min(self.min_std)

    def embed(self, states: Tensor) -> Tensor:
        """Return the features that the interpolator compares states by."""
        with torch.no_grad():
            return self.interpolator.embed(self.normaliser(states))

    def prepare(self) -> None:
        """Condition the interpolator on the memory."""
        _ = self.conditioned

    def explain(self, states: Tensor, names: DimensionNames) -> list[Explanation]:
        """Explain the deterministic means at raw states by the memories interpolated."""
        from imel.explain.by_memories import explain_interpolation

        return explain_interpolation(self, states, names)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "own_std": self.own_std}


class MkiPolicy(PaperPolicy):
    """Mean Kernel Interpolation: every action is a weighted mean of remembered ones."""

    interpolator: MeanKernelInterpolation
    interpolator_class = MeanKernelInterpolation
    options_class = MkiOptions
    settings_class = MkiSettings


class NpPolicy(PaperPolicy):
    """Neural Process."""

    interpolator_class = NeuralProcess
    options_class = NeuralProcessOptions
    settings_class = NpSettings


class AnpPolicy(PaperPolicy):
    """Attentive Neural Process."""

    interpolator_class = AttentiveNeuralProcess
    options_class = AttentiveOptions
    settings_class = InterpolatorSettings


class NearestPolicy(PaperPolicy):
    """Nearest neighbours: nothing is learned but the memory."""

    interpolator_class = NearestNeighbours
    options_class = NearestOptions
    settings_class = ContextSettings


class RegressorPolicy(PaperPolicy):
    """A plain network: the ablation without interpolation."""

    interpolator_class = Regressor
    options_class = RegressorOptions
    settings_class = FitSettings
