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

from imel.data.advantage import replayed_advantages, standardise
from imel.data.arithmetic import denormals_flushed
from imel.data.memory import PRIOR
from imel.datasets.columns import Logged, trajectories
from imel.datasets.logged import Dataset, read_dataset
from imel.errors import ImelError
from imel.learner import LearnerState

_CRITIC_FITS = 5
"""Iterations' worth of gradient steps for the critic."""


def warm_start(learner: LearnerState, dataset: Dataset) -> None:
    """Fill the memory from a dataset and fit normaliser, critic and policy to it."""
    memory = learner.policy.memory
    if learner.num_timesteps or (len(memory) and not memory.holds_prior):
        raise ImelError("a warm start comes before the first step, and once")
    logged = read_dataset(dataset, learner.policy)
    rows = _rows(_fitting(logged, memory.capacity), learner.policy.device)
    with denormals_flushed():
        _remember(learner, rows)
        if logged.rewarded:
            advantages = _learn_values(learner)
            if logged.kind == "acted":  # improved ones keep theirs, imitated ones have none
                memory.column("advantages").copy_(advantages)
        learner.update.warm_start(logged)


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


def _remember(learner: LearnerState, rows: dict[str, Tensor]) -> None:
    """Take the rows in, iteration by iteration, and let the moments of states see them."""
    memory = learner.policy.memory
    iterations = rows.pop("iterations")
    for iteration in torch.unique(iterations).tolist():
        some = {name: column[iterations == iteration] for name, column in rows.items()}
        memory.add(some, iteration)
    learner.policy.normaliser.update(rows["states"])
    learner.policy.normaliser.refresh()
    learner.policy.invalidate()
    learner.clock.next_episode = max(learner.clock.next_episode, int(rows["episodes"].max()) + 1)


def _learn_values(learner: LearnerState) -> Tensor:
    """Fit V^w and the returns' scale to the memories; the advantages they then have."""  # [N]
    policy, settings = learner.policy, learner.policy.settings
    column, normaliser = policy.memory.column, policy.normaliser
    order, follows = policy.memory.in_time()
    rewards = column("rewards")[order].cpu()
    learner.return_scale.update_from(rewards[:, None], ~follows.cpu()[:, None])
    learner.return_scale.restart()
    states, next_states = normaliser(column("states")), normaliser(column("next_states"))
    scaled = learner.return_scale.scale(column("rewards"))
    alive = 1.0 - column("terminated")
    advantages = torch.empty_like(scaled)
    for fit in range(_CRITIC_FITS + 1):
        with torch.no_grad():
            values, beyond = learner.critic(states), learner.critic(next_states) * alive
        deltas = scaled + settings.gamma * beyond - values
        advantages[order], _ = replayed_advantages(
            deltas[order], follows, torch.ones_like(deltas), settings.gamma, settings.gae_lambda
        )
        if fit < _CRITIC_FITS:
            returns = values + advantages
            learner.update.fit_critic(states, values, returns)
    return standardise(advantages, settings.advantage_clip)
