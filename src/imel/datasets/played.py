"""Playing episodes: with a policy's mean action for export, with a controller for a warm start."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from imel.algorithm import IMeL
from imel.data.advantage import replayed_advantages
from imel.datasets.columns import Columns
from imel.datasets.warm_start import Episode
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
    if isinstance(env, str):
        with closing(playing.make_environment(env, False)) as made:
            return record_episodes(made, act, episodes, seed)
    space = env.action_space

    def clipped(observation: Any) -> Any:
        action = act(observation)
        if not isinstance(space, spaces.Box):
            return action
        shaped = np.reshape(action, space.shape)
        return np.clip(shaped, space.low, space.high).astype(space.dtype)

    recorded = []
    for number in range(episodes):
        steps = list(playing.play(env, clipped, seed + number))
        observations, actions, rewards, _, terminations, _ = map(list, zip(*steps, strict=True))
        seen = np.array([*observations, steps[-1].next_observation])
        recorded.append(Episode(seen, *map(np.array, (actions, rewards, terminations))))
    return recorded


def play_episodes(model: IMeL, env_id: str, seeds: list[int]) -> Columns:
    """Play one episode for each seed; an action that is the mean asks for no improvement."""
    with playing.environment_of(model, env_id) as env:
        parts = [_played(model, env, seed, number) for number, seed in enumerate(seeds)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _played(model: IMeL, env: Environment, seed: int, number: int) -> Columns:
    """Return one episode, its advantages by the critic."""
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
    names = ("states", "next_states", "rewards", "terminated")
    seen, nexts, rewards, terminated = (torch.from_numpy(columns[name]) for name in names)
    with torch.no_grad():
        values, beyond = (
            model.critic(policy.normaliser(each.to(policy.device))).cpu() for each in (seen, nexts)
        )
    scaled, ones = model.learner.return_scale.scale(rewards), torch.ones_like(values)
    deltas = scaled + model.gamma * beyond * (1.0 - terminated) - values
    follows = torch.arange(count) + 1 < count
    advantages, _ = replayed_advantages(deltas, follows, ones, model.gamma, model.gae_lambda)
    return {**columns, "advantages": advantages.numpy()}
