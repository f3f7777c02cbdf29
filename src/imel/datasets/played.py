"""Episodes played with the mean action, with all that a memory knows of a transition."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import torch

from imel.advantage import estimate_advantages
from imel.datasets.columns import Array, Columns
from imel.errors import ImelError
from imel.persistence.saving import SavedAlgorithm
from imel.playing import Environment, make_environment

_LONGEST = 10_000
"""Steps after which an episode is left, whatever the environment says."""


def play_episodes(model: SavedAlgorithm, env_id: str, seeds: list[int]) -> Columns:
    """One episode for each seed.

    The improved mean is the mean: an action that is the mean asks for no change. The advantage is
    the critic's, in deviations of the return.
    """
    parts = []
    with closing(make_environment(env_id, rendered=False)) as env:
        for name in ("observation_space", "action_space"):
            if getattr(env, name).shape != getattr(model, name).shape:
                raise ImelError(f"the model was not made for {env_id}: its {name} differs")
        for number, seed in enumerate(seeds):
            parts.append(_play(model, env, seed, number))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _play(model: SavedAlgorithm, env: Environment, seed: int, number: int) -> Columns:
    policy = model.policy
    seen: list[Array] = []
    means, stds = [], []
    rewards: list[float] = []
    terminated = truncated = False
    observation, _ = env.reset(seed=seed)
    seen.append(np.asarray(observation, np.float32))
    while not (terminated or truncated or len(rewards) == _LONGEST):
        mean, std = policy.decide(torch.from_numpy(seen[-1][None]))
        means.append(mean[0].cpu().numpy())
        stds.append(std[0].cpu().numpy())
        action = policy.to_environment(means[-1])
        observation, reward, terminated, truncated, _ = env.step(action)
        seen.append(np.asarray(observation, np.float32))
        rewards.append(float(reward))
    count = len(rewards)
    over = np.zeros(count, np.float32)
    over[-1] = terminated
    taken = np.array(means)
    return {
        "states": np.array(seen[:-1]),
        "next_states": np.array(seen[1:]),
        "actions": taken,
        "means": taken,
        "behaviour_means": taken,
        "improved_means": taken,
        "stds": np.array(stds),
        "rewards": np.array(rewards, np.float32),
        "advantages": _advantages(model, np.array(seen), np.array(rewards, np.float32), over),
        "terminated": over,
        "episodes": np.full(count, number),
        "steps": np.arange(count),
        "iterations": np.full(count, model.iteration),
    }


def _advantages(model: SavedAlgorithm, seen: Array, rewards: Array, terminated: Array) -> Array:
    states = model.policy.normaliser(torch.from_numpy(seen).to(model.policy.device))
    with torch.no_grad():
        values = model.critic(states).cpu()[:, None]
    over = torch.from_numpy(terminated).bool()[:, None]
    ended = over.clone()
    ended[-1] = True
    scaled = model.return_scale.scale(torch.from_numpy(rewards)[:, None])
    advantages, _ = estimate_advantages(
        scaled, values[:-1], values[1:], over, ended, model.gamma, model.gae_lambda, "gae"
    )
    found: Array = advantages[:, 0].numpy()
    return found
