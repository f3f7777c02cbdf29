"""Environments in processes of their own: where a simulator is slow, or may crash or hang."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from gymnasium import Env
from stable_baselines3.common.vec_env import SubprocVecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs

from imel.environments.replay import FAULT
from imel.errors import EnvironmentFaultError

Maker = Callable[[], Env[Any, Any]]

_SECONDS_TO_START = 120.0


class Workers(SubprocVecEnv):
    """Environments in processes of their own; one that dies or hangs is named.

    After a fault the next `reset` starts all processes anew.
    """

    restorable: ClassVar[bool] = True

    def __init__(self, makers: Sequence[Maker], timeout: float) -> None:
        self._makers = list(makers)
        self._seconds = {"step": timeout, "reset": max(timeout, _SECONDS_TO_START)}
        # One process imports what all of them need, and they are copies of it
        multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])
        self._start()

    def _start(self) -> None:
        super().__init__(self._makers, start_method="forkserver")
        self.remotes: Any = tuple(
            _Watched(remote, index, self._seconds) for index, remote in enumerate(self.remotes)
        )

    def reset(self) -> VecEnvObs:
        """Begin an episode in each."""
        if any(remote.broken for remote in self.remotes):
            seeds = self._seeds
            self.close()
            self._start()
            self._seeds = seeds
        return super().reset()

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


class _Watched:
    """The pipe to a worker, which names the environment if there is no answer, or a fault in it."""

    def __init__(self, pipe: Any, index: int, seconds: dict[str, float]) -> None:
        self._pipe, self._index, self._seconds = pipe, index, seconds
        self._seed: int | None = None
        self.close = pipe.close
        self.broken = False

    def send(self, request: tuple[str, Any]) -> None:
        """Ask the worker for something."""
        self._kind, content = request
        if self._kind == "reset":
            self._seed = content[0]
        self._asked = f"call of {content[0]}" if self._kind == "env_method" else self._kind
        try:
            self._pipe.send(request)
        except OSError:
            raise self._died() from None

    def recv(self) -> Any:
        """Wait for the answer, but not for ever."""
        seconds = self._seconds.get(self._kind)
        try:
            if not self._pipe.poll(seconds):
                raise self._fault(
                    f"environment {self._index} (seed {self._seed}) did not answer to a "
                    f"{self._asked} within {seconds:g} s"
                )
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise self._died() from None
        for info in answer if isinstance(answer, tuple) else ():
            if isinstance(info, dict) and FAULT in info:
                raise self._fault(info[FAULT])
        return answer

    def _died(self) -> EnvironmentFaultError:
        return self._fault(
            f"the process of environment {self._index} (seed {self._seed}) ended during a "
            f"{self._asked}"
        )

    def _fault(self, reason: str) -> EnvironmentFaultError:
        self.broken = True
        return EnvironmentFaultError(reason, self._index)
