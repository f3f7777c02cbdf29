"""Playing episodes: with a policy's mean action for export, with a controller for a warm start."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, nullcontext
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from imel.algorithm import IMeL
from imel.data.advantage import estimate_advantages
from imel.datasets.columns import Array, Columns
from imel.datasets.episodes import Episode
from imel.environments.playing import (
    Environment,
    environment_of,
    make_environment,
    play,
    play_policy,
)


def record_episodes(
    env: str | Environment, act: Callable[[Any], Any], episodes: int = 10, seed: int = 0
) -> list[Episode]:
    """Play episodes with a controller, for `IMeL.warm_start`; episode i starts from seed + i.

    :param env: an environment, or the id of one
    :param act: maps an observation to an action: a PID, `lambda seen: model.predict(seen)[0]`, ...
        Actions outside of the environment's bounds are clipped
    """
    made = closing(make_environment(env, False)) if isinstance(env, str) else nullcontext(env)
    with made as played:
        return [_recorded(played, act, seed + number) for number in range(episodes)]


def _recorded(env: Environment, act: Callable[[Any], Any], seed: int) -> Episode:
    space = env.action_space

    def clipped(observation: Any) -> Any:
        action = act(observation)
        if not isinstance(space, spaces.Box):
            return action
        shaped = np.reshape(action, space.shape)
        return np.clip(shaped, space.low, space.high).astype(space.dtype)

    steps = list(play(env, clipped, seed))
    return Episode(
        observations=np.array([*(step.observation for step in steps), steps[-1].next_observation]),
        actions=np.array([step.action for step in steps]),
        rewards=np.array([step.reward for step in steps]),
        terminations=np.array([step.terminated for step in steps]),
    )


def play_episodes(model: IMeL, env_id: str, seeds: list[int]) -> Columns:
    """One episode for each seed.

    The improved mean is the mean: an action that is the mean asks for no change. The advantage is
    the critic's, in deviations of the return.
    """
    with environment_of(model, env_id) as env:
        parts = [_columns(model, env, seed, number) for number, seed in enumerate(seeds)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _columns(model: IMeL, env: Environment, seed: int, number: int) -> Columns:
    decisions, steps = zip(*play_policy(env, model.policy, seed), strict=True)
    states, means, stds, actions = map(np.array, zip(*decisions, strict=True))
    count, last = len(steps), steps[-1]
    seen = np.concatenate([states, model.policy.observe(last.next_observation)])
    rewards = np.array([step.reward for step in steps], np.float32)
    over = np.zeros(count, np.float32)
    over[-1] = last.terminated
    same = ("means", "behaviour_means", "improved_means")
    return {
        "states": states,
        "next_states": seen[1:],
        "actions": actions,
        **dict.fromkeys(same, means),
        "stds": stds,
        "rewards": rewards,
        "advantages": _advantages(model, seen, rewards, over),
        "terminated": over,
        "episodes": np.full(count, number),
        "steps": np.arange(count),
        "iterations": np.full(count, model.iteration),
    }


def _advantages(model: IMeL, seen: Array, rewards: Array, terminated: Array) -> Array:
    states = model.policy.normaliser(torch.from_numpy(seen).to(model.policy.device))
    with torch.no_grad():
        values = model.critic(states).cpu()[:, None]
    over = torch.from_numpy(terminated).bool()[:, None]
    ended = over.clone()
    ended[-1] = True
    scaled = model.learner.return_scale.scale(torch.from_numpy(rewards)[:, None])
    advantages, _ = estimate_advantages(
        scaled, values[:-1], values[1:], over, ended, model.gamma, model.gae_lambda, "gae"
    )
    found: Array = advantages[:, 0].numpy()
    return found
