"""Playing episodes: with a policy's mean action for export, with a controller for a warm start."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, nullcontext
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from imel.algorithm import IMeL
from imel.data.advantage import replayed_advantages
from imel.datasets.columns import Columns
from imel.datasets.logged import Episode
from imel.environments import playing
from imel.environments.playing import Environment


def record_episodes(
    env: str | Environment, act: Callable[[Any], Any], episodes: int = 10, seed: int = 0
) -> list[Episode]:
    """Play episodes with a controller, for `IMeL.warm_start`; episode i starts from seed + i.

    :param env: an environment, or the id of one
    :param act: maps an observation to an action: a PID, `lambda seen: model.predict(seen)[0]`, ...
        Actions outside of the environment's bounds are clipped
    """
    made = (
        closing(playing.make_environment(env, False)) if isinstance(env, str) else nullcontext(env)
    )
    with made as played:
        space = played.action_space

        def clipped(observation: Any) -> Any:
            action = act(observation)
            if not isinstance(space, spaces.Box):
                return action
            shaped = np.reshape(action, space.shape)
            return np.clip(shaped, space.low, space.high).astype(space.dtype)

        return [_recorded(played, clipped, seed + number) for number in range(episodes)]


def _recorded(env: Environment, act: Callable[[Any], Any], seed: int) -> Episode:
    steps = list(playing.play(env, act, seed))
    return Episode(
        observations=np.array([*(step.observation for step in steps), steps[-1].next_observation]),
        actions=np.array([step.action for step in steps]),
        rewards=np.array([step.reward for step in steps]),
        terminations=np.array([step.terminated for step in steps]),
    )


def play_episodes(model: IMeL, env_id: str, seeds: list[int]) -> Columns:
    """Play one episode for each seed.

    The improved mean is the mean: an action that is the mean asks for no change. The advantage is
    the critic's, in deviations of the return.
    """
    with playing.environment_of(model, env_id) as env:
        parts = [_played(model, env, seed, number) for number, seed in enumerate(seeds)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _played(model: IMeL, env: Environment, seed: int, number: int) -> Columns:
    policy = model.policy
    decisions, steps = zip(*playing.play_policy(env, policy, seed), strict=True)
    states, means, stds, actions = map(np.array, zip(*decisions, strict=True))
    count = len(steps)
    columns = {
        "states": states,
        "next_states": np.concatenate([states[1:], policy.observe(steps[-1].next_observation)]),
        "actions": actions,
        **dict.fromkeys(("means", "behaviour_means", "improved_means"), means),
        "stds": stds,
        "rewards": np.array([step.reward for step in steps], np.float32),
        "terminated": np.array([step.terminated for step in steps], np.float32),
        "episodes": np.full(count, number),
        "steps": np.arange(count),
        "iterations": np.full(count, model.iteration),
    }
    return {**columns, "advantages": _advantages(model, columns)}


def _advantages(model: IMeL, columns: Columns) -> Any:
    """Return the critic's estimates for the steps of one episode."""
    names = ("states", "next_states", "rewards", "terminated")
    states, next_states, rewards, terminated = (torch.from_numpy(columns[name]) for name in names)
    with torch.no_grad():
        values, beyond = (
            model.critic(model.policy.normaliser(each.to(model.policy.device))).cpu()
            for each in (states, next_states)
        )
    deltas = model.learner.return_scale.scale(rewards) + model.gamma * beyond * (1.0 - terminated)
    follows = torch.arange(len(rewards)) + 1 < len(rewards)
    arguments = (follows, torch.ones_like(values), model.gamma, model.gae_lambda)
    return replayed_advantages(deltas - values, *arguments)[0].numpy()
