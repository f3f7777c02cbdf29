"""The tasks of the bench: the paper's eight, more in two groups, and any other Gymnasium id.

The paper's names stand for environments with the state and action dimensions the paper gives.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from imel.environments.envpool import make_envpool
from imel.environments.making import make
from imel.errors import ImelError, nearest_name

Environment = gymnasium.Env[Any, Any]
Vector = NDArray[np.floating[Any]]


class WithoutBodyMasses(gymnasium.ObservationWrapper[Vector, Any, Vector]):
    """Humanoid's observation without the 13 body masses, which never change: 270 to 257."""

    kept = np.ones(270, dtype=bool)
    kept[54:175:10] = False  # of the ten inertias of each of the 13 bodies the last is its mass

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, spaces.Box)
        low, high = space.low[self.kept], space.high[self.kept]
        self.observation_space = spaces.Box(low, high, dtype=space.dtype.type)

    def observation(self, observation: Vector) -> Vector:
        """What varies of the observation."""
        varying: Vector = observation[self.kept]
        return varying


@dataclass(frozen=True)
class Task:
    """An environment to learn, and for how long."""

    name: str
    """What the command line and the results call it."""
    env_id: str
    """Gymnasium's id."""
    steps: int = 300_000
    """Environment steps of a run, unless told otherwise."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Given to the environment when it is made."""
    wrapper: Callable[[Environment], Environment] | None = None
    """Put around the environment."""

    def make(self) -> Environment:
        """One environment."""
        env = make(self.env_id, **self.env_kwargs)
        return env if self.wrapper is None else self.wrapper(env)

    def make_vector(
        self, n_envs: int, seed: int, vec_env_cls: type[DummyVecEnv] = DummyVecEnv
    ) -> VecEnv:
        """Several copies stepped together; each reports its episodes' plain returns."""
        return make_vec_env(self.make, n_envs=n_envs, seed=seed, vec_env_cls=vec_env_cls)

    def make_envpool(self, n_envs: int, seed: int, threads: int = 1) -> VecEnv:
        """As `make_vector`, stepped by EnvPool."""
        columns = getattr(self.wrapper, "kept", None)
        env = make_envpool(self.env_id, n_envs, threads, self.env_kwargs, columns)
        env.seed(seed)
        return env

    def as_json(self) -> dict[str, Any]:
        """What makes the task what it is, beside its name."""
        wrapper = None if self.wrapper is None else getattr(self.wrapper, "__name__", "unnamed")
        return {"env_id": self.env_id, "env_kwargs": dict(self.env_kwargs), "wrapper": wrapper}


def _named(*tasks: Task) -> dict[str, Task]:
    return {task.name: task for task in tasks}


# Neither contact forces in the observation (the paper has none) nor their cost in the reward
_NO_CONTACT = {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0}

TASKS = _named(
    Task("mountaincar", "MountainCarContinuous-v0", steps=60_000),
    Task("inverted-pendulum", "InvertedPendulum-v5", steps=100_000),
    Task("double-pendulum", "InvertedDoublePendulum-v4"),  # v5 has 9 dimensions, not 11
    Task("hopper", "Hopper-v5"),
    Task("walker2d", "Walker2d-v5"),
    Task("halfcheetah", "HalfCheetah-v5"),
    Task("ant", "Ant-v5", env_kwargs=_NO_CONTACT),
    Task("humanoid", "Humanoid-v5", env_kwargs=_NO_CONTACT, wrapper=WithoutBodyMasses),
)

UNTUNED_TASKS = _named(
    Task("swimmer", "Swimmer-v5"),
    Task("reacher", "Reacher-v5"),
    Task("pusher", "Pusher-v5"),
    Task("bipedal-walker", "BipedalWalker-v3"),
    Task("lunar-lander", "LunarLander-v3", env_kwargs={"continuous": True}),
)
"""Continuous tasks on which no setting was ever chosen."""

SPACE_TASKS = _named(
    Task("CartPole-v1", "CartPole-v1", steps=50_000),
    Task("Acrobot-v1", "Acrobot-v1", steps=100_000),
    Task("MountainCar-v0", "MountainCar-v0", steps=100_000),
    Task("LunarLander-v3", "LunarLander-v3"),
    Task("levers", "imel.bench.space_tasks:Levers-v0", steps=10_000),
    Task("sensors", "imel.bench.space_tasks:Sensors-v0", steps=10_000),
    Task("catch", "imel.bench.space_tasks:Catch-v0", steps=20_000),
)
"""Discrete actions, and observations that are no vectors."""


def find_task(name: str) -> Task:
    """The task of this name, or the Gymnasium environment of this id as a task."""
    named = TASKS | UNTUNED_TASKS | SPACE_TASKS
    if name in named:
        return named[name]
    module, _, env_id = name.rpartition(":")  # Gymnasium's `module:id` for ids a module registers
    try:
        if module:
            importlib.import_module(module)
        gymnasium.spec(env_id)
    except (gymnasium.error.Error, ImportError) as error:
        reason = f"'{name}' is neither a task nor an environment ({error})"
        raise ImelError(f"{reason}; {nearest_name(name, named)}") from None
    return Task(name, name)
