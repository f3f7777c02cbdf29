"""Environments that say how they came where they are, so that their episodes can be played again.

An episode is decided by the random state it began with and the actions since, for MuJoCo's tasks
and whatever else is deterministic and draws from Gymnasium's generator. That is what a checkpoint
holds of an environment, and what the learning process keeps of those in Ray's workers.
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
_ROOM = 64
"""Actions for which there is room at first; it doubles when it is full."""


@dataclass(frozen=True)
class Past:
    """How an environment came to be where it is."""

    origin: Mapping[str, Any]
    """`seed`: of the reset that began the episode; or `state`: of the generator before it."""
    actions: Array
    """[t, ...] since then, in the environment's units."""


class Replayable(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Can be put back where it was at the last `mark`, by playing its episode again.

    It also says of a fault in which environment it was, by which seed and at which step. A fault is
    whatever an environment raises, be it SystemExit, and an observation of another shape than its
    space has: it would be broadcast without a word.

    :param index: which of several copies it is
    :param reporting: hand faults on in the info, so that a process of its own lives to say them
    """

    def __init__(self, env: gymnasium.Env[Any, Any], index: int, reporting: bool = False) -> None:
        super().__init__(env)
        self.origin: dict[str, Any] | None = None
        """What the present episode began with, as in `Past`; None if that cannot be kept."""
        self._index, self._reporting, self._seed = index, reporting, None
        self._begin()
        self.mark()

    def _begin(self) -> None:
        shape = (_ROOM, *(self.action_space.shape or ()))
        self._actions, self._count = np.empty(shape, self.action_space.dtype), 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._begin()  # in another array: the last mark may need the actions of before
        generator: Any = getattr(self.unwrapped.np_random, "bit_generator", None)
        self.origin = None if generator is None else {"state": generator.state}
        if seed is not None:
            self._seed, self.origin = seed, {"seed": seed}
        if options:  # which cannot be kept in a file
            self.origin = None
        try:
            observation, info = self.env.reset(seed=seed, options=options)
            self._require_shape(observation)
            return observation, info
        except BaseException as error:
            return None, self._report("reset", error)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step."""
        if self._count <= LONGEST:
            if self._count == len(self._actions):
                self._actions = np.concatenate([self._actions, np.empty_like(self._actions)])
            self._actions[self._count] = action
        self._count += 1
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
            self._require_shape(observation)
            return observation, float(reward), terminated, truncated, info
        except BaseException as error:
            return None, 0.0, False, False, self._report("step", error)

    def _require_shape(self, observation: Any) -> None:
        expected = self.observation_space.shape  # None of a Dict
        if expected is not None and np.shape(observation) != expected:
            raise ValueError(f"an observation of shape {np.shape(observation)}, not {expected}")

    def _report(self, where: str, error: BaseException) -> dict[str, Any]:
        if isinstance(error, KeyboardInterrupt):
            raise error
        fault = (
            f"environment {self._index} (seed {self._seed}) raised in {where} {self._count} of its "
            f"episode: {type(error).__name__}: {error}"
        )
        if self._reporting:
            return {FAULT: fault}
        raise EnvironmentFaultError(fault, self._index) from error

    def mark(self) -> None:
        """Note where it is now."""
        self._mark = (self.origin, self._actions, self._count)

    def past(self) -> Past | None:
        """Return how it came to the last mark; None if it cannot be brought there again."""
        origin, actions, count = self._mark
        return None if origin is None or count > LONGEST else Past(origin, actions[:count])

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
