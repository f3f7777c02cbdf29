"""The update of `RidgePolicy`: all memories are improved again, the policy takes a bounded step.

At every iteration the mean of a memory is that of the present policy, its advantage is estimated
again with the present critic, and its improvement is the one-sample policy gradient step from there
(Alg. 1 l. 9-11). Two departures from the paper: old memories are improved again (paper note 10),
and the trust region bounds the smoothed step, not that of each memory (paper note 13).
"""

from __future__ import annotations

import torch
from torch import Tensor

from imel.data.advantage import replayed_advantages, standardise
from imel.data.critic import explained_variance, fit_critic
from imel.data.experience import Rollout
from imel.distributions.gaussian import adapted_std, std_gradient
from imel.policies.ridge.ridge_policy import RidgePolicy
from imel.policies.update import Learner, Logged
from imel.settings import RidgeSettings

_PEAK = 10.0
"""The largest KL of a step at any remembered state, in trust regions: the mean over a rollout does
not see rare states, such as those in which episodes start."""
_WORTHWHILE = 0.1
"""Deviation of the advantages, in deviations of the return, from which on a step uses the whole
trust region. Below it the steps of mean and sigma are shorter in proportion: what is left to gain
is mostly noise. Both, since nothing new is tried where sigma falls while the mean stands still."""


class RidgeUpdate:
    """Improves memories and moves a `RidgePolicy`."""

    def __init__(self, settings: RidgeSettings, policy: RidgePolicy) -> None:
        self.settings, self.policy = settings, policy
        self.max_std = max(min(1.0, settings.std / policy.action_dim), settings.min_std)

    def start(self, model: Learner) -> None:
        """Set sigma before the first step."""
        del model
        if self.policy.distribution.scaled:
            self.policy.std.fill_(self.max_std)

    def before_rollout(self, model: Learner) -> None:
        """Leave sigma as the last iteration made it."""

    def __call__(self, model: Learner, rollout: Rollout) -> None:
        """Remember the rollout, improve all memories, move the policy and sigma."""
        policy, memory, record = self.policy, self.policy.memory, model.logger.record
        distribution = policy.distribution
        self._remember(model, rollout)
        column = memory.column
        actions, stds = column("actions"), policy.std.expand_as(column("actions")).clone()
        means = policy.design.predict(policy.coefficients.float())
        behaviour = column("behaviour_means"), column("stds")
        ratios = distribution.ratios(actions, means, stds, *behaviour)
        record("memory/effective_sample_size", effective_sample_size(ratios))
        ratios = ratios.clamp_max(1.0)  # an action that has become likelier counts once
        advantages = self._advantages(model, ratios)
        gain = float(advantages.double().std(unbiased=False))
        share = min(1.0, gain / _WORTHWHILE)
        advantages = standardise(advantages, self.settings.advantage_clip)
        weights = ratios * advantages
        budget = self.settings.trust_region
        improved, _ = distribution.improve(weights, actions, means, stds, budget)
        for name, values in (
            ("means", means),
            ("improved_means", improved),
            ("advantages", advantages),
        ):
            column(name).copy_(values)
        self._step(model, means, improved - means, share, len(rollout))
        if distribution.scaled:
            gradient = std_gradient(weights / ratios.mean(), actions, means, stds)
            step = share * self.settings.std_rate * gradient
            policy.std.copy_(adapted_std(policy.std, step, self.settings.min_std, self.max_std))
        record("improve/gain", gain)
        record("memory/size", len(memory))
        record("memory/lessons", len(policy.lessons))

    def warm_start(self, model: Learner, logged: Logged) -> None:
        """Imitate logged memories; without rewards nothing more can be learned from them."""
        del model
        policy, memory = self.policy, self.policy.memory
        column = memory.column
        policy.lessons.attend(column("episodes"), column("rewards"), column("states"), 0, 0)
        policy.imitate()
        if not logged.rewarded:
            memory.forget_episodes(memory.column("episodes").clone())
            policy.invalidate()

    def _remember(self, model: Learner, rollout: Rollout) -> None:
        """Take a rollout into memory, moments and the list of lessons."""
        policy, memory = self.policy, self.policy.memory
        rows = rollout.rows(policy.device)
        memory.add(rows, model.iteration)
        policy.normaliser.update(rows["states"])
        model.return_scale.update_from(rollout.rewards, rollout.terminated | rollout.truncated)
        seen = model.num_timesteps
        policy.lessons.attend(
            rows["episodes"], rows["rewards"], rows["states"], seen - len(rollout), seen
        )
        # Whenever as much again has been seen: then rarely, and never far from the truth
        count = model.iteration + 1
        if count & (count - 1) == 0:
            policy.refresh_normaliser()
        else:
            policy.design.update(memory)

    def _advantages(self, model: Learner, ratios: Tensor) -> Tensor:
        """Return advantages by the present policy in deviations of the return; fit the critic."""
        settings, memory, normaliser = self.settings, self.policy.memory, self.policy.normaliser
        states = normaliser(memory.column("states"))
        order, follows = memory.in_time()
        with torch.no_grad():
            values = model.critic(states)
            next_values = values[order].roll(-1)  # of the next row, where that is what followed
            last = order[~follows]
            next_values[~follows] = model.critic(normaliser(memory.column("next_states")[last]))
        rewards = model.return_scale.scale(memory.column("rewards"))
        beyond = next_values * (1.0 - memory.column("terminated")[order])
        deltas = rewards[order] + settings.gamma * beyond - values[order]
        advantages, corrections = torch.empty_like(values), torch.empty_like(values)
        advantages[order], corrections[order] = replayed_advantages(
            deltas, follows, ratios[order], settings.gamma, settings.gae_lambda
        )
        returns = values + corrections
        model.logger.record("train/explained_variance", explained_variance(values, returns))
        loss = fit_critic(
            model.critic, model.critic_optimizer, states, returns, settings, model.generator
        )
        model._n_updates += settings.critic_epochs
        model.logger.record("train/value_loss", loss)
        return advantages

    def _step(
        self, model: Learner, means: Tensor, improvements: Tensor, share: float, new: int
    ) -> None:
        """Move the policy along the smoothed improvements, by a share of the trust region."""
        policy, record, bound = self.policy, model.logger.record, self.settings.trust_region
        episodes, parts = policy.step(improvements)
        step = policy.design.predict(parts.double().sum(dim=0).float())  # [N, d_a]
        stds = policy.std
        length = policy.distribution.step_length(step, means, stds, new, bound, _PEAK * bound)
        scale = share * length
        kls = policy.distribution.kls(scale * step, means, stds)
        policy.move(episodes, parts, scale)
        record("improve/step_scale", scale)
        record("improve/policy_kl", float(kls[-new:].mean()))
        record("improve/peak_kl", float(kls.max()))


def effective_sample_size(ratios: Tensor) -> float:
    """Return (sum rho)^2 / (N sum rho^2): the share of memories that still count."""
    return float(ratios.sum().square() / (ratios.square().sum() * ratios.numel()))
