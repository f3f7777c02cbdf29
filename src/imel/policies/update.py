"""The contract of an update: how a policy learns from a rollout.

A policy makes its update once (`Policy.make_update`). The update reads and changes the learner's
state, owns the optimizers, and returns statistics, which the algorithm logs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from imel.data.advantage import standardise
from imel.data.critic import explained_variance, fit_critic
from imel.data.experience import Rollout

if TYPE_CHECKING:
    from imel.learner import LearnerState

Stats = dict[str, float]
"""What is logged, by the names of docs/metrics.md."""


class Logged(Protocol):
    """What an update needs to know of logged data that are in memory already."""

    @property
    def kind(self) -> str:
        """`annotated` if improved, `acted` if they can be, `shown` if only actions are known."""

    @property
    def rewarded(self) -> bool:
        """Whether rewards are known."""


class Update(ABC):
    """How a policy learns.

    A subclass may replace how advantages are weighted, before they are standardised
    (`shape_advantages`) and after (`weigh_advantages`).
    """

    def __init__(self, learner: LearnerState) -> None:
        self.learner = learner
        self.policy: Any = learner.policy
        self.settings: Any = learner.policy.settings
        self.optimizers: dict[str, Optimizer] = {
            "critic_optimizer": torch.optim.Adam(
                learner.critic.parameters(), lr=self.settings.critic_learning_rate, fused=True
            )
        }
        """By the names that files and `get_parameters` know them by."""

    @abstractmethod
    def start(self) -> None:
        """Prepare the policy before the first step."""

    def before_rollout(self) -> Stats:
        """Follow schedules before a rollout."""
        return {}

    @abstractmethod
    def __call__(self, rollout: Rollout) -> Stats:
        """Learn from a rollout."""

    @abstractmethod
    def warm_start(self, logged: Logged) -> None:
        """Learn from logged data that are in memory already."""

    # --- what a subclass may replace ---

    def shape_advantages(self, advantages: Tensor) -> Tensor:
        """Change advantages [N], in deviations of the return, before they are standardised."""
        return advantages

    def weigh_advantages(self, advantages: Tensor) -> Tensor:
        """Change standardised advantages [N]: the weights of the experiences' improvements."""
        return advantages

    # --- what updates share ---

    def standardised(self, advantages: Tensor) -> Tensor:
        """Return advantages centred, scaled and clipped, between the two hooks."""
        shaped = self.shape_advantages(advantages)
        return self.weigh_advantages(standardise(shaped, self.settings.advantage_clip))

    def fit_critic(self, states: Tensor, values: Tensor, returns: Tensor) -> Stats:
        """Regress the critic on returns at normalised states; `values` are its own before."""
        # states [n, d_s], values and returns of any equal shape with n entries
        learner = self.learner
        loss = fit_critic(
            learner.critic,
            self.optimizers["critic_optimizer"],
            states,
            returns.flatten().to(states.device),
            self.settings,
            learner.generator,
        )
        explained = explained_variance(values, returns)
        return {"train/explained_variance": explained, "train/value_loss": loss}
