"""Make environments and step them in this process; say of a fault in which of them it was.

`workers` steps them in processes of their own, `envpool` on the threads of EnvPool.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Env
from numpy.typing import NDArray
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from imel.environments.envpool import make_envpool
from imel.environments.simulators import make
from imel.environments.workers import Maker, Workers
from imel.errors import EnvironmentFaultError, ImelError, SettingsError
from imel.settings import Backend

Array = NDArray[Any]

LONGEST = 10_000
"""Steps of an episode up to which it can be played again."""
_ROOM = 64
"""Actions for which there is room at first; it doubles when it is full."""


def make_environments(
    env_id: str,
    n_envs: int,
    workers: bool = False,
    worker_timeout: float = 60.0,
    backend: Backend = "gymnasium",
    env_threads: int = 0,
) -> VecEnv:
    """Return copies of an environment; say in one line whatever keeps it from being made."""
    makers: list[Maker] = [partial(_make, env_id, index) for index in range(n_envs)]
    if workers and backend == "envpool":
        raise SettingsError("workers=True is for Gymnasium: EnvPool has threads of its own")
    try:
        if backend == "envpool":
            return make_envpool(env_id, n_envs, env_threads)
        if workers:
            make(env_id).close()  # what cannot be made is better refused here
            return Workers(makers, worker_timeout)
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


@dataclass(frozen=True)
class Past:
    """How an environment came to be where it is."""

    origin: Mapping[str, Any]
    """`seed`: of the reset that began the episode; or `state`: of the generator before it."""
    actions: Array
    """[t, ...] since then, in the environment's units."""


class Replayable(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Can be put back where it was at the last `mark`, by playing its episode again.

    An episode is decided by the random state it began with and the actions since, for MuJoCo's
    tasks and whatever else is deterministic and draws from Gymnasium's generator. A checkpoint
    holds those, so a resumed run goes on in mid-episode, simulator and time limit included.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._origin: dict[str, Any] | None = None
        self._actions, self._count = self._room(), 0
        self._mark: tuple[dict[str, Any] | None, Array, int] = (None, self._actions, 0)

    def _room(self) -> Array:
        return np.empty((_ROOM, *(self.action_space.shape or ())), self.action_space.dtype)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        generator: Any = getattr(self.unwrapped.np_random, "bit_generator", None)
        self._origin = None
        if seed is not None:
            self._origin = {"seed": seed}
        elif generator is not None:
            self._origin = {"state": generator.state}
        if options:  # which cannot be kept in a file
            self._origin = None
        self._actions, self._count = self._room(), 0  # the last mark may need those of before
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        if self._count <= LONGEST:
            if self._count == len(self._actions):
                self._actions = np.concatenate([self._actions, np.empty_like(self._actions)])
            self._actions[self._count] = action
            self._count += 1
        return self.env.step(action)

    def mark(self) -> None:
        """Note where it is now."""
        self._mark = (self._origin, self._actions, self._count)

    def past(self) -> Past | None:
        """Return how it came to the last mark; None if it cannot be brought there again."""
        origin, actions, count = self._mark
        if origin is None or count > LONGEST:
            return None
        return Past(origin, actions[:count])

    def play_again(self, past: Past) -> Any:
        """Bring it where another one was; return the observation there."""
        if "state" in past.origin:
            self.unwrapped.np_random.bit_generator.state = past.origin["state"]
        observation, _ = self.reset(seed=past.origin.get("seed"))
        for step, action in enumerate(past.actions):
            observation, _, terminated, truncated, _ = self.step(action)
            if terminated or truncated:
                raise ImelError(f"its episode ended at step {step + 1} when it was played again")
        return observation


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
