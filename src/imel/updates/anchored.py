"""Memories improved again at every iteration, and a policy that moves by a bounded step.

A departure from the paper (paper notes 10 and 13). What a memory asks for depends on the policy
that is asked, so with every iteration

1. its anchor becomes what the policy does there now,
2. its advantage is estimated again, with the present critic and by the present policy's measure,
3. its improved mean is the one-sample policy gradient step from the new anchor (Alg. 1 l. 9-11).

Of old memories, whose states the policy seldom meets by now, only the first is true: they ask for
no change and so keep the policy as it is there. The fitted step, not each memory's own, is then
scaled to the trust region, on average and where it moves the policy most. That makes for steps
which are mostly noise: they grow shorter, and it is the mean of recent policies that the policy
settles on.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from imel.advantage import replayed_advantages, standardise
from imel.critic import explained_variance, fit_critic
from imel.experience import Rollout, flatten_time
from imel.improvement import (
    confirmed_share,
    cooled,
    eased_share,
    held_share,
    importance_ratios,
    improved_means,
    mean_kl,
    peak_kl,
    settling_rate,
    step_scale,
    step_size,
)
from imel.interpolators.anchored import Anchored, AnchoredTrend
from imel.policy import Acting, MkiPolicy, TrendedPolicy
from imel.updates.learner import (
    Learner,
    fit_interpolator,
    memories,
    move_std,
    observe,
    record_diagnostics,
)

_CHUNK = 512
"""States answered at once: their weights then stay in cache."""


def improve(model: Learner, rollout: Rollout) -> None:
    """Remember the batch and improve young memories against the policy that made it."""
    settings, policy = model.settings, model.policy
    memory, column = policy.memory, policy.memory.column
    rows = memories(rollout, policy.device)
    rows["settled_means"] = policy.decide(rows["states"])[0]
    _re_anchor(model)
    observe(model, rollout)
    memory.add(rows, model.iteration, settings, model.generator)
    actions, means = column("actions"), column("means")
    # A sigma of the interpolator's own is taken as it was when the memory was made
    stds = column("stds") if policy.own_std else policy.std.clone().expand_as(means)
    ratios = importance_ratios(actions, means, stds, column("behaviour_means"), column("stds"))
    young = memory.newest(settings.improved_size or len(memory))
    usable = ratios[young].sum().square() / (ratios[young].square().sum() * young.numel())
    model.logger.record("memory/usable_share", float(usable))
    # At most one: an action that has become likelier counts once, not often
    likely = ratios[young].clamp_max(1.0)
    ratios, advantages = torch.zeros_like(ratios), torch.zeros_like(ratios)
    ratios[young] = likely
    found = _advantages(model, likely, young)
    _shorten_step(model, found)
    advantages[young] = standardise(found, settings.advantage_clip)
    step = (ratios * advantages, actions, means, stds)
    eta = step_size(*step, model.kl_budget)
    improved = improved_means(*step, eta)
    column("advantages").copy_(advantages)
    column("improved_means").copy_(improved)
    policy.changed()
    move_std(model, ratios * advantages / ratios.mean(), *step[1:], eta)
    model.logger.record("improve/step_size", eta)
    model.logger.record("improve/target_kl", mean_kl(improved, means, stds))


def fit(model: Learner, rollout: Rollout) -> None:
    """Fit the anchor's interpolator, smooth the improvements, bound the step they make."""
    fit_interpolator(model)
    policy = model.policy
    if isinstance(policy, MkiPolicy):
        model.logger.record("train/kernel_share", weigh_kernel(policy, model.generator))
    conditioned = policy.acting.interpolate
    assert isinstance(conditioned, Anchored)
    policy.step_scale.fill_(_bound_step(model, rollout, conditioned))
    conditioned.scale = float(policy.step_scale)
    if isinstance(policy, TrendedPolicy):
        policy.settling_rate.fill_(settling_rate(model.iteration, model.settings.settling))
    model.logger.record("improve/step_scale", conditioned.scale)
    record_diagnostics(model, rollout)


