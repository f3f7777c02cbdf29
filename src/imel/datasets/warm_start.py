"""A memory before the first step: from demonstrations, or from what another run has logged.

The rows go the way of a batch of one's own (Alg. 1 l. 8-12, then l. 3), but they are older than
the first one: their iterations are below that of the prior context, so that whatever forgets the
oldest forgets them first.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from imel.advantage import replayed_advantages, standardise
from imel.critic import fit_critic
from imel.datasets.columns import Logged, trajectories
from imel.datasets.source import Dataset, read_dataset
from imel.errors import ImelError
from imel.improvement import improved_means, step_size
from imel.kernels import denormals_flushed
from imel.memory import PRIOR
from imel.persistence.saving import SavedAlgorithm
from imel.schedules import parse_schedule
from imel.training import fit_leave_one_out

_CRITIC_FITS = 5
"""Iterations' worth of gradient steps for the critic."""
_MOST_FITS, _PATIENCE, _GAIN = 50, 3, 0.01
"""So many for the interpolator at most, until three in a row have not lowered its loss by 1 %."""


def warm_start(model: SavedAlgorithm, dataset: Dataset) -> None:
    """Fill the memory from a dataset and fit normaliser, critic and interpolator to it."""
    memory = model.policy.memory
    if model.num_timesteps or not memory.holds_prior:
        raise ImelError("a warm start comes before the first step, and once")
    logged = read_dataset(dataset, model.policy)
    anchored = model.settings.update == "anchored"
    if anchored and not logged.rewarded:
        raise ImelError(
            "update='anchored' improves its memories again at every iteration, for which these "
            "have no rewards; use preset='plain', or give rewards"
        )
    rows = _rows(_fitting(logged, memory.capacity), model.policy.device)
    if anchored and logged.update != "anchored":
        # An anchored policy is an interpolation of means: the improvement is already made
        rows["means"] = rows["improved_means"]
    with denormals_flushed():
        _remember(model, rows)
        if logged.rewarded:
            advantages = _learn_values(model)
            if logged.kind == "acted":
                _improve(model, advantages)
        _fit(model)


def _fitting(logged: Logged, capacity: int) -> dict[str, np.ndarray]:
    """The columns, or of too many rows the newest whole parts of episodes that fit."""
    if len(logged) <= capacity:
        return logged.columns
    parts = trajectories(logged.columns)
    iterations = logged.columns["iterations"]
    newest_first = sorted(parts, key=lambda rows: (iterations[rows[-1]], rows[-1]), reverse=True)
    kept: list[np.ndarray] = []
    room = capacity
    for rows in newest_first:
        if kept and len(rows) > room:
            break
        kept.append(rows[-room:])
        room -= len(kept[-1])
    chosen = np.sort(np.concatenate(kept))
    warnings.warn(
        f"the newest {len(chosen)} of {len(logged)} logged transitions fit into memory_size="
        f"{capacity}",
        RuntimeWarning,
        stacklevel=4,
    )
    return {name: column[chosen] for name, column in logged.columns.items()}


def _rows(columns: dict[str, np.ndarray], device: torch.device) -> dict[str, Tensor]:
    columns = dict(columns)
    columns["iterations"] = columns["iterations"] - columns["iterations"].max() + PRIOR - 1
    if columns["episodes"].min() < 0:  # such ids are the prior context's
        columns["episodes"] = columns["episodes"] - columns["episodes"].min()
    return {
        name: torch.from_numpy(np.ascontiguousarray(column)).to(device)
        for name, column in columns.items()
    }


def _remember(model: SavedAlgorithm, rows: dict[str, Tensor]) -> None:
    """Take the rows in, iteration by iteration, and let the moments of states see them."""
    memory = model.policy.memory
    iterations = rows.pop("iterations")
    for iteration in torch.unique(iterations).tolist():
        some = {name: column[iterations == iteration] for name, column in rows.items()}
        memory.add(some, iteration, model.settings, model.generator)
    model.policy.normaliser.update(rows["states"])
    model.policy.changed()
    model.clock.next_episode = max(model.clock.next_episode, int(rows["episodes"].max()) + 1)


def _learn_values(model: SavedAlgorithm) -> Tensor:
    """Fit V^w and the returns' scale to the memories; the advantages they then have."""  # [N]
    settings, policy = model.settings, model.policy
    column, normaliser = policy.memory.column, policy.normaliser
    order, follows = policy.memory.in_time()
    rewards = column("rewards")[order].cpu()
    model.return_scale.update_from(rewards[:, None], ~follows.cpu()[:, None])
    model.return_scale.restart()
    states, next_states = normaliser(column("states")), normaliser(column("next_states"))
    scaled = model.return_scale.scale(column("rewards"))
    alive = 1.0 - column("terminated")
    advantages = torch.empty_like(scaled)
    for fit in range(_CRITIC_FITS + 1):
        with torch.no_grad():
            values, beyond = model.critic(states), model.critic(next_states) * alive
        deltas = scaled + settings.gamma * beyond - values
        advantages[order], _ = replayed_advantages(
            deltas[order], follows, torch.ones_like(deltas), settings.gamma, settings.gae_lambda
        )
        if fit < _CRITIC_FITS:
            returns = values + advantages
            fit_critic(
                model.critic, model.critic_optimizer, states, returns, settings, model.generator
            )
    return advantages


def _improve(model: SavedAlgorithm, advantages: Tensor) -> None:
    """Annotate the memories with improved means (Alg. 1 l. 9-11)."""
    settings, column = model.settings, model.policy.memory.column
    advantages = standardise(advantages, settings.advantage_clip)
    step = (advantages, column("actions"), column("behaviour_means"), column("stds"))
    eta = step_size(*step, parse_schedule("kl_budget", settings.kl_budget)(1.0))
    improved = improved_means(*step, eta)
    column("improved_means").copy_(improved.clamp(-1.0, 1.0) if settings.clip_means else improved)
    column("advantages").copy_(advantages)
    model.policy.changed()


def _fit(model: SavedAlgorithm) -> None:
    """train(model, C) (Alg. 1 l. 3), so that the policy imitates before it has acted."""
    policy = model.policy
    policy.interpolator.train()
    best, waited = float("inf"), 0
    for _ in range(_MOST_FITS):
        fit = fit_leave_one_out(
            policy.interpolator, model.optimizer, policy.context(), model.settings, model.generator
        )
        if fit is None:
            break
        model._n_updates += fit.gradient_steps
        # A kernel needs few steps, a Neural Process many; the loss of the latter may be negative
        waited = 0 if fit.loss < best - _GAIN * abs(best) else waited + 1
        best = min(best, fit.loss)
        if waited == _PATIENCE:
            break
    policy.interpolator.eval()
    policy.fitted()
