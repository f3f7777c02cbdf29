"""The tasks of the bench: the paper's eight, more in two groups, any Gymnasium id; its suites."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from imel.environments.envpool import make_envpool
from imel.environments.making import make
from imel.errors import ImelError, SettingsError, nearest_name

Environment = gymnasium.Env[Any, Any]
Vector = NDArray[np.floating[Any]]


class WithoutBodyMasses(gymnasium.ObservationWrapper[Vector, Any, Vector]):
    """Humanoid's observation without the 13 body masses, which never change: 270 to 257."""

    kept = np.ones(270, dtype=bool)
    kept[54:175:10] = False  # of the ten inertias of each of the 13 bodies the last is its mass

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        low, high = (np.full(257, bound) for bound in (-np.inf, np.inf))
        self.observation_space = spaces.Box(low, high, dtype=np.float64)

    def observation(self, observation: Vector) -> Vector:
        """What varies of the observation."""
        return observation[self.kept]


@dataclass(frozen=True)
class Task:
    """An environment to learn, and for how long."""

    name: str  # what the command line and the results call it
    env_id: str  # Gymnasium's
    steps: int = 300_000  # of a run, unless told otherwise
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrapper: Callable[[Environment], Environment] | None = None

    def make(self) -> Environment:
        """One environment."""
        env = make(self.env_id, **self.env_kwargs)
        return env if self.wrapper is None else self.wrapper(env)

    def make_vector(self, n_envs: int, seed: int, kind: type[DummyVecEnv] = DummyVecEnv) -> VecEnv:
        """Several copies stepped together; each reports its episodes' plain returns."""
        return make_vec_env(self.make, n_envs=n_envs, seed=seed, vec_env_cls=kind)

    def make_envpool(self, n_envs: int, seed: int, threads: int = 1) -> VecEnv:
        """As `make_vector`, stepped by EnvPool."""
        columns = getattr(self.wrapper, "kept", None)
        env = make_envpool(self.env_id, n_envs, threads, self.env_kwargs, columns)
        env.seed(seed)
        return env

    def as_json(self) -> dict[str, Any]:
        """What makes the task what it is, beside its name."""
        wrapper = getattr(self.wrapper, "__name__", None)
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


# --- suites ---


@dataclass(frozen=True)
class Suite:
    """A grid with a name: what to run, where the results belong, a small part to try it."""

    tasks: tuple[str, ...]
    algorithms: tuple[str, ...]
    store: Path
    seeds: tuple[int, ...] = (30, 31, 32, 33, 34)  # on which no setting was chosen
    steps: int | None = None  # of every run, instead of each task's own
    quick_tasks: tuple[str, ...] = ("mountaincar", "inverted-pendulum")
    quick_algorithms: tuple[str, ...] = ("ridge", "trpo", "random")


_PAPER = Suite(
    tasks=tuple(TASKS),
    algorithms=("ridge", "mki", "np", "regressor", "trpo", "trpo-plain", "ppo", "random"),
    store=Path("results/paper"),
)
SUITES: Mapping[str, Suite] = {
    "paper": _PAPER,
    "long": Suite(
        tasks=("double-pendulum", "hopper", "walker2d", "halfcheetah", "ant", "humanoid"),
        algorithms=("ridge", "trpo", "random"),
        steps=1_000_000,
        store=Path("results/long"),
    ),
    "untuned": Suite(
        tasks=tuple(UNTUNED_TASKS),
        algorithms=("ridge", "trpo", "ppo", "random"),
        store=Path("results/untuned"),
        quick_tasks=("swimmer", "reacher"),
    ),
    "random": replace(_PAPER, algorithms=("random",), quick_algorithms=("random",)),
    "spaces": Suite(
        tasks=tuple(SPACE_TASKS),
        algorithms=("ridge", "ppo", "random"),
        seeds=(600, 601, 602, 603, 604),
        store=Path("results/spaces"),
        quick_tasks=("levers", "sensors"),
        quick_algorithms=("ridge", "ppo", "random"),
    ),
}
_FREE = Suite(tuple(TASKS), ("ridge", "mki", "trpo"), Path("runs/bench"), seeds=(0, 1, 2))


def find_suite(name: str | None, quick: bool) -> Suite:
    """The suite of this name or what is run without; quick, a small part in another store."""
    if name is None:
        return replace(_FREE, seeds=(0,), steps=4096) if quick else _FREE
    if name not in SUITES:
        raise SettingsError(f"unknown suite '{name}'; {nearest_name(name, SUITES)}")
    suite = SUITES[name]
    tasks, algorithms, seeds = suite.quick_tasks, suite.quick_algorithms, suite.seeds[:2]
    return Suite(tasks, algorithms, Path("results/quick"), seeds, 10_000) if quick else suite
