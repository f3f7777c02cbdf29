"""What an update works on, and what plain and anchored updates share."""

from __future__ import annotations

from typing import Protocol

import torch
from stable_baselines3.common.logger import Logger
from torch import Tensor
from torch.optim import Optimizer

from imel.critic import Critic
from imel.diagnostics import diagnose
from imel.experience import Rollout, flatten_time
from imel.improvement import adapted_std, improved_stds, next_std, std_gradient
from imel.normaliser import ReturnScale, RunningMoments
from imel.policy import ImelPolicy
from imel.settings import Settings
from imel.training import fit_leave_one_out

_KEPT = (
    "states",
    "next_states",
    "actions",
    "means",
    "stds",
    "rewards",
    "episodes",
    "steps",
    "terminated",
)
"""Columns of a rollout that the memory keeps."""


class Learner(Protocol):
    """The parts of an algorithm that an update reads and changes."""

    settings: Settings
    policy: ImelPolicy
    critic: Critic
    return_scale: ReturnScale
    usual_gain: RunningMoments
    optimizer: Optimizer
    critic_optimizer: Optimizer
    generator: torch.Generator
    iteration: int
    trust_region: float
    kl_budget: float
    max_std: float
    _n_updates: int

    @property
    def logger(self) -> Logger:
        """Where figures are recorded."""


def observe(model: Learner, rollout: Rollout) -> None:
    """Let the running moments of states and returns see the batch."""
    model.policy.normaliser.update(rollout.states.flatten(0, 1).to(model.policy.device))
    model.return_scale.update_from(rollout.rewards, rollout.terminated | rollout.truncated)


def memories(rollout: Rollout, device: torch.device) -> dict[str, Tensor]:
    """The batch as rows of the memory, not improved yet."""
    rows = {name: flatten_time(getattr(rollout, name)).to(device) for name in _KEPT}
    rows["behaviour_means"] = rows["improved_means"] = rows["settled_means"] = rows["means"]
    rows["advantages"] = torch.zeros_like(rows["rewards"])
    return rows


def move_std(
    model: Learner, advantages: Tensor, actions: Tensor, means: Tensor, stds: Tensor, eta: float
) -> None:
    """sigma^{k+1}, where it is learned."""
    settings, policy = model.settings, model.policy
    if settings.std_mode == "adaptive":
        gradient = settings.std_rate * std_gradient(advantages, actions, means, stds)
        bounds = settings.min_std, model.max_std
        policy.std.copy_(adapted_std(policy.std, gradient, settings.entropy_bonus, *bounds))
    elif settings.std_mode in ("advantage", "paper"):  # Alg. 2 l. 12-13
        stars = improved_stds(advantages, actions, means, stds, eta, settings.std_mode)
        policy.std.copy_(next_std(stars, policy.std, settings.min_std))


def fit_interpolator(model: Learner) -> None:
    """train(model, C) (Alg. 1 l. 3, Alg. 4)."""
    policy = model.policy
    policy.interpolator.train()
    fit = fit_leave_one_out(
        policy.interpolator, model.optimizer, policy.context(), model.settings, model.generator
    )
    policy.interpolator.eval()
    policy.fitted()
    if fit is not None:
        model._n_updates += fit.gradient_steps
        model.logger.record("train/loss", fit.loss)


def record_diagnostics(model: Learner, rollout: Rollout) -> None:
    """What the new policy looks like from outside."""
    figures = diagnose(model.policy, rollout, model.iteration, model.generator)
    for key, value in figures.items():
        model.logger.record(key, value)
