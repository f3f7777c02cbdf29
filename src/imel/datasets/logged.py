"""Whatever a dataset is given as, as rows of a memory in policy units."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from imel.datasets.columns import ANNOTATIONS, Array, Columns, Logged, checked
from imel.datasets.minari_files import minari_episodes
from imel.datasets.tables import read_parquet
from imel.errors import ImelError, nearest_name, one_line
from imel.policies import Policy

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
    if isinstance(dataset, str | os.PathLike):
        path, source = Path(dataset), f"the Minari dataset {dataset}"
        if path.is_file():
            return Logged(read_parquet(path, policy), "annotated", rewarded=True)
        if path.suffix == ".parquet":
            raise ImelError(f"there is no file {path}")
        dataset = minari_episodes(str(dataset), policy, source)
    elif hasattr(dataset, "iterate_episodes"):
        dataset = minari_episodes(dataset, policy, source)
    elif not isinstance(dataset, Sequence):
        raise ImelError(
            f"a {type(dataset).__name__} is no dataset: give a Parquet file of imel export, a "
            "Minari dataset or its id, or a list of episodes"
        )
    if not dataset:
        raise ImelError(f"{source} holds no episodes")
    return _logged([_table(episode) for episode in dataset], policy, source)


def _table(episode: Any) -> Mapping[str, Any]:
    if isinstance(episode, Mapping):
        return episode
    return {name: getattr(episode, name, None) for name in (*_FIELDS, "infos")}


def _logged(tables: Sequence[Mapping[str, Any]], policy: Policy, source: str) -> Logged:
    annotated = all(set(ANNOTATIONS.values()) <= set(each.get("infos") or ()) for each in tables)
    parts = []
    for number, table in enumerate(tables):
        where = f"{source}, episode {number}"
        try:
            rows = _rows(table, number, policy, where)
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
    names = set.intersection(*map(set, parts))
    columns = {name: np.concatenate([part[name] for part in parts]) for name in names}
    if annotated:
        return Logged(columns, "annotated", rewarded=True)
    acted = {"rewards", "means", "stds"} <= names
    if not acted:
        columns["means"] = policy.distribution.demonstrated(columns["actions"])
        columns["stds"] = np.broadcast_to(policy.std.cpu().numpy(), columns["actions"].shape)
    columns |= dict.fromkeys(("behaviour_means", "improved_means"), columns["means"])
    zeros = np.zeros(len(columns["states"]), np.float32)
    columns = {"rewards": zeros, **columns, "advantages": zeros}
    return Logged(columns, "acted" if acted else "shown", "rewards" in names)


def _rows(table: Mapping[str, Any], number: int, policy: Policy, where: str) -> Columns:
    """Return the columns that are known of an episode, actions in the environment's units."""
    for name in table.keys() - {*_FIELDS, *_IGNORED}:
        raise ImelError(f"{where} has '{name}'; {nearest_name(str(name), _FIELDS)}")
    given = {name: table[name] for name in _FIELDS if table.get(name) is not None}
    for name in {"observations", "actions"} - given.keys():
        raise ImelError(f"{where} has no {name}")
    known = {name: np.asarray(values, np.float64) for name, values in given.items()}
    observations, count = known.pop("observations"), len(known["actions"])
    if len(observations) != count + 1:
        raise ImelError(
            f"{where} has {len(observations)} observations and {count} actions: one observation "
            "more is needed, that after the last action"
        )
    states = policy.observe(observations)
    if len(states) != count + 1:
        shape = observations.shape[1:]
        raise ImelError(f"{where} does not fit this model: observations have the shape {shape}")
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
