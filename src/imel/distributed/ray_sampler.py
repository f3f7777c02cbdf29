"""Rollouts by actors of a Ray cluster, equal to those of one process bit for bit.

    driver: noise of the iteration, policy and memory into the object store, once
    workers: act and step, each in its own environments
    driver: the parts side by side, gone through as if the environments were here

The last step runs the very loop that gathers experience in one process, on a record. The driver
knows of each environment how it came where it is, so that an actor that dies is replaced and its
environments are played again up to where they were.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn
from torch import Tensor

from imel.data.arithmetic import denormals_flushed
from imel.data.experience import Rollout
from imel.data.rollout import Actor, EpisodeClock, FloatArray, OnStep, collect, draw_noise
from imel.distributed.connection import LOCAL, connect, cores
from imel.environments.making import SideBySide, make_copy, make_environments
from imel.environments.replay import Past
from imel.errors import EnvironmentFaultError, ImelError, SettingsError, SpaceError
from imel.policies import Policy

Origin = Mapping[str, Any]
_MOST_DEATHS = 4
"""How often in a row one worker may die before that is the user's problem."""


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
                came = f"played again it came to {again} instead of {seen}: not deterministic"
                raise EnvironmentFaultError(
                    f"environment {place} was lost with its worker and {came}", place
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

        The last bits of a matrix product depend on the number of its rows, and on their places.
        """
        states, rows = torch.zeros(self._n_envs, observations.shape[1]), list(self._places)
        states[rows] = torch.as_tensor(observations)
        return [column[rows].numpy() for column in policy.act(states)]


class RayEnvironments(VecEnv):
    """Copies of an environment, spread over workers; `copy` is one that is here."""

    def __init__(self, ray: Any, env_id: str, n_envs: int, n_workers: int, copy: VecEnv) -> None:
        if cores(ray) < n_workers:
            raise ImelError(f"{n_workers} workers need as many cores; Ray has {cores(ray)}")
        self.ray, self._env_id, self.num_envs, self._copy = ray, env_id, n_envs, copy
        ends = np.linspace(0, n_envs, min(n_workers, n_envs) + 1).astype(int).tolist()
        self._places = [range(*pair) for pair in itertools.pairwise(ends)]
        self._origins = list[Origin | None]()  # of the episodes under way, none before a reset
        self._actions = list[list[FloatArray]]()  # that they have had since
        self._observations: FloatArray = np.empty((n_envs, 0), np.float32)
        self._workers = [self._start(places, cpus=1) for places in self._places]
        super().__init__(n_envs, copy.observation_space, copy.action_space)

    # --- workers ---

    def _start(self, places: range, cpus: int) -> Any:
        remote = self.ray.remote(num_cpus=cpus, scheduling_strategy="SPREAD")(Worker)
        return remote.remote(self._env_id, places, self.num_envs)

    def ask(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return each worker's answer to its arguments; one that dies is replaced, asked again."""
        asked = [
            getattr(worker, method).remote(*own)
            for worker, own in zip(self._workers, arguments, strict=True)
        ]
        places = range(len(asked))
        return [self._answer(i, asked[i], method, arguments[i]) for i in places]

    def _answer(self, number: int, answer: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        errors, reason = self.ray.exceptions, ""
        # An answer is lost as well where it was still on the machine that is gone
        died = (errors.RayActorError, errors.ObjectLostError, errors.NodeDiedError)
        for _ in range(_MOST_DEATHS):
            try:
                if reason:
                    self._replace(number)
                    answer = getattr(self._workers[number], method).remote(*arguments)
                return self.ray.get(answer)
            except errors.RayTaskError as error:
                raise error.cause from None
            except died as error:
                reason = str(error).strip().splitlines()[-1].strip()
        raise ImelError(
            f"worker {number} of {len(self._workers)} died {_MOST_DEATHS} times in a row: {reason}"
        )

    def _replace(self, number: int) -> None:
        with contextlib.suppress(Exception):
            self.ray.kill(self._workers[number])  # in case it was only out of reach
        # Without a core of its own: where the cluster has shrunk it shares one
        self._workers[number] = worker = self._start(self._places[number], cpus=0)
        if self._origins:
            self.ray.get(worker.play_again.remote(*self._whereabouts()[number]))

    # --- where environments are ---

    def took(self, sent: FloatArray, observations: FloatArray, dones: Any, origins: Any) -> None:
        """Note a step that counts."""
        for i, done in enumerate(dones):
            if done:
                self._origins[i], self._actions[i] = origins[i], []
            else:
                self._actions[i].append(sent[i])
        self._observations = observations

    def rewind(self) -> None:
        """Bring every environment back to the last step that counts."""
        self.ask("play_again", self._whereabouts())

    def _whereabouts(self) -> list[tuple[Any, ...]]:
        both = zip(self._origins, self._actions, strict=True)
        pasts = [Past(origin or {}, np.array(actions)) for origin, actions in both]
        return list(zip(self.split(pasts), self.split(self._observations), strict=True))

    def split(self, rows: Any, axis: int = 0) -> list[Any]:
        """Return what has one entry for each environment worker by worker."""
        parts = [slice(places.start, places.stop) for places in self._places]
        return [rows[:, part] if axis else rows[part] for part in parts]

    # --- as Stable-Baselines3 expects a vector environment ---

    def reset(self) -> VecEnvObs:
        """Begin an episode in each."""
        self._origins = []
        answers = self.ask("reset", [(seeds,) for seeds in self.split(self._seeds)])
        self._observations = np.concatenate([observations for observations, _ in answers])
        self._origins = [origin for _, origins in answers for origin in origins]
        self._actions = [[] for _ in self._origins]
        self._reset_seeds()
        self._reset_options()
        return self._observations.copy()

    def step_async(self, actions: FloatArray) -> None:
        """Keep the actions."""
        self._sent = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Take one step in each."""
        answers = self.ask("step", [(part,) for part in self.split(self._sent)])
        observations, rewards, dones, infos, origins = map(joined, zip(*answers, strict=True))
        self.took(self._sent, observations, dones, origins)
        return observations, rewards, dones, infos

    def close(self) -> None:
        """End the workers."""
        self._copy.close()
        for worker in self._workers:
            with contextlib.suppress(Exception):
                self.ray.kill(worker)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return what each was made with: the attribute of another copy."""
        return self._copy.get_attr(attr_name) * len(list(self._get_indices(indices)))

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Return whether each is wrapped so."""
        return self._copy.env_is_wrapped(wrapper_class) * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refuse: an environment that is made again would not have it."""
        raise ImelError(f"'{attr_name}' cannot be reached in environments of other processes")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **named: Any) -> Any:
        """Refuse likewise."""
        self.set_attr(method_name, None)


def joined(parts: Sequence[Any]) -> Any:
    """Put side by side what workers have answered: arrays, or lists."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return [entry for part in parts for entry in part]


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
        noise = draw_noise(observations, actor, n_steps, clock, generator)
        assert isinstance(actor, Policy)
        sent = actor if actor.device.type == "cpu" else copy.deepcopy(actor).cpu()
        sent.act(torch.zeros(1, sent.state_dim))  # conditioned once, not by every worker
        policy = env.ray.put(sent)  # known to all machines, once
        both = zip(env.split(observations), env.split(noise, axis=1), strict=True)
        record = _Record(env, env.ask("collect", [(policy, *own) for own in both]), actor)
        result = collect(record, observations, record, n_steps, clock, generator, on_step, noise)
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
        # Arrays that came through the object store cannot be written to; callbacks expect to
        infos = [
            {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in info.items()}
            for info in now.infos
        ]
        return now.observations, now.rewards, now.dones, infos
