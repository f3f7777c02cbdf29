"""EnvPool's environments as a vector environment of Stable-Baselines3: `backend="envpool"`.

They are stepped in C++, cannot be drawn, and their state can be neither read nor set.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv, VecMonitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from imel.errors import ImelError
from imel.extras import require

_CONTACT_FORCES = "include_cfrc_ext_in_observation"
_CONTACT_COLUMNS = 78
"""Six forces on each of 13 bodies, last in the observation of Ant and Humanoid."""


def make_envpool(
    env_id: str,
    n_envs: int,
    threads: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    columns: NDArray[np.bool_] | None = None,
) -> VecEnv:
    """Return copies, stepped by some threads (0: one a core), of which some columns are seen."""
    return VecMonitor(EnvPoolEnvironments(env_id, n_envs, threads, env_kwargs or {}, columns))


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class EnvPoolEnvironments(VecEnv):
    """Copies of an EnvPool task, each reset in the step that ends its episode.

    A state that is terminal at the very step of the time limit counts as truncated: EnvPool tells
    only one of the two.
    """

    def __init__(
        self,
        env_id: str,
        n_envs: int,
        threads: int,
        env_kwargs: Mapping[str, Any],
        columns: NDArray[np.bool_] | None,
    ) -> None:
        self._envpool = require("envpool", "envpool")
        self.spec = gymnasium.spec(env_id)  # what is learned here is evaluated and drawn there
        if env_id not in self._envpool.list_all_envs():
            raise ImelError(f"EnvPool has no '{env_id}'; it can be learned on without EnvPool")
        known = self._envpool.make_spec(env_id).config._asdict()
        options = {name: value for name, value in env_kwargs.items() if name != _CONTACT_FORCES}
        for name in options.keys() - known.keys():
            raise ImelError(f"EnvPool's '{env_id}' has no option '{name}'")
        threads = min(threads or usable_cores(), n_envs)
        self._arguments: dict[str, Any] = {"num_envs": n_envs, "num_threads": threads}
        self._arguments |= {name: type(known[name])(value) for name, value in options.items()}
        self._pool = self._make_pool(np.random.SeedSequence().generate_state(n_envs))
        space, actions = self._pool.observation_space, self._pool.action_space
        if not isinstance(space, spaces.Box) or not isinstance(actions, spaces.Box):
            raise ImelError(f"EnvPool's '{env_id}' has a space that is no Box")
        forces = env_kwargs.get(_CONTACT_FORCES, True)
        width = space.shape[0] - (0 if forces else _CONTACT_COLUMNS)
        self._columns: Any = slice(width) if columns is None else np.flatnonzero(columns)
        low, high = space.low[self._columns], space.high[self._columns]
        space = spaces.Box(low, high, dtype=space.dtype.type)
        # Gymnasium's precision, so that a model can go from one backend to the other
        low, high = actions.low.astype(np.float32), actions.high.astype(np.float32)
        super().__init__(n_envs, space, spaces.Box(low, high))

    def _make_pool(self, seeds: Iterable[int]) -> Any:
        return self._envpool.make_gymnasium(
            self.spec.id, seed=[int(seed) % 2**31 for seed in seeds], **self._arguments
        )

    def reset(self) -> VecEnvObs:
        """Begin an episode in each copy, and new random streams if there are new seeds."""
        seeds = [seed for seed in self._seeds if seed is not None]
        if seeds:  # they can be given to new copies only
            self._pool = self._make_pool(seeds)
            self._reset_seeds()
        observations: NDArray[Any] = self._pool.reset()[0][:, self._columns]
        return observations

    def step_async(self, actions: NDArray[Any]) -> None:
        """Let EnvPool's threads begin with the step."""
        self._pool.send(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Return what came of the step; a copy whose episode ended has begun the next one."""
        observations, rewards, terminated, truncated, _ = self._pool.recv()
        dones = terminated | truncated
        observations = observations[:, self._columns]
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        finished = np.flatnonzero(dones)
        for i in finished:
            infos[i]["terminal_observation"] = observations[i].copy()
            infos[i]["TimeLimit.truncated"] = bool(truncated[i])
        if finished.size:
            begun = self._pool.reset(finished.astype(np.int32))[0]
            observations[finished] = begun[:, self._columns]
        return observations, rewards, dones, infos

    def close(self) -> None:
        """End EnvPool's threads."""
        self._pool.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute for each of the copies: they have no attributes of their own."""
        value = None if attr_name == "render_mode" else getattr(self, attr_name)
        return [value for _ in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """Tell that none of the copies is wrapped."""
        return [False for _ in self._get_indices(indices)]

    def render(self, mode: str | None = None) -> NoReturn:
        """Refuse: pictures are made by Gymnasium's environment of the same id."""
        raise ImelError("EnvPool does not render: play the model on Gymnasium's environment")

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> NoReturn:
        """Refuse, as `env_method` does."""
        raise AttributeError(f"EnvPool's environments have no '{attr_name}' of their own")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any:
        """Refuse."""
        self.set_attr(method_name, None)