def weigh_kernel(policy: MkiPolicy, generator: torch.Generator) -> float:
    """Let the kernel speak as far as it predicts memories of other episodes; how far that is."""
    context = policy.context()
    rows = torch.randperm(len(context), generator=generator)[:_CHUNK].to(policy.device)
    targets = context.rows(rows)
    with torch.no_grad():
        predicted = policy.interpolator.leave_one_out(context, targets).mean
    share = confirmed_share(predicted, targets.values)
    policy.kernel_share.fill_(share)
    policy.fitted()
    return share


def _re_anchor(model: Learner) -> None:
    """Set the means of all memories to what the policy does at their states now."""
    policy, column = model.policy, model.policy.memory.column
    if policy.memory.holds_prior:
        return
    means = settled = _at_memories(policy.acting, column("states"))
    if policy.settled is not policy.acting:
        settled = _at_memories(policy.settled, column("states"))
    column("means").copy_(means.clamp(-1.0, 1.0) if model.settings.clip_means else means)
    column("settled_means").copy_(settled)


def _at_memories(acting: Acting, states: Tensor) -> Tensor:
    if isinstance(acting.interpolate, AnchoredTrend):
        return acting.interpolate.at_memories()
    return torch.cat([acting(part)[0] for part in torch.split(states, _CHUNK)])


def _shorten_step(model: Learner, advantages: Tensor) -> None:
    """Bound this iteration's step the more, the later it is and the less there is to gain."""
    settings, policy, usual = model.settings, model.policy, model.usual_gain
    # In units of the rewards: the returns' scale grows while a policy learns to live longer
    gain = float(advantages.double().std(unbiased=False)) * model.return_scale.deviation
    if math.isfinite(gain):
        usual.update(torch.tensor([[gain]], dtype=torch.float64))
    share = eased_share(gain, float(usual.mean), settings.easing)
    region = cooled(model.trust_region, model.iteration, settings.cooling)
    model.trust_region = max(share, settings.easing_floor) * region
    if isinstance(policy, TrendedPolicy):
        policy.hold(share * held_share(model.iteration, settings.easing))
    model.logger.record("improve/gain", gain)
    model.logger.record("improve/trust_region", model.trust_region)


def _bound_step(model: Learner, rollout: Rollout, conditioned: Anchored) -> float:
    """How far to go along the step: by its mean KL on the batch and by its largest in memory."""
    settings, policy, memory = model.settings, model.policy, model.policy.memory
    stds = flatten_time(rollout.stds).to(policy.device)
    with torch.no_grad():
        states = policy.normaliser(flatten_time(rollout.states).to(policy.device))
        step = conditioned.step(states).mean
        remembered = conditioned.step_at_memories()
    kl = mean_kl(step, torch.zeros_like(step), stds)
    young = memory.newest(settings.improved_size or len(memory))
    remembered = remembered[young]
    stds = memory.column("stds")[young] if policy.own_std else stds[:1]
    peak = peak_kl(remembered, torch.zeros_like(remembered), stds)
    model.logger.record("improve/step_kl", kl)
    model.logger.record("improve/step_peak", peak)
    scale = step_scale(kl, model.trust_region)
    if settings.peak_kl > 0.0:
        scale = min(scale, step_scale(peak, settings.peak_kl * model.trust_region))
    return scale


def _advantages(model: Learner, ratios: Tensor, rows: Tensor) -> Tensor:
    """The present policy's advantages of some memories, and the fit of V^w to their values."""
    settings, memory, normaliser = model.settings, model.policy.memory, model.policy.normaliser
    states = normaliser(memory.column("states")[rows])
    with torch.no_grad():
        values = model.critic(states)
        next_values = model.critic(normaliser(memory.column("next_states")[rows]))
    beyond = next_values * (1.0 - memory.column("terminated")[rows])
    rewards = model.return_scale.scale(memory.column("rewards")[rows])
    deltas = rewards + settings.gamma * beyond - values
    order, follows = memory.in_time(rows)
    advantages, corrections = torch.empty_like(values), torch.empty_like(values)
    advantages[order], corrections[order] = replayed_advantages(
        deltas[order], follows, ratios[order], settings.gamma, settings.gae_lambda
    )
    returns = values + corrections
    model.logger.record("train/explained_variance", explained_variance(values, returns))
    loss = fit_critic(
        model.critic, model.critic_optimizer, states, returns, settings, model.generator
    )
    model.logger.record("train/value_loss", loss)
    return advantages
