"""Environments that say how they came where they are, so that their episodes can be played again.

What is deterministic and draws from Gymnasium's generator is decided by the random state an episode
began with and the actions since. That is what a checkpoint holds, and Ray's sampler keeps of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from imel.errors import EnvironmentFaultError, ImelError

Array = NDArray[Any]

LONGEST = 10_000
"""Steps after which an episode is left, and up to which it can be played again."""
FAULT = "imel_fault"
"""The key of an info under which a fault is reported."""


@dataclass(frozen=True)
class Past:
    """How an environment came to be where it is."""

    origin: Mapping[str, Any]
    """`seed`: of the reset that began the episode; or `state`: of the generator before it."""
    actions: Array
    """[t, ...] since then, in the environment's units."""


class Replayable(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Can be put back where it was at the last `mark`, by playing its episode again.

    It also names a fault, `reporting` it in the info from another process: whatever an environment
    raises, or an observation of another shape than its space, which would be broadcast.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], index: int, reporting: bool = False) -> None:
        super().__init__(env)
        self.origin: dict[str, Any] | None = None
        """What the present episode began with, as in `Past`; None if that cannot be kept."""
        self._index, self._reporting, self._seed = index, reporting, None
        self._begin()
        self.mark()

    def _begin(self) -> None:
        self._actions, self._count = list[Array](), 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._begin()  # in another list: the last mark may need the actions of before
        generator: Any = getattr(self.unwrapped.np_random, "bit_generator", None)
        self.origin = None if generator is None else {"state": generator.state}
        if seed is not None:
            self._seed, self.origin = seed, {"seed": seed}
        if options:  # which cannot be kept in a file
            self.origin = None
        try:
            observation, info = self.env.reset(seed=seed, options=options)
            return self._fitting(observation), info
        except BaseException as error:
            return None, self._report("reset", error)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step."""
        if self._count <= LONGEST:
            self._actions.append(np.array(action, self.action_space.dtype))
        self._count += 1
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
            return self._fitting(observation), float(reward), terminated, truncated, info
        except BaseException as error:
            return None, 0.0, False, False, self._report("step", error)

    def _fitting(self, observation: Any) -> Any:
        expected = self.observation_space.shape  # None of a Dict
        if expected is not None and np.shape(observation) != expected:
            raise ValueError(f"an observation of shape {np.shape(observation)}, not {expected}")
        return observation

    def _report(self, where: str, error: BaseException) -> dict[str, Any]:
        if isinstance(error, KeyboardInterrupt):
            raise error
        who = f"environment {self._index} (seed {self._seed})"
        what = f"{type(error).__name__}: {error}"
        fault = f"{who} raised in {where} {self._count} of its episode: {what}"
        if self._reporting:
            return {FAULT: fault}
        raise EnvironmentFaultError(fault, self._index) from error

    def mark(self) -> None:
        """Note where it is now."""
        self._mark = (self.origin, self._actions, self._count)

    def past(self) -> Past | None:
        """Return how it came to the last mark; None if it cannot be brought there again."""
        origin, actions, count = self._mark
        if origin is None or count > LONGEST:
            return None
        shape, kind = (count, *(self.action_space.shape or ())), self.action_space.dtype
        return Past(origin, np.array(actions[:count], kind).reshape(shape))

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
