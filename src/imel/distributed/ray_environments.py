"""A vector environment whose parts live in actors of a Ray cluster.

It knows of each environment how it came where it is, so that an actor that dies is replaced and
its environments are played again up to where they were.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from imel.data.rollout import FloatArray
from imel.distributed.connection import cores
from imel.distributed.worker import Origin, Worker
from imel.environments.replay import Past
from imel.errors import ImelError

_MOST_DEATHS = 4
"""How often in a row one worker may die before that is the user's problem."""


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
        options = {"num_cpus": cpus, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        remote = self.ray.remote(Worker).options(**options)
        return remote.remote(self._env_id, places, self.num_envs)

    def ask(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return each worker's answer to its arguments; one that dies is replaced, asked again."""
        asked = [
            getattr(worker, method).remote(*own)
            for worker, own in zip(self._workers, arguments, strict=True)
        ]
        return [
            self._answer(number, answer, method, own)
            for number, (answer, own) in enumerate(zip(asked, arguments, strict=True))
        ]

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
        raise ImelError(f"'{attr_name}' cannot be set in environments of other processes")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **named: Any) -> Any:
        """Refuse likewise."""
        raise ImelError(f"'{method_name}' cannot be called in environments of other processes")


def joined(parts: Sequence[Any]) -> Any:
    """Put side by side what workers have answered: arrays, or lists."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return [entry for part in parts for entry in part]
