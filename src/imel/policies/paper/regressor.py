"""A plain network in the interpolator's place: the ablation. Does interpolation matter?"""

from __future__ import annotations

from dataclasses import dataclass

from imel.data.arithmetic import mlp
from imel.data.experience import Context
from imel.policies.paper.interpolator import Conditioned, Interpolator, Prediction
from imel.policies.paper.paper_policy import FitSettings, PaperPolicy
from imel.registry import register


@dataclass(frozen=True)
class RegressorSettings(FitSettings):
    """Settings of `RegressorPolicy`."""

    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers."""


class Regressor(Interpolator):
    """y(s) = f^w(s), fitted to the memories by plain regression: it sees no context."""

    def __init__(self, state_dim: int, value_dim: int, settings: RegressorSettings) -> None:
        super().__init__()
        self.network = mlp(state_dim, settings.hidden, value_dim)

    def condition(self, context: Context) -> Conditioned:
        """Return the network, which needs no memories to answer."""
        del context
        return Conditioned(lambda states: Prediction(self.network(states)))

    def leave_one_out(self, context: Context, targets: Context) -> Prediction:
        """The network's answer; it does not see the context."""
        del context
        return Prediction(self.network(targets.states))


@register("regressor", label="IMeL, regressor")
class RegressorPolicy(PaperPolicy):
    """A plain network: the ablation without interpolation."""

    Settings = RegressorSettings
    interpolator_class = Regressor
