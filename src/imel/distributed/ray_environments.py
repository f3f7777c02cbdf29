"""A vector environment whose parts live in actors of a Ray cluster.

It knows of each environment what it went through, so that an actor that dies is replaced and its
environments are played again up to where they were.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from imel.data.rollout import FloatArray
from imel.distributed.connection import cores
from imel.distributed.episodes import Past, new_stream
from imel.distributed.worker import Worker
from imel.errors import EnvironmentFaultError, ImelError

_REPLACEMENTS = 4
"""How often in a row one worker may die before that is the user's problem."""


class RayEnvironments(VecEnv):
    """Copies of an environment, spread over workers."""

    def __init__(
        self,
        ray: Any,
        env_id: str,
        n_envs: int,
        n_workers: int,
        spaces_of_one: tuple[spaces.Space[Any], spaces.Space[Any]],
    ) -> None:
        if cores(ray) < n_workers:
            raise ImelError(f"{n_workers} workers need as many cores; Ray has {cores(ray)}")
        self._ray, self._env_id = ray, env_id
        self._places = [
            range(int(part[0]), int(part[-1]) + 1)
            for part in np.array_split(np.arange(n_envs), min(n_workers, n_envs))
        ]
        self.num_envs, self._pasts = n_envs, list[Past]()
        self.observations: FloatArray = np.empty((n_envs, 0), np.float32)
        self._workers = [self._start(places, cpus=1) for places in self._places]
        super().__init__(n_envs, *spaces_of_one)

    # --- workers ---

    def _start(self, places: range, cpus: int) -> Any:
        options = {"num_cpus": cpus, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        remote = self._ray.remote(Worker).options(**options)
        return remote.remote(self._env_id, places, self.num_envs)

    def ask(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """What every worker answers to its arguments; one that dies is replaced and asked again."""
        asked = [
            getattr(worker, method).remote(*own)
            for worker, own in zip(self._workers, arguments, strict=True)
        ]
        return [
            self._answer(number, answer, method, own)
            for number, (answer, own) in enumerate(zip(asked, arguments, strict=True))
        ]

    def _answer(self, number: int, answer: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        errors = self._ray.exceptions
        # An answer is lost as well where it was still on the machine that is gone
        died = (errors.RayActorError, errors.ObjectLostError, errors.NodeDiedError)
        for _ in range(_REPLACEMENTS):
            try:
                return self._ray.get(answer)
            except died as error:
                reason = str(error).strip().splitlines()[-1].strip()
                with contextlib.suppress(*died):
                    self._replace(number)
                answer = getattr(self._workers[number], method).remote(*arguments)
        raise ImelError(
            f"worker {number} of {len(self._workers)} died {_REPLACEMENTS} times in a row: {reason}"
        )

    def _replace(self, number: int) -> None:
        with contextlib.suppress(Exception):
            self._ray.kill(self._workers[number])  # in case it was only out of reach
        places = self._places[number]
        # Without a core of its own: where the cluster has shrunk it shares one
        self._workers[number] = self._start(places, cpus=0)
        if self._pasts:
            pasts = self._pasts[places.start : places.stop]
            self._check(places, self._ray.get(self._workers[number].play_again.remote(pasts)))

    def _check(self, places: range, again: FloatArray) -> None:
        for place, observation in zip(places, again, strict=True):
            if observation.tobytes() != self.observations[place].tobytes():
                raise ImelError(
                    f"environment {place} was lost with its worker and cannot be made again: "
                    f"played again from its seed, it came to {observation} instead of "
                    f"{self.observations[place]}, so its simulator is not deterministic"
                )

    def rewind(self) -> None:
        """Bring every environment back to where its past ends, after steps that do not count."""
        again = self.ask("play_again", [(part,) for part in self.split(self._pasts)])
        for places, observations in zip(self._places, again, strict=True):
            self._check(places, observations)

    def put(self, thing: Any) -> Any:
        """Make something known to all machines, once."""
        return self._ray.put(thing)

    def split(self, rows: Any, axis: int = 0) -> list[Any]:
        """Something that has one entry for each environment, worker by worker."""
        parts = [slice(places.start, places.stop) for places in self._places]
        return [rows[:, part] if axis else rows[part] for part in parts]

    def took(self, sent: FloatArray, observations: FloatArray, dones: Any) -> None:
        """A step counts: it is part of what the environments went through."""
        for past, action, done in zip(self._pasts, sent, dones, strict=True):
            past.took(action, bool(done))
        self.observations = observations

    # --- as Stable-Baselines3 expects a vector environment ---

    def reset(self) -> VecEnvObs:
        """Begin an episode in each."""
        streams = [new_stream() if seed is None else seed for seed in self._seeds]
        self._pasts = []
        answers = self.ask("reset", [(part,) for part in self.split(streams)])
        self.observations = np.concatenate([_sound(answer) for answer in answers])
        self._pasts = [Past(stream) for stream in streams]
        self._reset_seeds()
        self._reset_options()
        return self.observations.copy()

    def step_async(self, actions: FloatArray) -> None:
        """Keep the actions."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """One step in each."""
        answers = self.ask("step", [(part,) for part in self.split(self._actions)])
        parts = [_sound(answer) for answer in answers]
        observations, rewards, dones = (
            np.concatenate([part[column] for part in parts]) for column in range(3)
        )
        self.took(self._actions, np.asarray(observations, np.float32), dones)
        return observations, rewards, dones, [info for part in parts for info in part[3]]

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            with contextlib.suppress(Exception):
                self._ray.kill(worker)

    def _call(self, method: str, arguments: tuple[Any, ...], indices: Any) -> list[Any]:
        answers = self.ask("call", [(method, *arguments)] * len(self._workers))
        answer = [value for part in answers for value in part]
        return [answer[index] for index in self._get_indices(indices)]

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of each."""
        return self._call("get_attr", (attr_name,), indices)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refused: an environment that is made again would not have it."""
        raise ImelError(f"'{attr_name}' cannot be set in environments of other processes")

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """What a method of each returns."""
        if method_kwargs:
            raise ImelError(f"'{method_name}' can be called with positional arguments only")
        return self._call("env_method", (method_name, *method_args), indices)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Whether each is wrapped so."""
        return self._call("env_is_wrapped", (wrapper_class,), indices)


def _sound(answer: Any) -> Any:
    if isinstance(answer, EnvironmentFaultError):
        raise answer
    return answer
