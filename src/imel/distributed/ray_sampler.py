"""Rollouts by actors of a Ray cluster, equal to those of one process bit for bit.

    driver: noise of the iteration, policy and memory into the object store, once
    workers: act and step, each in its own environments
    driver: the parts side by side, gone through as if the environments were here

The last step runs the very loop that gathers experience in one process, on a record.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from imel.data.experience import Rollout
from imel.data.rollout import Actor, EpisodeClock, FloatArray, OnStep, draw_noise, roll_out
from imel.distributed.connection import LOCAL, connect
from imel.distributed.ray_environments import RayEnvironments, joined
from imel.distributed.worker import Step
from imel.environments.making import make_environments
from imel.errors import EnvironmentFaultError, SettingsError, SpaceError
from imel.policies import Policy


class RaySampler:
    """Gathers experience with workers of a Ray cluster.

    :param n_workers: actors, one core each, between which the environments are divided
    :param address: "local" for a cluster on this machine, "auto", host:port, or ray://host:port; a
        process that has called `ray.init` stays where it is
    """

    def __init__(self, n_workers: int, address: str = LOCAL) -> None:
        if n_workers < 1:
            raise SettingsError(f"n_workers={n_workers} must be at least 1")
        self.n_workers, self.address = n_workers, address

    def make_environments(self, env_id: str, n_envs: int) -> VecEnv:
        """Return copies of an environment, spread over workers."""
        copy = make_environments(env_id, 1)  # what cannot be made is refused in one line
        space = copy.observation_space
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise SpaceError(
                f"a RaySampler observes vectors, not {space}; "
                "gymnasium.wrappers.FlattenObservation makes them of most spaces"
            )
        return RayEnvironments(connect(self.address), env_id, n_envs, self.n_workers, copy)

    def collect(
        self,
        env: VecEnv,
        observations: FloatArray,
        actor: Actor,
        n_steps: int,
        clock: EpisodeClock,
        generator: torch.Generator,
        on_step: OnStep,
    ) -> tuple[Rollout | None, FloatArray]:
        """Gather as `imel.data.rollout.collect` does."""
        assert isinstance(env, RayEnvironments)
        noise = draw_noise(env, observations, actor, n_steps, clock, generator)
        policy = env.ray.put(_on_cpu(actor))  # known to all machines, once
        both = zip(env.split(observations), env.split(noise, axis=1), strict=True)
        record = _Record(env, env.ask("collect", [(policy, *own) for own in both]), actor)
        result = roll_out(record, observations, record, noise, clock, on_step)
        if record.taken < n_steps:  # a callback has ended it: the rest never was
            env.rewind()
        return result


class _Record:
    """The parts of an iteration, gone through as environments and policy at once."""

    def __init__(self, env: RayEnvironments, parts: list[list[Any]], actor: Actor) -> None:
        self._env, self._parts = env, parts
        self.num_envs = env.num_envs
        self.distribution, self.observe = actor.distribution, actor.observe
        self.taken = 0
        self._now: Step

    def act(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return mu and sigma as the workers had them."""
        del states
        steps = [part[self.taken] for part in self._parts]
        for step in steps:
            if isinstance(step, EnvironmentFaultError):
                raise step
        self._now = Step(*map(joined, zip(*steps, strict=True)))
        return torch.from_numpy(self._now.means), torch.from_numpy(self._now.stds)

    def to_environment(self, actions: FloatArray) -> FloatArray:
        """Return the actions as they were sent."""
        del actions
        return self._now.sent

    def step(self, actions: FloatArray) -> tuple[FloatArray, FloatArray, Any, list[dict[str, Any]]]:
        """Return what the environments answered."""
        now = self._now
        self._env.took(actions, now.observations, now.dones, now.origins)
        self.taken += 1
        return now.observations, now.rewards, now.dones, [_own(info) for info in now.infos]


def _own(info: dict[str, Any]) -> dict[str, Any]:
    """Arrays that came through the object store cannot be written to; callbacks expect to."""
    return {
        key: value.copy() if isinstance(value, np.ndarray) else value for key, value in info.items()
    }


def _on_cpu(actor: Actor) -> Actor:
    """Return the policy as it is sent: conditioned on its memory here, and on no device."""
    assert isinstance(actor, Policy)
    policy = actor if actor.device.type == "cpu" else copy.deepcopy(actor).cpu()
    policy.prepare()  # once, not by every worker
    return policy
