"""What runs on another machine: some of the environments, and a policy for one iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imel.data.arithmetic import denormals_flushed
from imel.data.rollout import Actor, FloatArray
from imel.environments.making import SideBySide, make_copy
from imel.environments.replay import Past
from imel.errors import EnvironmentFaultError

Origin = Mapping[str, Any]


class Step(NamedTuple):
    """One step of some environments."""

    means: FloatArray  # [k, d_a]
    stds: FloatArray  # [k, d_a]
    sent: FloatArray  # [k, d_a] actions in the environment's units
    observations: FloatArray  # [k, d_s]
    rewards: FloatArray  # [k]
    dones: NDArray[np.bool_]  # [k]
    infos: list[dict[str, Any]]
    origins: list[Origin | None]  # of the episodes that the step has begun, as in `Past`


class Worker:
    """Neighbouring environments of those side by side."""

    def __init__(self, env_id: str, places: range, n_envs: int) -> None:
        torch.set_num_threads(1)
        self._places, self._n_envs = places, n_envs
        self._env = SideBySide([partial(make_copy, env_id, index) for index in places])

    def reset(self, seeds: Sequence[int | None]) -> tuple[FloatArray, list[Origin | None]]:
        """Begin an episode in each environment; return what it begins with."""
        self._env._seeds = list(seeds)
        return np.asarray(self._env.reset(), np.float32), self._env.get_attr("origin")

    def play_again(self, pasts: Sequence[Past], expected: FloatArray) -> None:
        """Bring each environment where its past ends, and require that it observes the same."""
        for env, past, seen, place in zip(
            self._env.envs, pasts, expected, self._places, strict=True
        ):
            again = np.asarray(env.get_wrapper_attr("play_again")(past), np.float32)
            if again.tobytes() != seen.tobytes():
                raise EnvironmentFaultError(
                    f"environment {place} was lost with its worker and cannot be made again: "
                    f"played again from its beginning, it came to {again} instead of {seen}, so "
                    "its simulator is not deterministic",
                    place,
                )

    def step(self, sent: FloatArray) -> tuple[Any, ...]:
        """Return what `Step` has from the observations on."""
        stepped = self._env.step(sent)
        # Whether numbers are numbers is for the learning process to see
        with np.errstate(over="ignore"):
            observations, rewards = (np.asarray(x, np.float32) for x in stepped[:2])
        dones, infos = stepped[2:]
        origins = [
            env.get_wrapper_attr("origin") if done else None
            for env, done in zip(self._env.envs, dones, strict=True)
        ]
        return observations, rewards, dones, infos, origins

    def collect(self, policy: Actor, observations: FloatArray, noise: Tensor) -> list[Any]:
        """Take as many steps as there is noise for; the last entry may be a fault instead."""
        steps: list[Any] = []
        with denormals_flushed():
            for drawn in noise.numpy():
                means, stds = self._act(policy, observations)
                sent = policy.to_environment(policy.distribution.sample(means, stds, drawn))
                try:
                    steps.append(Step(means, stds, sent, *self.step(sent)))
                except EnvironmentFaultError as fault:
                    return [*steps, fault]
                observations = steps[-1].observations
        return steps

    def _act(self, policy: Actor, observations: FloatArray) -> list[FloatArray]:
        """Return mu and sigma here, computed as if all environments were.

        The last bits of a matrix product depend on the number of its rows, so this has as many
        rows as there are environments, and each of ours has the place it has among them.
        """
        states, rows = torch.zeros(self._n_envs, observations.shape[1]), list(self._places)
        states[rows] = torch.as_tensor(observations)
        return [column[rows].numpy() for column in policy.act(states)]
