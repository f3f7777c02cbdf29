"""Environments under commands, for Upside-Down RL: so much return in so many steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

Array = NDArray[Any]


class Commanded(VecEnvWrapper):
    """Appends to observations what is still desired: the return, and the steps it may take."""

    def __init__(self, env: VecEnv, command: Callable[[], Array]) -> None:
        inner = env.observation_space
        assert isinstance(inner, spaces.Box)
        self.state_dim = int(np.prod(inner.shape))
        super().__init__(env, spaces.Box(-np.inf, np.inf, (self.state_dim + 2,), np.float32))
        self.command = command
        self._desired = np.zeros((self.num_envs, 2))

    def reset(self) -> Array:
        """Begin episodes with new commands."""
        observations = self.venv.reset()
        self._desired[:] = [self.command() for _ in range(self.num_envs)]
        return self._joined(observations)

    def step_wait(self) -> tuple[Array, Array, Array, list[dict[str, Any]]]:
        """Subtract from the command what was obtained; give new commands to new episodes."""
        observations, rewards, dones, infos = self.venv.step_wait()
        self._desired[:, 0] -= rewards
        self._desired[:, 1] = np.maximum(self._desired[:, 1] - 1.0, 1.0)
        for number in np.flatnonzero(dones):
            self._desired[number] = self.command()
        return self._joined(observations), rewards, dones, infos

    def _joined(self, observations: Any) -> Array:
        flat = np.reshape(observations, (self.num_envs, -1))
        return np.concatenate([flat, self._desired], axis=1).astype(np.float32)
