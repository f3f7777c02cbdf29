"""What a fitted policy looks like from outside: the figures logged after each iteration."""

from __future__ import annotations

import torch

from imel.experience import Rollout
from imel.improvement import mean_kl
from imel.interpolators.base import Weighted, effective_neighbours
from imel.policy import ImelPolicy
from imel.training import leave_one_out_error

_ROWS = 256
"""Memories or states on which the costlier figures are estimated."""
_FEW_ROWS = 16
"""States on which the one that needs every weight is."""


def diagnose(
    policy: ImelPolicy, rollout: Rollout, iteration: int, generator: torch.Generator
) -> dict[str, float]:
    """Figures by logger key: fit, distance from the policy that acted, state of the memory."""
    memory, context, device = policy.memory, policy.context(), policy.device
    figures: dict[str, float] = {}
    rows = torch.randperm(len(context), generator=generator)[:_ROWS].to(device)
    # Where nothing is learned there is no fit to judge
    learns = policy.interpolator.learns
    error = leave_one_out_error(policy.interpolator, context, rows) if learns else None
    if error is not None:
        figures["train/loo_error"] = error
    improvements = memory.column("improved_means") - memory.column("means")
    figures["train/old_mean_error"] = float(improvements.square().mean())
    some = torch.randperm(len(rollout), generator=generator)[:_ROWS]
    states, means, stds = (
        column.flatten(0, 1)[some].to(device)
        for column in (rollout.states, rollout.means, rollout.stds)
    )
    new_means, _ = policy.act(states)
    figures["improve/policy_kl"] = mean_kl(new_means, means, stds)
    conditioned = policy.acting.interpolate
    if isinstance(conditioned, Weighted):
        weights = conditioned.weights(policy.normaliser(states[:_FEW_ROWS]))
        figures["memory/effective_neighbours"] = float(effective_neighbours(weights.abs()).mean())
    age = iteration - memory.column("iterations").double()
    figures["memory/age"] = float(age.mean())
    figures["memory/size"] = len(memory)
    figures["memory/episodes"] = torch.unique(memory.column("episodes")).numel()
    return figures
