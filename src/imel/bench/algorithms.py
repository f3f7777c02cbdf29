"""The algorithms of the bench: IMeL's six policies, TRPO, PPO, Upside-Down RL, and chance.

Each turns a task into complete settings, as plain data, and settings into a model. The baselines
are Stable-Baselines3's own, with the settings RL Baselines3 Zoo publishes for them.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.util
import json
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import resources
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import nn

from imel.algorithm import IMeL
from imel.bench.tasks import Task
from imel.bench.udrl import Udrl, UdrlSettings
from imel.environments.making import SideBySide
from imel.errors import ImelError, nearest_name
from imel.registry import find_policy

_PUBLISHED = tomllib.loads((resources.files("imel.bench") / "zoo.toml").read_text())
"""Settings of the baselines by algorithm and task."""


@dataclass(frozen=True)
class Algorithm(ABC):
    """An algorithm of the bench."""

    adjustable = True
    """Whether a user can override its settings."""
    learns = True
    """Whether it takes steps to learn; one that does not is only evaluated."""

    @abstractmethod
    def settings(self, task: Task, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Everything `make` needs beside task and seed, as plain data."""

    @abstractmethod
    def make(self, task: Task, settings: Mapping[str, Any], seed: int) -> BaseAlgorithm:
        """A new model on its own environments."""


@dataclass(frozen=True)
class ImelAlgorithm(Algorithm):
    """IMeL with one of its policies at their defaults."""

    policy: str

    def settings(self, task: Task, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Settings and policy options; an override may name either."""
        settings = find_policy(self.policy).make_settings(overrides)
        complete = {"policy": self.policy, **settings.as_json()}
        plain: dict[str, Any] = json.loads(json.dumps(complete))
        return plain

    def make(self, task: Task, settings: Mapping[str, Any], seed: int) -> IMeL:
        """A new model on its own environments."""
        if settings["backend"] == "envpool":  # one thread unless told otherwise: runs share cores
            env = task.make_envpool(settings["n_envs"], seed, settings["env_threads"] or 1)
        else:
            env = task.make_vector(settings["n_envs"], seed, SideBySide)
        return IMeL(env=env, seed=seed, **settings)


@dataclass(frozen=True)
class Baseline(Algorithm):
    """An algorithm of Stable-Baselines3 with published settings."""

    module: str
    class_name: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Published settings that are replaced."""
    adjustable = False

    def settings(self, task: Task, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """The published settings for the task, or for its kind."""
        published = _PUBLISHED[self.class_name.lower()]
        settings: dict[str, Any] = published.get(task.name, published["default"])
        return {**settings, **self.fixed, **overrides}

    def make(self, task: Task, settings: Mapping[str, Any], seed: int) -> BaseAlgorithm:
        """A new model; observations and rewards are normalised as in the zoo."""
        arguments = dict(settings)
        env: VecEnv = task.make_vector(arguments.pop("n_envs"), seed)
        if arguments.pop("normalise"):
            env = VecNormalize(env, gamma=arguments.get("gamma", 0.99))
        for name in ("learning_rate", "clip_range"):
            if isinstance(arguments.get(name), str):  # "lin_0.1": from there to zero, as in the zoo
                start = float(arguments[name].removeprefix("lin_"))
                arguments[name] = LinearSchedule(start, 0.0, 1.0)
        if "policy_kwargs" in arguments:
            options = dict(arguments["policy_kwargs"])
            if "activation_fn" in options:  # named in settings, which are plain data
                options["activation_fn"] = getattr(nn, options["activation_fn"])
            arguments["policy_kwargs"] = options
        algorithm = getattr(importlib.import_module(self.module), self.class_name)
        policy = arguments.pop("policy", "MlpPolicy")
        model = algorithm(policy, env, seed=seed, device="cpu", **arguments)
        assert isinstance(model, BaseAlgorithm)
        return model


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


@dataclass(frozen=True)
class Chance(Algorithm):
    """Acts at random: what a score of zero is."""

    adjustable = learns = False

    def settings(self, task: Task, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """There are none."""
        return {}

    def make(self, task: Task, settings: Mapping[str, Any], seed: int) -> BaseAlgorithm:
        """A model with nothing to learn."""
        return RandomActions(task.make_vector(1, seed), seed)


@dataclass(frozen=True)
class UpsideDown(Algorithm):
    """Upside-Down RL, with one setting for all tasks."""

    adjustable = False

    def settings(self, task: Task, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Its defaults."""
        return asdict(UdrlSettings(**overrides))

    def make(self, task: Task, settings: Mapping[str, Any], seed: int) -> BaseAlgorithm:
        """A new model on its own environments."""
        return Udrl(task.make_vector(settings["n_envs"], seed), seed, UdrlSettings(**settings))


ALGORITHMS: dict[str, Algorithm] = {
    "mki": ImelAlgorithm("MkiPolicy"),
    "np": ImelAlgorithm("NpPolicy"),
    "anp": ImelAlgorithm("AnpPolicy"),
    "regressor": ImelAlgorithm("RegressorPolicy"),
    "nearest": ImelAlgorithm("NearestPolicy"),
    "ridge": ImelAlgorithm("RidgePolicy"),
    "trpo": Baseline("sb3_contrib", "TRPO"),
    # No normalisation, as the paper ran it
    "trpo-plain": Baseline("sb3_contrib", "TRPO", fixed={"normalise": False}),
    "ppo": Baseline("stable_baselines3", "PPO"),
    "udrl": UpsideDown(),
    "random": Chance(),
}


def find_algorithm(name: str) -> Algorithm:
    """The algorithm of this name; refuses one that is unknown or not installed."""
    if name not in ALGORITHMS:
        raise ImelError(f"unknown algorithm '{name}'; {nearest_name(name, ALGORITHMS)}")
    algorithm = ALGORITHMS[name]
    if isinstance(algorithm, Baseline) and importlib.util.find_spec(algorithm.module) is None:
        raise ImelError(f"'{name}' needs {algorithm.module}: install imel with its 'bench' extra")
    return algorithm


def settings_hash(task: Task, settings: Mapping[str, Any]) -> str:
    """Ten digits that change with any setting or with the task's environment."""
    document = {"environment": task.as_json(), "settings": dict(settings)}
    # Through JSON once: numbers then have one spelling, whether given as 1 or 1.0
    plain = json.loads(json.dumps(document), parse_int=float)
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:10]
