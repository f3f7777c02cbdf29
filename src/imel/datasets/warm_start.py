"""A memory before the first step: from demonstrations, or from what another run has logged.

A dataset of any kind becomes rows of a memory in policy units. They go the way of a batch of one's
own (Alg. 1 l. 8-12, then l. 3), but are older than the first one: their iterations are below that
of the prior context, so that whatever forgets the oldest forgets them first.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from imel.data.advantage import replayed_advantages, standardise
from imel.data.arithmetic import denormals_flushed
from imel.data.memory import PRIOR
from imel.datasets.columns import (
    ANNOTATIONS,
    Array,
    Columns,
    Logged,
    checked,
    read_parquet,
)
from imel.datasets.minari_files import minari_episodes
from imel.errors import ImelError, nearest_name, one_line
from imel.learner import LearnerState
from imel.policies import Policy

_CRITIC_FITS = 5
"""Iterations' worth of gradient steps for the critic."""
_TOLERANCE = 2e-4
"""By how much an action may lie outside of [-1, 1], for rounding."""
_IGNORED = ("id", "seed", "options", "infos", "truncations")


@dataclass(frozen=True)
class Episode:
    """A demonstration, or a logged part of an episode, in the environment's units.

    What is not known is None. `means` and `stds` are those of the Gaussian policy that acted; of
    discrete actions `means` are logits, and there are no `stds`.
    """

    observations: Array  # [T + 1, d_s] the last one is where the episode ended
    actions: Array  # [T, d_a], or numbers of choices
    rewards: Array | None = None  # [T]
    terminations: Array | None = None  # [T] bool; without them nothing has terminated
    means: Array | None = None  # [T, d_a]
    stds: Array | None = None  # [T, d_a]


_FIELDS = tuple(field.name for field in fields(Episode))

Dataset = str | os.PathLike[str] | Sequence[Episode | Mapping[str, Any] | Any] | Any
"""A Parquet file of `imel export`, a Minari dataset or the id of a local one, or episodes."""


def read_dataset(dataset: Dataset, policy: Policy) -> Logged:
    """Return logged transitions as rows of this policy's memory; refuse what does not fit."""
    source = "the dataset"
    if isinstance(dataset, os.PathLike):
        dataset = str(dataset)
    if isinstance(dataset, str):
        path, source = Path(dataset), f"the Minari dataset {dataset}"
        if path.is_file():
            return Logged(read_parquet(path, policy), "annotated", rewarded=True)
        if path.suffix == ".parquet":
            raise ImelError(f"there is no file {path}")
    if isinstance(dataset, str) or hasattr(dataset, "iterate_episodes"):
        dataset = minari_episodes(dataset, policy, source)
    if not isinstance(dataset, Sequence) or not dataset:
        raise ImelError(
            f"{source} holds no episodes: give a Parquet file of imel export, a Minari dataset or "
            "its id, or a list of episodes"
        )
    names = (*_FIELDS, "infos")
    tables: list[Mapping[str, Any]] = [
        each if isinstance(each, Mapping) else {name: getattr(each, name, None) for name in names}
        for each in dataset
    ]
    annotated = all(set(ANNOTATIONS.values()) <= set(each.get("infos") or ()) for each in tables)
    parts = []
    for number, table in enumerate(tables):
        where = f"{source}, episode {number}"
        try:
            rows = _rows_of(table, number, policy, where)
            if annotated:
                infos = table["infos"]
                rows |= {name: np.asarray(infos[key])[:-1] for name, key in ANNOTATIONS.items()}
            else:
                _convert(rows, policy, where)
            parts.append(checked(rows, policy, where))
        except ImelError:
            raise
        except (TypeError, ValueError, RuntimeError) as error:  # of whatever makes arrays
            raise ImelError(f"{where} does not fit this model: {one_line(error)}") from None
    known = set.intersection(*map(set, parts))
    columns = {name: np.concatenate([part[name] for part in parts]) for name in known}
    if annotated:
        return Logged(columns, "annotated", rewarded=True)
    acted = {"rewards", "means", "stds"} <= known
    if not acted:
        columns["means"] = policy.distribution.demonstrated(columns["actions"])
        columns["stds"] = np.broadcast_to(policy.std.cpu().numpy(), columns["actions"].shape)
    columns |= dict.fromkeys(("behaviour_means", "improved_means"), columns["means"])
    zeros = np.zeros(len(columns["states"]), np.float32)
    columns = {"rewards": zeros, **columns, "advantages": zeros}
    return Logged(columns, "acted" if acted else "shown", "rewards" in known)


