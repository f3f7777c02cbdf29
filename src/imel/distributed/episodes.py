"""Environments whose episodes can be played again: each begins from a seed of its own.

With an ordinary environment what an episode begins with depends on all those before it. Here its
seed is made from that of the environment's last seeded reset and the episode's number since then.
So wherever the environment is lost, seed, number and the actions since make it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from imel.data.rollout import FloatArray, collect
from imel.environments.making import Named, make_environments
from imel.environments.simulators import make


@dataclass
class Past:
    """What an environment has to go through to be where it is."""

    stream: int
    """The seed of its last seeded reset."""
    episode: int = 0
    """How many episodes have ended since."""
    actions: list[FloatArray] = field(default_factory=list)
    """What was done in the present one, in the environment's units."""

    def took(self, action: FloatArray, done: bool) -> None:
        """A step was taken."""
        if done:
            self.episode += 1
            self.actions = []
        else:
            self.actions.append(action)


class SeededEpisodes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Begins each episode with a seed made from a stream and a number."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._stream, self._next = new_stream(), 0

    def set_next(self, stream: int, episode: int) -> None:
        """The next reset that is given no seed begins this episode."""
        self._stream, self._next = stream, episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; a seed begins a stream."""
        if seed is not None:
            self.set_next(seed, 0)
        own = np.random.SeedSequence([self._stream, self._next]).generate_state(1)
        self._next += 1
        return self.env.reset(seed=int(own[0]), options=options)


def new_stream() -> int:
    """A seed where none was given."""
    return int(np.random.SeedSequence().generate_state(1)[0])


def make_seeded(env_id: str, index: int) -> Monitor[Any, Any]:
    """One of several copies of an environment."""
    return Monitor(Named(SeededEpisodes(make(env_id)), index))


def play_again(env: Monitor[Any, Any], past: Past) -> FloatArray:
    """Bring an environment where another one was; the observation there."""
    env.get_wrapper_attr("set_next")(past.stream, past.episode)
    observation, _ = env.reset()
    for action in past.actions:
        observation = env.step(action)[0]
    return np.asarray(observation, dtype=np.float32)


class SerialSampler:
    """All environments in this process, their episodes seeded as `RaySampler` seeds them."""

    collect = staticmethod(collect)

    def make_environments(self, env_id: str, n_envs: int) -> VecEnv:
        """Copies of an environment."""
        make_environments(env_id, 1).close()  # what cannot be made is refused in one line
        return DummyVecEnv([partial(make_seeded, env_id, index) for index in range(n_envs)])
