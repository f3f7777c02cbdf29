"""The paper's reading: the new batch is improved, and the policy interpolates improved means.

Advantages (Alg. 3), improvement and memory (Alg. 1 l. 8-12), then the fit (l. 3).
"""

from __future__ import annotations

import torch
from torch import Tensor

from imel.advantage import estimate_advantages, standardise
from imel.critic import explained_variance, fit_critic
from imel.experience import Rollout, flatten_time
from imel.improvement import improved_means, mean_kl, step_size
from imel.updates.learner import (
    Learner,
    fit_interpolator,
    memories,
    move_std,
    observe,
    record_diagnostics,
)


def improve(model: Learner, rollout: Rollout) -> None:
    """Annotate the batch with improved means, move sigma, remember (Alg. 1 l. 8-12)."""
    settings, policy = model.settings, model.policy
    rows = memories(rollout, policy.device)
    advantages = _advantages(model, rollout)  # l. 8
    step = (advantages, rows["actions"], rows["means"], rows["stds"])
    eta = step_size(*step, model.kl_budget)  # l. 9
    improved = improved_means(*step, eta)  # l. 11
    if settings.clip_means:
        improved = improved.clamp(-1.0, 1.0)
    move_std(model, *step, eta)
    rows |= {"improved_means": improved, "advantages": advantages}
    policy.memory.add(rows, model.iteration, settings, model.generator)  # l. 12
    policy.changed()
    model.logger.record("improve/step_size", eta)
    model.logger.record("improve/target_kl", mean_kl(improved, rows["means"], rows["stds"]))


def fit(model: Learner, rollout: Rollout) -> None:
    """Train the model, and condition the policy on what is now remembered (Alg. 1 l. 3)."""
    fit_interpolator(model)
    record_diagnostics(model, rollout)


def _advantages(model: Learner, rollout: Rollout) -> Tensor:
    """A_{0:T} (Alg. 3), and the fit of V^w to the returns."""  # [E * T]
    settings, normaliser, device = model.settings, model.policy.normaliser, model.policy.device
    observe(model, rollout)
    states = normaliser(rollout.states.to(device))
    with torch.no_grad():
        values = model.critic(states).cpu()
        next_values = model.critic(normaliser(rollout.next_states.to(device))).cpu()
    advantages, returns = estimate_advantages(
        model.return_scale.scale(rollout.rewards),
        values,
        next_values,
        rollout.terminated,
        rollout.ended,
        settings,
    )
    model.logger.record("train/explained_variance", explained_variance(values, returns))
    loss = fit_critic(
        model.critic,
        model.critic_optimizer,
        states.flatten(0, 1),
        returns.flatten().to(device),
        settings,
        model.generator,
    )
    model.logger.record("train/value_loss", loss)
    return standardise(flatten_time(advantages), settings.advantage_clip).to(device)