def _rows_of(table: Mapping[str, Any], number: int, policy: Policy, where: str) -> Columns:
    """Return the columns that are known of an episode, actions in the environment's units."""
    for name in table.keys() - {*_FIELDS, *_IGNORED}:
        raise ImelError(f"{where} has '{name}'; {nearest_name(str(name), _FIELDS)}")
    given = {name: table[name] for name in _FIELDS if table.get(name) is not None}
    for name in {"observations", "actions"} - given.keys():
        raise ImelError(f"{where} has no {name}")
    known = {name: np.asarray(values, np.float64) for name, values in given.items()}
    observations, count = known.pop("observations"), len(known["actions"])
    states = policy.observe(observations)
    if not len(observations) == len(states) == count + 1:
        raise ImelError(
            f"{where} has observations of the shape {observations.shape} and {count} actions: one "
            f"observation more than actions is needed, each of {policy.observation_space}"
        )
    return {
        "states": states[:-1],
        "next_states": states[1:],
        "terminated": known.pop("terminations", np.zeros(count)),
        "episodes": np.full(count, number),
        "steps": np.arange(count),
        "iterations": np.full(count, number),
        **known,
    }


def _convert(rows: Columns, policy: Policy, where: str) -> None:
    """Bring actions, means and sigmas to policy units."""
    space = policy.action_space
    if not isinstance(space, spaces.Box):
        rows["actions"] = policy.distribution.encode(rows["actions"])
        if "means" in rows:
            rows["stds"] = np.ones_like(rows["actions"])
        return
    checked(rows, policy, where)  # before arithmetic that would broadcast or hide
    low, high = space.low.astype(np.float64), space.high
    half = (high - low) / 2.0
    for name in {"actions", "means"} & rows.keys():
        rows[name] = (rows[name] - low) / half - 1.0
    if "stds" in rows:
        rows["stds"] = rows["stds"] / half
    if "means" in rows:  # a draw of a known Gaussian may well lie outside
        return
    if (np.abs(rows["actions"]) > 1.0 + _TOLERANCE).any():
        raise ImelError(
            f"{where} has actions outside of {space}: clip them first, as the environment has done"
        )
    rows["actions"] = rows["actions"].clip(-1.0, 1.0)


def warm_start(learner: LearnerState, dataset: Dataset) -> None:
    """Fill the memory from a dataset and fit normaliser, critic and policy to it."""
    memory = learner.policy.memory
    if learner.num_timesteps or (len(memory) and not memory.holds_prior):
        raise ImelError("a warm start comes before the first step, and once")
    logged = read_dataset(dataset, learner.policy)
    columns = _fitting(logged, memory.capacity)
    with denormals_flushed():
        _remember(learner, columns)
        if logged.rewarded:
            advantages = _learn_values(learner)
            if logged.kind == "acted":  # improved ones keep theirs, imitated ones have none
                memory.column("advantages").copy_(advantages)
        learner.update.warm_start(logged)


def _fitting(logged: Logged, capacity: int) -> Columns:
    """Return the columns, or of too many rows the newest, episode by episode."""
    columns = logged.columns
    if len(logged) <= capacity:
        return columns
    warnings.warn(
        f"the newest {capacity} of {len(logged)} logged transitions fit into memory_size",
        RuntimeWarning,
        stacklevel=4,
    )
    order = np.lexsort([columns[name] for name in ("steps", "episodes", "iterations")])
    chosen = np.sort(order[-capacity:])
    return {name: column[chosen] for name, column in columns.items()}


def _remember(learner: LearnerState, columns: Columns) -> None:
    """Take the rows in, iteration by iteration, and let the moments of states see them."""
    memory, device = learner.policy.memory, learner.policy.device
    rows = {name: torch.tensor(column, device=device) for name, column in columns.items()}
    iterations = rows.pop("iterations")
    iterations += PRIOR - 1 - iterations.max()
    rows["episodes"] -= rows["episodes"].min().clamp(max=0)  # negative ids are the prior context's
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
