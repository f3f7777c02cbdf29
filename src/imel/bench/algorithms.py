"""The algorithms of the bench: IMeL with any of its policies, TRPO, PPO, and acting at random.

The baselines are Stable-Baselines3's, with the settings RL Baselines3 Zoo publishes for them.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.util
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from imel.environments.making import SideBySide
from imel.errors import ImelError, SettingsError, nearest_name
from imel.policies.base import Policy
from imel.registry import find_policy, name_of, policy_names

_PUBLISHED = tomllib.loads((resources.files("imel.bench") / "zoo.toml").read_text())


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of the bench: complete settings of a task, and a new model with these."""

    name: str  # what rows, reports and the command line call it
    settings: Callable[[Task, Mapping[str, Any]], dict[str, Any]]  # with some overridden
    make: Callable[[Task, Mapping[str, Any], int], BaseAlgorithm]  # of settings and a seed
    adjustable: bool = False  # whether a user can override its settings
    learns: bool = True  # one that does not is only evaluated


def _imel(policy: type[Policy]) -> Algorithm:
    """IMeL with one of its policies at their defaults, the same for all tasks."""

    def settings(task: Task, overrides: Mapping[str, Any]) -> dict[str, Any]:
        complete = {"policy": name_of(policy), **policy.make_settings(overrides).as_json()}
        return dict(json.loads(json.dumps(complete)))

    def make(task: Task, settings: Mapping[str, Any], seed: int) -> IMeL:
        if settings["backend"] == "envpool":  # one thread unless told otherwise: runs share cores
            env = task.make_envpool(settings["n_envs"], seed, settings["env_threads"] or 1)
        else:
            env = task.make_vector(settings["n_envs"], seed, SideBySide)
        return IMeL(env=env, seed=seed, **settings)

    return Algorithm(name_of(policy), settings, make, adjustable=True)


def _baseline(name: str, module: str, class_name: str, **fixed: Any) -> Algorithm:
    """An algorithm of Stable-Baselines3 with published settings, of which some are replaced."""

    def settings(task: Task, overrides: Mapping[str, Any]) -> dict[str, Any]:
        published = _PUBLISHED[class_name.lower()]
        chosen: dict[str, Any] = published.get(task.name, published["default"])
        return {**chosen, **fixed, **overrides}

    def make(task: Task, settings: Mapping[str, Any], seed: int) -> BaseAlgorithm:
        arguments = dict(settings)
        env: VecEnv = task.make_vector(arguments.pop("n_envs"), seed)
        if arguments.pop("normalise"):  # observations and rewards, as in the zoo
            env = VecNormalize(env, gamma=arguments.get("gamma", 0.99))
        for each in ("learning_rate", "clip_range"):
            if isinstance(arguments.get(each), str):  # "lin_0.1": from there to zero, as in the zoo
                start = float(arguments[each].removeprefix("lin_"))
                arguments[each] = LinearSchedule(start, 0.0, 1.0)
        options = dict(arguments.pop("policy_kwargs", {}))
        if "activation_fn" in options:  # named in settings, which are plain data
            options["activation_fn"] = getattr(nn, options["activation_fn"])
        algorithm: type[BaseAlgorithm] = getattr(importlib.import_module(module), class_name)
        arguments |= {"policy": arguments.get("policy", "MlpPolicy"), "policy_kwargs": options}
        return algorithm(env=env, seed=seed, device="cpu", **arguments)

    return Algorithm(name, settings, make)


class RandomActions(BaseAlgorithm):
    """Draws every action uniformly from the action space and learns nothing."""

    def __init__(self, env: VecEnv, seed: int) -> None:
        super().__init__(BasePolicy, env, learning_rate=0.0, seed=seed, device="cpu")
        self._actions = copy.deepcopy(env.action_space)
        self._actions.seed(seed)

    def _setup_model(self) -> None:
        pass

    def learn(
        self, total_timesteps: int, callback: MaybeCallback = None, *others: Any, **named: Any
    ) -> Self:
        """Begin and end at once."""
        _, hooks = self._setup_learn(total_timesteps, callback, *others, **named)
        hooks.on_training_start(locals(), globals())
        hooks.on_training_end()
        return self

    def predict(self, observation: Any, *others: Any, **named: Any) -> tuple[NDArray[Any], None]:
        """A new action for each observation, asked to be deterministic or not."""
        part = next(iter(observation.values())) if isinstance(observation, dict) else observation
        return np.stack([self._actions.sample() for _ in part]), None


_OTHERS: Mapping[str, Algorithm] = {
    "trpo": _baseline("trpo", "sb3_contrib", "TRPO"),
    # No normalisation, as the paper ran it
    "trpo-plain": _baseline("trpo-plain", "sb3_contrib", "TRPO", normalise=False),
    "ppo": _baseline("ppo", "stable_baselines3", "PPO"),
    "random": Algorithm(  # what a score of zero is
        "random",
        lambda task, overrides: {},
        lambda task, settings, seed: RandomActions(task.make_vector(1, seed), seed),
        learns=False,
    ),
}


def find_algorithm(name: str) -> Algorithm:
    """A baseline, or IMeL with the policy of this name; refuses what is not there."""
    if name.startswith("trpo") and importlib.util.find_spec("sb3_contrib") is None:
        raise ImelError(f"'{name}' needs sb3_contrib: install imel with its 'bench' extra")
    if name in _OTHERS:
        return _OTHERS[name]
    try:
        return _imel(find_policy(name))
    except SettingsError:
        if ":" in name:
            raise
        hint = nearest_name(name, [*policy_names(), *_OTHERS])
        raise ImelError(f"unknown algorithm '{name}'; {hint} (or module:Class)") from None


def settings_hash(task: Task, settings: Mapping[str, Any]) -> str:
    """Ten digits that change with any setting or with the task's environment."""
    document = json.dumps({"environment": task.as_json(), "settings": dict(settings)})
    plain = json.loads(document, parse_int=float)  # 1 and 1.0 are one number
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:10]
