"""Episodes played with the mean action, with all that a memory knows of a transition."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import torch

from imel.advantage import estimate_advantages
from imel.datasets.columns import Array, Columns
from imel.persistence.saving import SavedAlgorithm
from imel.playing import Environment, make_environment, play, require_spaces


def play_episodes(model: SavedAlgorithm, env_id: str, seeds: list[int]) -> Columns:
    """One episode for each seed.

    The improved mean is the mean: an action that is the mean asks for no change. The advantage is
    the critic's, in deviations of the return.
    """
    parts = []
    with closing(make_environment(env_id, rendered=False)) as env:
        require_spaces(model, env, env_id)
        for number, seed in enumerate(seeds):
            parts.append(_columns(model, env, seed, number))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _columns(model: SavedAlgorithm, env: Environment, seed: int, number: int) -> Columns:
    policy = model.policy
    means, stds, states = [], [], []

    def act(observation: Any) -> Array:
        states.append(policy.observe(observation)[0])
        mean, std = policy.act(torch.from_numpy(states[-1][None]))
        means.append(mean[0].cpu().numpy())
        stds.append(std[0].cpu().numpy())
        return policy.to_environment(policy.distribution.mode(means[-1]))

    episode = list(play(env, act, seed))
    count, last = len(episode), episode[-1]
    seen = np.array([*states, policy.observe(last.next_observation)[0]])
    rewards = np.array([step.reward for step in episode], np.float32)
    over = np.zeros(count, np.float32)
    over[-1] = last.terminated
    taken = np.array(means)
    same = ("means", "behaviour_means", "improved_means")
    return {
        "states": seen[:-1],
        "next_states": seen[1:],
        "actions": policy.distribution.mode(taken),
        **dict.fromkeys(same, taken),
        "stds": np.array(stds),
        "rewards": rewards,
        "advantages": _advantages(model, seen, rewards, over),
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
