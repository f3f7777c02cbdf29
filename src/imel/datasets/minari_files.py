"""Columns as a Minari dataset and back, so that offline learners can use what imel has done.

Minari's own arrays hold what the environment saw: actions in its units, clipped to its bounds.
What imel knows beyond that stands in `infos` under `imel_...`, in policy units; entry t belongs to
observation t, and the one of the last observation is empty.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from imel.datasets.columns import SCALARS, VECTORS, Array, Columns, Logged, checked, trajectories
from imel.datasets.episodes import logged_episodes, require_same_actions
from imel.errors import ImelError, one_line
from imel.extras import require
from imel.policies import Policy

_PREFIX = "imel_"
_IN_INFOS = {
    name: f"{_PREFIX}{singular}"
    for name, singular in {**VECTORS, **SCALARS}.items()
    if name not in ("states", "next_states", "rewards", "terminated")
}


def minari_path(dataset_id: str) -> Path:
    """Where Minari keeps a dataset; an id that it would refuse is refused here."""
    minari_dataset = require("minari.dataset.minari_dataset", "datasets")
    try:
        minari_dataset.parse_dataset_id(dataset_id)
    except (ValueError, TypeError):
        raise ImelError(
            f"'{dataset_id}' is no id of a Minari dataset; they look like imel/pendulum/memory-v0"
        ) from None
    found: Path = require("minari.storage", "datasets").get_dataset_path(dataset_id)
    return found


def write_minari(
    dataset_id: str,
    columns: Columns,
    policy: Policy,
    env_id: str | None,
    document: Mapping[str, Any],
    seeds: Sequence[int] | None = None,
) -> None:
    """Make a new dataset of each part of an episode; `seeds` are those of the episodes."""
    place = minari_path(dataset_id)
    if policy.features_extractor is not None:
        raise ImelError(
            f"the memory holds features of {policy.observation_space}, and a Minari dataset "
            "observations: export to parquet"
        )
    if place.exists():
        raise ImelError(f"the Minari dataset {dataset_id} exists already ({place})")
    minari = require("minari", "datasets")
    episode_buffer = require("minari.data_collector", "datasets").EpisodeBuffer
    parts = trajectories(columns)
    buffers = [
        episode_buffer(**_episode(columns, rows, policy), seed=seeds[i] if seeds else None)
        for i, rows in enumerate(parts)
    ]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nobody has named an author, an e-mail, ...
            made = minari.create_dataset_from_buffers(
                dataset_id,
                buffers,
                env=_recoverable(env_id),
                observation_space=policy.observation_space,
                action_space=policy.action_space,
                algorithm_name=f"IMeL, {type(policy).__name__}",
                description=f"{document.get('source')} of a run of imel",
            )
            made.storage.update_metadata({"imel": dict(document)})
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


def _recoverable(env_id: str | None) -> str | None:
    """The id, if whoever loads the dataset can make the environment from what is recorded."""
    if env_id is None:
        return None
    try:
        gymnasium.spec(env_id).to_json()
    except (gymnasium.error.Error, ImportError, TypeError, ValueError):
        return None  # not registered, or by a class or a function that JSON cannot hold
    return env_id


def _episode(columns: Columns, rows: Array, policy: Policy) -> dict[str, Any]:
    """The fields of a Minari episode."""
    states, nexts = columns["states"][rows], columns["next_states"][rows]
    terminated = columns["terminated"][rows].astype(bool)
    cut = np.zeros_like(terminated)
    cut[-1] = not terminated[-1]  # what the memory has forgotten may have come after it
    observation_type, action_type = policy.observation_space.dtype, policy.action_space.dtype
    return {
        "observations": np.concatenate([states, nexts[-1:]]).astype(observation_type),
        "actions": policy.to_environment(columns["actions"][rows]).astype(action_type),
        "rewards": columns["rewards"][rows],
        "terminations": terminated,
        "truncations": cut,
        "infos": {key: _padded(columns[name][rows]) for name, key in _IN_INFOS.items()},
    }


def _padded(column: Array) -> Any:
    """With an entry for the last observation, of which nothing is known."""
    empty = -1 if column.dtype.kind == "i" else np.nan
    padded = np.concatenate([column, np.full_like(column[:1], empty)])
    return list(padded) if column.ndim == 1 else padded  # Minari's Arrow format wants lists


def read_minari(dataset: Any, policy: Policy) -> Logged:
    """A dataset, ours with its annotations or anybody's as demonstrations."""
    source = f"the Minari dataset {dataset.id}"
    require_same_actions(dataset.action_space, policy, source)
    if dataset.observation_space.shape != policy.observation_space.shape:
        raise ImelError(
            f"{source} does not fit this model: it observes {dataset.observation_space}, "
            f"not {policy.observation_space}"
        )
    try:
        episodes = list(dataset.iterate_episodes())
    except Exception as error:  # of whatever reads HDF5 or Arrow beneath it
        raise ImelError(f"{source} cannot be read: {one_line(error)}") from None
    if not episodes or not all(set(_IN_INFOS.values()) <= set(e.infos or {}) for e in episodes):
        return logged_episodes(episodes, policy, source)
    parts: dict[str, list[Array]] = {name: [] for name in (*VECTORS, *SCALARS)}
    for episode in episodes:
        for name, key in _IN_INFOS.items():
            parts[name].append(np.asarray(episode.infos[key])[:-1])
        parts["states"].append(episode.observations[:-1])
        parts["next_states"].append(episode.observations[1:])
        parts["rewards"].append(episode.rewards)
        parts["terminated"].append(episode.terminations)
    try:
        columns = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    except (TypeError, ValueError) as error:
        raise ImelError(f"{source} has episodes of different shapes: {one_line(error)}") from None
    widths = policy.memory.states.shape[1], policy.memory.actions.shape[1]
    return Logged(checked(columns, *widths, source), "annotated", rewarded=True)
