"""Tiny environments whose every observation and reward is known in advance, for any test to use."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]


class ScriptedEnv(gym.Env[FloatArray, FloatArray]):
    """Observes (episode, step) and pays `step + 1` for the step just taken, whatever is done.

    Episodes are counted from 0, so that an observation says exactly where it was made; the one
    after the last step of episode 3 is (3, episode_length). The actions it receives are kept in
    `received`. At step `bad_step` of its life (counted from 0 over all episodes) the reward or
    the observation, as `bad_place` says, is `bad_value`.
    """

    def __init__(
        self,
        episode_length: int = 5,
        truncate: bool = False,
        bounds: tuple[float, float] = (-1.0, 1.0),
        bad_step: int | None = None,
        bad_value: float = float("nan"),
        bad_place: Literal["reward", "observation"] = "reward",
    ) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(bounds[0], bounds[1], (1,), np.float32)
        self.episode_length, self.truncate = episode_length, truncate
        self.bad_step, self.bad_value, self.bad_place = bad_step, bad_value, bad_place
        self.received: list[FloatArray] = []
        self._episode, self._step = -1, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._episode, self._step = self._episode + 1, 0
        return self._observation(), {}

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        bad = len(self.received) == self.bad_step
        self.received.append(np.array(action))
        self._step += 1
        observation, reward = self._observation(), float(self._step)
        if bad and self.bad_place == "reward":
            reward = self.bad_value
        elif bad:
            observation[1] = self.bad_value
        over = self._step == self.episode_length
        return observation, reward, over and not self.truncate, over and self.truncate, {}

    def _observation(self) -> FloatArray:
        return np.array([self._episode, self._step], dtype=np.float32)


class PointEnv(gym.Env[FloatArray, FloatArray]):
    """A point drawn anew in [-1, 1]² at each step; the reward is -(action - best(point))².

    Nothing done now matters later, so that a policy is learned in a few thousand steps.
    """

    def __init__(self, episode_length: int = 16) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.episode_length = episode_length
        self._point, self._step = np.zeros(2, np.float32), 0

    @staticmethod
    def best(points: FloatArray) -> FloatArray:
        """The action that is rewarded most at points [..., 2]: a slope, always within bounds."""
        return np.asarray(0.5 * points[..., :1] - 0.25 * points[..., 1:], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._draw(), {}

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        reward = -float(np.square(action - self.best(self._point)).sum())
        self._step += 1
        return self._draw(), reward, False, self._step == self.episode_length, {}

    def _draw(self) -> FloatArray:
        self._point = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        return self._point
