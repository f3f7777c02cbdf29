"""Time iterations of `RidgePolicy` by the size of the memory and the number of features.

The experience is made up, since a million steps of a simulator would take longer than what is
measured; the arithmetic of an update does not depend on what the numbers are.
"""

from __future__ import annotations

import resource
import time
from statistics import median
from typing import NamedTuple

import torch

from imel import IMeL
from imel.data.experience import Rollout

ITERATIONS = 4
"""Iterations with an all but full memory, of which the first is not counted."""
_EPISODE = 1000


class Cost(NamedTuple):
    """What an iteration costs beside its rollout."""

    memory_size: int
    features: int
    seconds: float
    peak_megabytes: float
    """Of the whole process; torch and Stable-Baselines3 alone take about 300."""


def iteration_cost(memory_size: int, features: int, env_id: str = "HalfCheetah-v5") -> Cost:
    """Return the median cost of updates that find the memory all but full."""
    model = IMeL("RidgePolicy", env_id, seed=0, memory_size=memory_size, features=features)
    learner, size = model.learner, model.settings.rollout_size
    generator = torch.Generator().manual_seed(0)
    seconds = []
    for rows in (memory_size - ITERATIONS * size, *[size] * ITERATIONS):
        rollout = made_up(model, rows // model.n_envs, generator)
        learner.num_timesteps += len(rollout)
        before = time.process_time()
        learner.update(rollout)
        seconds.append(time.process_time() - before)
        learner.iteration += 1
    assert len(model.policy.memory) == memory_size
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Cost(memory_size, features, median(seconds[2:]), peak)


def made_up(model: IMeL, steps: int, generator: torch.Generator) -> Rollout:
    """Return a rollout of random numbers, in episodes of 1,000 steps."""
    policy, shape = model.policy, (steps, model.n_envs)

    def normal(*widths: int) -> torch.Tensor:
        return torch.randn(*shape, *widths, generator=generator)

    time_of = torch.arange(steps)[:, None].expand(shape)
    clock = model.learner.clock
    first = clock.next_episode
    episodes = first + time_of // _EPISODE * model.n_envs + torch.arange(model.n_envs)
    clock.next_episode = int(episodes.max()) + 1
    states = normal(policy.state_dim)
    stds = policy.std.expand(*shape, policy.action_dim).clone()
    means = policy.act(states.flatten(0, 1))[0].view(*shape, -1)
    return Rollout(
        states=states,
        actions=means + stds * normal(policy.action_dim),
        means=means,
        stds=stds,
        rewards=normal(),
        next_states=torch.cat([states[1:], states[:1]]),
        terminated=torch.zeros(shape, dtype=torch.bool),
        truncated=(time_of % _EPISODE == _EPISODE - 1).clone(),
        episodes=episodes,
        steps=(time_of % _EPISODE).clone(),
    )
