"""What runs on another machine: some of the environments, and a policy for one iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor

from imel.data.arithmetic import denormals_flushed
from imel.data.rollout import Actor, FloatArray
from imel.distributed.episodes import Past, make_seeded, play_again
from imel.errors import EnvironmentFaultError


@dataclass(frozen=True)
class Step:
    """One step of a worker's environments."""

    means: Tensor  # [k, d_a]
    stds: Tensor  # [k, d_a]
    sent: FloatArray  # [k, d_a] actions in the environment's units
    observations: FloatArray  # [k, d_s]
    rewards: FloatArray  # [k]
    dones: NDArray[np.bool_]  # [k]
    infos: list[dict[str, Any]]


@dataclass(frozen=True)
class Part:
    """A worker's part of an iteration; shorter than asked if an environment raised."""

    steps: list[Step]
    fault: EnvironmentFaultError | None = None


class Worker:
    """Neighbouring environments of those side by side."""

    def __init__(self, env_id: str, places: range, n_envs: int) -> None:
        torch.set_num_threads(1)
        self._places, self._n_envs = places, n_envs
        self._env = DummyVecEnv([partial(make_seeded, env_id, index) for index in places])

    def reset(self, streams: Sequence[int]) -> FloatArray | EnvironmentFaultError:
        """Begin a stream of episodes in each environment."""
        try:
            for env, stream in zip(self._env.envs, streams, strict=True):
                env.get_wrapper_attr("set_next")(stream, 0)
            return np.asarray(self._env.reset(), dtype=np.float32)
        except EnvironmentFaultError as fault:
            return fault

    def play_again(self, pasts: Sequence[Past]) -> FloatArray:
        """Bring each environment where its past ends."""
        pairs = zip(self._env.envs, pasts, strict=True)
        return np.stack([play_again(env, past) for env, past in pairs])  # type: ignore[arg-type]

    def step(self, actions: FloatArray) -> Any:
        """One step with given actions."""
        try:
            return self._env.step(actions)
        except EnvironmentFaultError as fault:
            return fault

    def collect(self, policy: Actor, observations: FloatArray, noise: Tensor) -> Part:
        """As many steps as there is noise for. Whether numbers are numbers is for others to see."""
        steps: list[Step] = []
        with denormals_flushed():
            for t in range(noise.shape[0]):
                means, stds = self._act(policy, observations)
                drawn = policy.distribution.sample(means.numpy(), stds.numpy(), noise[t].numpy())
                sent = policy.to_environment(drawn)
                try:
                    stepped = self._env.step(sent)
                except EnvironmentFaultError as fault:
                    return Part(steps, fault)
                with np.errstate(over="ignore"):
                    observations, rewards = (np.asarray(x, dtype=np.float32) for x in stepped[:2])
                dones, infos = stepped[2:]
                steps.append(Step(means, stds, sent, observations, rewards, dones, list(infos)))
        return Part(steps)

    def call(self, method: str, *arguments: Any) -> Any:
        """What the vector of these environments answers."""
        return getattr(self._env, method)(*arguments)

    def _act(self, policy: Actor, observations: FloatArray) -> tuple[Tensor, Tensor]:
        """mu and sigma here, computed as if all environments were.

        The last bits of a matrix product depend on the number of its rows, so this has as many
        rows as there are environments, and each of ours has the place it has among them.
        """
        states = torch.zeros(self._n_envs, observations.shape[1])
        rows = slice(self._places.start, self._places.stop)
        states[rows] = torch.as_tensor(observations, dtype=torch.float32)
        means, stds = policy.act(states)
        return means[rows].clone(), stds[rows].clone()
