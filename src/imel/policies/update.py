"""What an update works on, and what both families share."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from stable_baselines3.common.logger import Logger
from torch.optim import Optimizer

from imel.data.critic import Critic
from imel.data.experience import Rollout
from imel.data.normaliser import ReturnScale


class Logged(Protocol):
    """What an update needs to know of logged data that are in memory already."""

    @property
    def kind(self) -> str:
        """`annotated` if improved, `acted` if they can be, `shown` if only actions are known."""

    @property
    def rewarded(self) -> bool:
        """Whether rewards are known."""


class Learner(Protocol):
    """The parts of an algorithm that an update reads and changes."""

    critic: Critic
    return_scale: ReturnScale
    critic_optimizer: Optimizer
    interpolator_optimizer: Optimizer | None
    generator: torch.Generator
    iteration: int
    num_timesteps: int
    _n_updates: int
    _current_progress_remaining: float

    @property
    def logger(self) -> Logger:
        """The logger of figures."""


class Update(Protocol):
    """How a policy learns: one for each family."""

    def start(self, model: Any) -> None:
        """Prepare the policy before the first step."""

    def before_rollout(self, model: Any) -> None:
        """Follow schedules before a rollout."""

    def __call__(self, model: Any, rollout: Rollout) -> None:
        """Learn from a rollout."""

    def warm_start(self, model: Any, logged: Logged) -> None:
        """Learn from logged data that are in memory already."""
