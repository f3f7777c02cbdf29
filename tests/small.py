"""Models small enough to be trained in a moment, and exact comparison of what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from imel import IMeL
from imel.checkpoints import Checkpoint
from imel.policies.paper.paper_policy import FitSettings
from imel.registry import policies
from toy import PointEnv

POLICIES = {kind.__name__: kind for kind in policies().values()}
"""All policies of imel by the names of their classes."""
BATCH = 64
"""Four environments of `points()` live one episode of 16 steps each in one rollout."""
SMALL: dict[str, Any] = {
    "rollout_size": BATCH,
    "memory_size": 2 * BATCH,
    "critic_epochs": 1,
}
"""Settings of every policy, for a run of moments."""
FITTED: dict[str, Any] = {**SMALL, "gradient_steps": 2}
"""The same for a policy whose interpolator is learned."""
STATES = np.random.default_rng(0).uniform(-1.0, 1.0, (32, 2)).astype(np.float32)
"""Observations of a `PointEnv`."""


def points(n_envs: int = 4, **arguments: Any) -> VecEnv:
    """Several `PointEnv`s with monitors."""
    return make_vec_env(PointEnv, n_envs=n_envs, **arguments)


def small_model(
    policy: Any = "RidgePolicy", env: Any = None, *, seed: int | None = 0, **arguments: Any
) -> IMeL:
    """A model that has learned nothing yet, on `points()` if no environment is given."""
    policy_class = POLICIES.get(policy) if isinstance(policy, str) else policy
    fitted = issubclass(getattr(policy_class, "Settings", object), FitSettings)
    small = {**(FITTED if fitted else SMALL), **arguments}
    return IMeL(policy, points() if env is None else env, seed=seed, **small)


def answers(model: Any, states: NDArray[np.float32] = STATES) -> NDArray[Any]:
    """The deterministic actions of a model or policy."""
    actions: NDArray[Any] = model.predict(states, deterministic=True)[0]
    return actions


def tensors_of(model: IMeL) -> dict[str, Tensor]:
    """A copy of every tensor behind a model's behaviour and its learning."""
    names = ("policy", "critic", "return_scale")
    return {
        f"{name}.{key}": tensor.clone()
        for name in names
        for key, tensor in getattr(model.learner, name).state_dict().items()
    }


def differing(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> list[str]:
    """The names under which two sets of tensors are not bit for bit the same."""
    assert left.keys() == right.keys()
    return [name for name, tensor in left.items() if not torch.equal(tensor, right[name])]


def read_checkpoint(path: Any) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
    """The tensors and the document of a file."""
    file = Checkpoint.read(path)
    return file.tensors, file.document


class LogBook(KVWriter):
    """Keeps what a model logs: one dict for each dump."""

    def __init__(self) -> None:
        self.pages: list[dict[str, Any]] = []

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        del key_excluded, step
        self.pages.append(dict(key_values))

    def close(self) -> None:
        pass

    @classmethod
    def of(cls, model: IMeL) -> LogBook:
        """A log book the model writes to from now on."""
        book = cls()
        model.set_logger(Logger(folder=None, output_formats=[book]))
        return book
