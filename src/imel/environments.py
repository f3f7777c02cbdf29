"""Making environments side by side, so that what goes wrong in one is said of that one.

In this process by default; each in a process of its own where the simulator is slow enough to pay
for it, or may crash or hang.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import Env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn
from stable_baselines3.common.vec_env.subproc_vec_env import _stack_obs

from imel.envpool import make_envpool
from imel.errors import EnvironmentFaultError, ImelError, SettingsError
from imel.replay import Replayable
from imel.settings.common import Backend
from imel.simulators import make

_SECONDS_TO_START = 120.0
_FAULT = "imel_fault"
"""The key of an info under which a worker reports."""


def make_environments(
    env_id: str,
    n_envs: int,
    workers: bool = False,
    worker_timeout: float = 60.0,
    backend: Backend = "gymnasium",
    env_threads: int = 0,
) -> VecEnv:
    """Copies of an environment; whatever keeps it from being made is said in one line."""
    makers: list[Callable[[], Env[Any, Any]]] = [
        partial(_make, env_id, index) for index in range(n_envs)
    ]
    if workers and backend == "envpool":
        raise SettingsError("workers=True is for Gymnasium: EnvPool has threads of its own")
    try:
        if backend == "envpool":
            return make_envpool(env_id, n_envs, env_threads)
        if workers:
            make(env_id).close()  # what cannot be made is better refused here
            return Workers([partial(_report, maker) for maker in makers], worker_timeout)
        return SideBySide(makers)
    except (ImelError, KeyboardInterrupt):
        raise
    except gymnasium.error.Error as error:
        raise ImelError(f"cannot make environment '{env_id}': {error}") from None
    except BaseException as error:  # a missing package, a driver, the environment's own code
        reason = f"{type(error).__name__}: {error}"
        raise ImelError(f"cannot make environment '{env_id}': {reason}") from None


def _make(env_id: str, index: int) -> Env[Any, Any]:
    return Replayable(Monitor(Named(make(env_id), index)))


def _report(maker: Callable[[], Env[Any, Any]]) -> Env[Any, Any]:
    # Ctrl-C reaches every process of a terminal; when a worker ends is for the run to say
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return Reporting(maker())


class Named(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says of a fault in which environment it was, by which seed and at which step.

    A fault is whatever an environment raises, be it SystemExit, and an observation of another
    shape than its space has: it would be broadcast without a word.
    """

    def __init__(self, env: Env[Any, Any], index: int) -> None:
        super().__init__(env)
        self._index, self._steps = index, 0
        self._seed: int | None = None

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._steps = 0
        if arguments.get("seed") is not None:
            self._seed = arguments["seed"]
        try:
            observation, info = self.env.reset(**arguments)
            self._require_shape(observation)
            return observation, info
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._fault("reset", error) from error

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        self._steps += 1
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
            self._require_shape(observation)
            return observation, float(reward), terminated, truncated, info
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._fault("step", error) from error

    def _require_shape(self, observation: Any) -> None:
        expected = self.observation_space.shape  # None of a Dict
        if expected is not None and np.shape(observation) != expected:
            raise ValueError(f"an observation of shape {np.shape(observation)}, not {expected}")

    def _fault(self, where: str, error: BaseException) -> EnvironmentFaultError:
        return EnvironmentFaultError(
            f"environment {self._index} (seed {self._seed}) raised in {where} {self._steps} of its "
            f"episode: {type(error).__name__}: {error}",
            self._index,
        )


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


class SideBySide(DummyVecEnv):
    """Environments in this process, stepped one after the other.

    Infos are copied one level deep and observations as arrays: for a quick simulator deep copies of
    both are a tenth of a step.
    """

    @property
    def restorable(self) -> bool:
        """Whether all of them can be put back where they were."""
        return all(self.env_is_wrapped(Replayable))

    def step_wait(self) -> VecEnvStepReturn:
        """Step all; one that has ended begins anew, its last observation in its info."""
        infos: list[dict[str, Any]] = []
        for index, env in enumerate(self.envs):
            action = self.actions[index]
            observation, reward, terminated, truncated, info = env.step(action)
            info = {**info, "TimeLimit.truncated": truncated and not terminated}
            if terminated or truncated:
                info["terminal_observation"] = observation
                observation, self.reset_infos[index] = env.reset()
            self.buf_rews[index] = reward
            self.buf_dones[index] = terminated or truncated
            self._save_obs(index, observation)
            infos.append(info)
        copied: dict[Any, Any] = {key: column.copy() for key, column in self.buf_obs.items()}
        # A space that is no Dict has the single key None
        observations = copied.get(None, copied)
        return observations, self.buf_rews.copy(), self.buf_dones.copy(), infos


class Workers(SubprocVecEnv):
    """Environments in processes of their own; one that dies or hangs is named.

    After a fault the next `reset` starts all processes anew.
    """

    restorable: ClassVar[bool] = True

    def __init__(self, makers: list[Callable[[], Env[Any, Any]]], timeout: float) -> None:
        self._makers, self._timeout = makers, timeout
        self._first_seeds: list[int | None] = [None] * len(makers)
        self._broken = False
        # One process imports what all of them need, and they are copies of it
        multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])
        super().__init__(makers, start_method="forkserver")

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
