"""Environments in processes of their own: where a simulator is slow, or may crash or hang."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import Env
from stable_baselines3.common.vec_env import SubprocVecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn
from stable_baselines3.common.vec_env.subproc_vec_env import _stack_obs

from imel.errors import EnvironmentFaultError

Maker = Callable[[], Env[Any, Any]]

_SECONDS_TO_START = 120.0
_FAULT = "imel_fault"
"""The key of an info under which a worker reports."""


class Workers(SubprocVecEnv):
    """Environments in processes of their own; one that dies or hangs is named.

    After a fault the next `reset` starts all processes anew.
    """

    restorable: ClassVar[bool] = True

    def __init__(self, makers: Sequence[Maker], timeout: float) -> None:
        self._makers: list[Maker] = [partial(_report, maker) for maker in makers]
        self._timeout = timeout
        self._first_seeds: list[int | None] = [None] * len(makers)
        self._broken = False
        # One process imports what all of them need, and they are copies of it
        multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])
        super().__init__(self._makers, start_method="forkserver")

    def reset(self) -> VecEnvObs:
        """Begin an episode in each."""
        if self._broken:
            seeds = self._seeds
            self.close()
            super().__init__(self._makers, start_method="forkserver")
            self._seeds, self._broken = seeds, False
        self._first_seeds = list(self._seeds)
        try:
            for remote, seed, options in zip(self.remotes, self._seeds, self._options, strict=True):
                remote.send(("reset", (seed, options)))
            self._await("reset", max(self._timeout, _SECONDS_TO_START))
            results = [remote.recv() for remote in self.remotes]
        except (EOFError, OSError):
            raise self._dead("reset") from None
        observations, self.reset_infos = zip(*results, strict=True)  # type: ignore[assignment]
        self._raise_reported(self.reset_infos)
        self._reset_seeds()
        self._reset_options()
        return _stack_obs(observations, self.observation_space)

    def step_async(self, actions: Any) -> None:
        """Send the actions."""
        try:
            super().step_async(actions)
        except OSError:
            raise self._dead("step") from None

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for all, but not for ever."""
        try:
            self._await("step", self._timeout)
            stepped = super().step_wait()
        except (EOFError, OSError):
            raise self._dead("step") from None
        self._raise_reported(stepped[3])
        self._raise_reported(self.reset_infos)
        return stepped

    def env_method(self, method_name: str, *args: Any, **named: Any) -> list[Any]:
        """Call a method of each environment."""
        try:
            return super().env_method(method_name, *args, **named)
        except (EOFError, OSError):
            raise self._dead(f"call of {method_name}") from None

    def _raise_reported(self, infos: Sequence[dict[str, Any]]) -> None:
        for index, info in enumerate(infos):
            if _FAULT in info:
                self._broken = True
                raise EnvironmentFaultError(info[_FAULT], index)

    def close(self) -> None:
        """End the processes, also those that would not listen."""
        if self.closed:
            return
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join(1.0)
            if process.is_alive():
                process.kill()
                process.join()
        for remote in self.remotes:
            remote.close()
        self.closed, self.waiting = True, False

    def _await(self, what: str, seconds: float) -> None:
        for index, remote in enumerate(self.remotes):
            if not remote.poll(seconds):
                self._broken = True
                raise EnvironmentFaultError(
                    f"environment {index} (seed {self._first_seeds[index]}) did not answer to a "
                    f"{what} within {seconds:g} s",
                    index,
                )

    def _dead(self, what: str) -> EnvironmentFaultError:
        self._broken = True
        for process in self.processes:
            process.join(0.2)
        dead = [i for i, process in enumerate(self.processes) if not process.is_alive()]
        index = dead[0] if dead else None
        seed = None if index is None else self._first_seeds[index]
        return EnvironmentFaultError(
            f"the process of environment {index} (seed {seed}) ended during a {what}", index
        )


def _report(maker: Maker) -> Env[Any, Any]:
    # Ctrl-C reaches every process of a terminal; when a worker ends is for the run to say
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return Reporting(maker())


class Reporting(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Hands faults on in the info, so that a worker process lives to say what was wrong."""

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        try:
            return self.env.reset(**arguments)
        except EnvironmentFaultError as fault:
            return self._blank(), {_FAULT: str(fault)}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        try:
            return self.env.step(action)
        except EnvironmentFaultError as fault:
            return self._blank(), 0.0, False, False, {_FAULT: str(fault)}

    def _blank(self) -> Any:
        return np.zeros(self.observation_space.shape or (), np.float32)
