"""Acting at random, behind the interface of the algorithms the bench runs."""

from __future__ import annotations

import copy
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnv


class RandomActions(BaseAlgorithm):
    """Draws every action uniformly from the action space and learns nothing."""

    def __init__(self, env: VecEnv, seed: int) -> None:
        super().__init__(BasePolicy, env, learning_rate=0.0, seed=seed, device="cpu")
        self._actions = copy.deepcopy(env.action_space)
        self._actions.seed(seed)

    def _setup_model(self) -> None:
        pass

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 100,
        tb_log_name: str = "random",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Begin and end at once."""
        _, hooks = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        hooks.on_training_start(locals(), globals())
        hooks.on_training_end()
        return self

    def predict(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: tuple[NDArray[Any], ...] | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[Any], tuple[NDArray[Any], ...] | None]:
        """A new action for each observation, asked to be deterministic or not."""
        del episode_start, deterministic
        part = next(iter(observation.values())) if isinstance(observation, dict) else observation
        return np.stack([self._actions.sample() for _ in part]), state
