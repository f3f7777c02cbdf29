"""The update of `RidgePolicy`: all memories are improved again, the policy takes a bounded step.

At every iteration a memory's mean is the present policy's, its advantage the present critic's, and
its improvement the one-sample policy gradient step from there (Alg. 1 l. 9-11). Unlike the paper,
old memories are improved again (note 10), and the trust region bounds the smoothed step (note 13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from imel.data.advantage import replayed_advantages
from imel.data.experience import Rollout
from imel.distributions.gaussian import adapted_std, std_gradient
from imel.policies.base import Stats, Update

if TYPE_CHECKING:
    from imel.learner import LearnerState
    from imel.policies.ridge.ridge_policy import RidgePolicy


class RidgeUpdate(Update):
    """Improves memories and moves a `RidgePolicy`.

    A subclass may also replace the length of a step (`step_length`) and sigma's rule (`next_std`).
    """

    policy: RidgePolicy

    def __init__(self, learner: LearnerState) -> None:
        super().__init__(learner)
        shared = min(1.0, self.settings.std / self.policy.action_dim)
        self.max_std = max(shared, self.settings.min_std)

    # --- what a subclass may replace ---

    def step_length(self, step: Tensor, means: Tensor, new: int) -> float:
        """Return beta: the step's multiple that stays within the trust region.

        step, means [N, d_a] at all remembered states, of which the last `new` are the rollout's
        """
        bound = self.settings.trust_region
        bounds = bound, self.settings.peak_kl * bound
        return self.policy.distribution.step_length(step, means, self.policy.std, new, *bounds)

    def next_std(self, std: Tensor, gradient: Tensor, share: float) -> Tensor:
        """Return sigma after an iteration.

        :param gradient: [d_a] the natural policy gradient on log sigma
        :param share: the share of the trust region that the mean's step was allowed
        """
        step = share * self.settings.std_rate * gradient
        return adapted_std(std, step, self.settings.min_std, self.max_std)

    # --- the update ---

    def start(self) -> None:
        """Set sigma before the first step."""
        if self.policy.distribution.has_std:
            self.policy.std.fill_(self.max_std)

    def __call__(self, rollout: Rollout) -> Stats:
        """Remember the rollout, improve all memories, move the policy and sigma."""
        policy, memory = self.policy, self.policy.memory
        distribution, column = policy.distribution, memory.column
        self._remember(rollout)
        actions, stds = column("actions"), policy.std.expand_as(column("actions")).clone()
        means = policy.design.predict(policy.coefficients.float())
        behaviour = column("behaviour_means"), column("stds")
        ratios = distribution.ratios(actions, means, stds, *behaviour)
        stats = {"memory/effective_sample_size": effective_sample_size(ratios)}
        ratios = ratios.clamp_max(1.0)  # an action that has become likelier counts once
        advantages, fitted = self._advantages(ratios)
        gain = float(advantages.double().std(unbiased=False))
        # Of mean and sigma: nothing new is tried where sigma falls while the mean stands still
        share = min(1.0, gain / self.settings.full_step_gain)
        advantages = self.standardised(advantages)
        weights, bound = ratios * advantages, self.settings.trust_region
        improved, _ = distribution.improve(weights, actions, means, stds, bound)
        column("means").copy_(means)
        column("improved_means").copy_(improved)
        column("advantages").copy_(advantages)
        moved = self._step(means, improved - means, share, len(rollout))
        if distribution.has_std:
            gradient = std_gradient(weights / ratios.mean(), actions, means, stds)
            policy.std.copy_(self.next_std(policy.std, gradient, share))
        sizes = {"memory/size": len(memory), "memory/lessons": len(policy.lessons)}
        return stats | fitted | moved | {"improve/gain": gain} | sizes

    def warm_start(self, logged: Any) -> None:
        """Imitate logged memories; without rewards nothing more can be learned from them."""
        policy, column, lessons = self.policy, self.policy.memory.column, self.policy.lessons
        lessons.record_episodes(column("episodes"), column("rewards"), column("states"), 0, 0)
        policy.imitate()
        if not logged.rewarded:
            policy.memory.forget_episodes(column("episodes").clone())
            policy.invalidate()

    def _remember(self, rollout: Rollout) -> None:
        """Take a rollout into memory, moments and the list of lessons."""
        policy, learner = self.policy, self.learner
        rows = rollout.rows(policy.device)
        policy.memory.add(rows, learner.iteration)
        policy.normaliser.update(rows["states"])
        learner.return_scale.update_from(rollout.rewards, rollout.terminated | rollout.truncated)
        columns, seen = (rows["episodes"], rows["rewards"], rows["states"]), learner.num_timesteps
        policy.lessons.record_episodes(*columns, seen - len(rollout), seen)
        # At iterations 1, 2, 4, 8 …
        count = learner.iteration + 1
        if count & (count - 1) == 0:
            policy.refresh_normaliser()
        else:
            policy.design.update(policy.memory)

    def _advantages(self, ratios: Tensor) -> tuple[Tensor, Stats]:
        """Return advantages by the present policy in deviations of the return; fit the critic."""
        settings, memory, normaliser = self.settings, self.policy.memory, self.policy.normaliser
        critic, return_scale = self.learner.critic, self.learner.return_scale
        states = normaliser(memory.column("states"))
        order, follows = memory.in_time()
        with torch.no_grad():
            values = critic(states)
            next_values = values[order].roll(-1)  # of the next row, where that is what followed
            last = order[~follows]
            next_values[~follows] = critic(normaliser(memory.column("next_states")[last]))
        rewards = return_scale.scale(memory.column("rewards"))
        beyond = next_values * (1.0 - memory.column("terminated")[order])
        deltas = rewards[order] + settings.gamma * beyond - values[order]
        advantages, corrections = torch.empty_like(values), torch.empty_like(values)
        advantages[order], corrections[order] = replayed_advantages(
            deltas, follows, ratios[order], settings.gamma, settings.gae_lambda
        )
        stats = self.fit_critic(states, values, values + corrections)
        self.learner.n_updates += settings.critic_epochs
        return advantages, stats

    def _step(self, means: Tensor, improvements: Tensor, share: float, new: int) -> Stats:
        """Move the policy along the smoothed improvements, by a share of the trust region."""
        policy = self.policy
        episodes, parts = policy.step(improvements)
        step = policy.design.predict(parts.double().sum(dim=0).float())  # [N, d_a]
        scale = share * self.step_length(step, means, new)
        kls = policy.distribution.kls(scale * step, means, policy.std)
        policy.move(episodes, parts, scale)
        return {
            "improve/step_scale": scale,
            "improve/policy_kl": float(kls[-new:].mean()),
            "improve/peak_kl": float(kls.max()),
        }


def effective_sample_size(ratios: Tensor) -> float:
    """Return (sum rho)^2 / (N sum rho^2): the share of memories that still count."""
    return float(ratios.sum().square() / (ratios.square().sum() * ratios.numel()))
