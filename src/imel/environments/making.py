"""Make environments from an id.

id -> `make` -> Replayable(Monitor(environment)) -> side by side in this process, or in processes of
their own where a simulator is slow, or may crash or hang; or as EnvPool's (`envpool`)
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import gymnasium
from gymnasium import Env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    unwrap_vec_normalize,
)
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from imel.data.rollout import Sampler
from imel.environments.envpool import make_envpool
from imel.environments.replay import FAULT, Replayable
from imel.errors import EnvironmentFaultError, ImelError, SettingsError, one_line
from imel.policies.spaces import check_spaces
from imel.settings import Backend, Settings

Maker = Callable[[], Env[Any, Any]]

_SECONDS_TO_START = 120.0
_said: set[str] = set()


def make(env_id: str, **options: Any) -> Env[Any, Any]:
    """Make one environment by its id; each warning of MuJoCo is said once, and in no file."""
    if is_mujoco(env_id):
        import mujoco  # which takes a while to import, and not every task needs it

        mujoco.set_mju_user_warning(_say_once)
    return gymnasium.make(env_id, **options)


def is_mujoco(env_id: str) -> bool:
    """Return whether an id stands for one of Gymnasium's MuJoCo tasks."""
    entry = getattr(gymnasium.registry.get(env_id), "entry_point", None)
    return isinstance(entry, str) and entry.startswith("gymnasium.envs.mujoco")


def _say_once(text: str) -> None:
    key = text.split(" at ")[0]  # what follows are numbers: a joint, a time
    # Models are compiled in the main process first, so workers have nothing new to say of them
    known = "deprecated" in text and multiprocessing.parent_process() is not None
    if key not in _said and not known:
        _said.add(key)
        print(f"MuJoCo: {text}", file=sys.stderr)


@contextmanager
def refused_in_one_line(env_id: str) -> Iterator[None]:
    """Say in one line whatever keeps an environment from being made."""
    try:
        yield
    except (ImelError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a missing package, a driver, the environment's own code
        raise ImelError(f"cannot make environment '{env_id}': {one_line(error)}") from None


def make_environments(
    env_id: str,
    n_envs: int,
    workers: bool = False,
    worker_timeout: float = 60.0,
    backend: Backend = "gymnasium",
    env_threads: int = 0,
) -> VecEnv:
    """Return copies of an environment that report their episodes and can be played again."""
    if workers and backend == "envpool":
        raise SettingsError("workers=True is for Gymnasium: EnvPool has threads of its own")
    makers: list[Maker] = [partial(make_copy, env_id, index, workers) for index in range(n_envs)]
    with refused_in_one_line(env_id):
        if backend == "envpool":
            return make_envpool(env_id, n_envs, env_threads)
        if workers:
            make(env_id).close()  # what cannot be made is better refused here
            return Workers(makers, worker_timeout)
        return SideBySide(makers)


def make_copy(env_id: str, index: int, worker: bool = False) -> Replayable:
    """Return one of several copies of an environment, here or in a worker's process."""
    if worker:
        # Ctrl-C reaches every process of a terminal; when a worker ends is for the run to say
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return Replayable(Monitor(make(env_id)), index, reporting=worker)


def environments_for(
    env: GymEnv | str | None, settings: Settings, sampler: Sampler | None
) -> GymEnv | None:
    """Return the environments of an algorithm: an id becomes copies, all else is taken as it is."""
    if isinstance(env, str) and sampler is not None:
        env = sampler.make_environments(env, settings.n_envs)
    elif isinstance(env, str):
        how = (settings.workers, settings.worker_timeout, settings.backend, settings.env_threads)
        env = make_environments(env, settings.n_envs, *how)
    elif env is not None and sampler is not None:
        raise SettingsError("a sampler makes its own environments: give an environment's id")
    if env is not None:
        check_spaces(env.observation_space, env.action_space)
    if isinstance(env, VecEnv) and unwrap_vec_normalize(env) is not None:
        warnings.warn(
            "imel normalises observations and rewards itself, and saves how: VecNormalize around "
            "the environment is not needed, and its statistics are not in the model's file",
            stacklevel=4,
        )
    return env


class SideBySide(DummyVecEnv):
    """Environments in this process; deep copies of infos would be a tenth of a quick step."""

    @property
    def restorable(self) -> bool:
        """Whether all of them can be put back where they were."""
        return all(self.env_is_wrapped(Replayable))

    def step_wait(self) -> VecEnvStepReturn:
        """Step all; one that has ended begins anew, its last observation in its info."""
        infos: list[dict[str, Any]] = []
        for index, env in enumerate(self.envs):
            observation, reward, terminated, truncated, info = env.step(self.actions[index])
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
    """Environments in processes of their own, started anew by the `reset` after a fault."""

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
        for process, remote in zip(self.processes, self.remotes, strict=True):
            process.kill()
            process.join()
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
        try:
            self._pipe.send(request)
        except OSError:
            raise self._lost("ended during a {}") from None

    def recv(self) -> Any:
        """Wait for the answer, but not for ever."""
        seconds = self._seconds.get(self._kind)
        try:
            if not self._pipe.poll(seconds):
                raise self._lost(f"did not answer to a {{}} within {seconds:g} s")
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise self._lost("ended during a {}") from None
        for info in answer if isinstance(answer, tuple) else ():
            if isinstance(info, dict) and FAULT in info:
                self.broken = True
                raise EnvironmentFaultError(info[FAULT], self._index)
        return answer

    def _lost(self, how: str) -> EnvironmentFaultError:
        self.broken = True
        who = f"the process of environment {self._index} (seed {self._seed})"
        return EnvironmentFaultError(f"{who} {how.format(self._kind)}", self._index)
