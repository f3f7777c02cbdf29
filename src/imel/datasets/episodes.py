"""Episodes somebody else has logged, as rows of a memory in policy units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from gymnasium import spaces

from imel.datasets.columns import Array, Columns, Kind, Logged, checked
from imel.errors import ImelError, nearest_name
from imel.policies import Policy

_TOLERANCE = 1e-4
"""By how much of its range an action may lie outside, for rounding."""
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


def logged_episodes(episodes: Sequence[Any], policy: Policy, source: str) -> Logged:
    """Episodes, or tables and objects with the same names, as rows; refused if they do not fit."""
    if not len(episodes):
        raise ImelError(f"{source} holds no episodes")
    parts = [
        _rows(_episode(each, f"{source}, episode {number}"), policy, source, number)
        for number, each in enumerate(episodes)
    ]
    names = set.intersection(*(set(part) for part in parts))
    columns = {name: np.concatenate([part[name] for part in parts]) for name in names}
    rewarded = "rewards" in columns
    kind: Kind = "acted" if rewarded and {"means", "stds"} <= names else "shown"
    if kind == "shown":
        stds = np.broadcast_to(policy.std.cpu().numpy(), columns["actions"].shape)
        shown = policy.distribution.demonstrated(columns["actions"])
        columns |= {"means": shown, "stds": stds}
    count = len(columns["states"])
    for name in ("behaviour_means", "improved_means"):
        columns[name] = columns["means"]
    columns.setdefault("rewards", np.zeros(count, dtype=np.float32))
    columns["advantages"] = np.zeros(count, dtype=np.float32)
    return Logged(columns, kind, rewarded)


def require_same_actions(space: Any, policy: Policy, source: str) -> None:
    """Refuse actions that were logged for another range: they would mean something else here."""
    mine = policy.action_space
    same = mine == space
    if isinstance(mine, spaces.Box) and isinstance(space, spaces.Box):
        same = (
            space.shape == mine.shape
            and np.allclose(space.low, mine.low)
            and np.allclose(space.high, mine.high)
        )
    if not same:
        raise ImelError(f"{source} does not fit this model: its actions are {space}, not {mine}")


def _episode(given: Any, source: str) -> Episode:
    names = [field.name for field in fields(Episode)]
    if isinstance(given, Mapping):
        for name in given:
            if name not in (*names, *_IGNORED):
                raise ImelError(f"{source} has '{name}'; {nearest_name(str(name), names)}")
        values = {name: given.get(name) for name in names}
    else:
        values = {name: getattr(given, name, None) for name in names}
    for name, value in values.items():
        if value is None and name in ("observations", "actions"):
            raise ImelError(f"{source} has no {name}")
        if isinstance(value, Mapping | tuple):
            raise ImelError(f"{source} has {name} of several parts; flatten them to vectors first")
    try:
        arrays = {n: None if v is None else np.asarray(v, np.float64) for n, v in values.items()}
    except (TypeError, ValueError):
        raise ImelError(f"{source} has values that are no arrays of numbers") from None
    episode = Episode(**arrays)  # type: ignore[arg-type]  # the two required ones are there
    if len(episode.observations) != len(episode.actions) + 1:
        raise ImelError(
            f"{source} has {len(episode.observations)} observations and {len(episode.actions)} "
            "actions: one observation more is needed, that after the last action"
        )
    return episode


def _rows(episode: Episode, policy: Policy, source: str, number: int) -> Columns:
    where, count = f"{source}, episode {number}", len(episode.actions)
    states = _states(episode.observations, policy, where)
    rows = {
        "states": states[:-1],
        "next_states": states[1:],
        "actions": episode.actions,
        "rewards": episode.rewards,
        "terminated": np.zeros(count) if episode.terminations is None else episode.terminations,
        "means": episode.means,
        "stds": episode.stds,
        "episodes": np.full(count, number),
        "steps": np.arange(count),
        "iterations": np.full(count, number),
    }
    known = {name: column for name, column in rows.items() if column is not None}
    widths = policy.state_dim, policy.action_dim
    if isinstance(policy.action_space, spaces.Box):
        checked(known, *widths, where)  # before arithmetic that would broadcast or hide
        _scale(known, policy.action_space, where)
    else:
        try:
            known["actions"] = policy.distribution.encode(episode.actions)
        except ValueError:
            space = policy.action_space
            raise ImelError(f"{where} has actions that are none of {space}") from None
        if "means" in known:
            known["stds"] = np.ones_like(known["actions"])
    return checked(known, *widths, where)


def _states(observations: Array, policy: Policy, where: str) -> Array:
    """Return raw states; vectors are checked with the other columns."""
    if policy.features_extractor is None:
        return observations
    try:
        return policy.observe(observations)
    except (ValueError, RuntimeError) as error:
        raise ImelError(f"{where} does not fit this model: {error}") from None


def _scale(known: Columns, space: spaces.Box, where: str) -> None:
    """Bring actions, means and sigmas to policy units."""
    low, high = space.low.astype(np.float64), space.high
    half = (high - low) / 2.0
    for name in ("actions", "means"):
        if name in known:
            known[name] = (known[name] - low) / half - 1.0
    if "means" not in known:  # a draw of a known Gaussian may well lie outside
        if (np.abs(known["actions"]) > 1.0 + 2.0 * _TOLERANCE).any():
            raise ImelError(
                f"{where} has actions outside of {space}: clip them first, "
                "as the environment has done"
            )
        known["actions"] = known["actions"].clip(-1.0, 1.0)
    if "stds" in known:
        known["stds"] = known["stds"] / half
