"""Environments that can be put back where they were: by playing their episode again.

An episode is decided by the random state it began with and the actions since, for MuJoCo's tasks
and whatever else is deterministic and draws from Gymnasium's generator. So a checkpoint holds
those, and a resumed run goes on in mid-episode: simulator, time limit and monitor included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from imel.errors import ImelError

Array = NDArray[Any]

LONGEST = 10_000
"""Steps of an episode up to which it can be played again."""


@dataclass(frozen=True)
class Past:
    """How an environment came to be where it is."""

    origin: Mapping[str, Any]
    """`seed`: of the reset that began the episode; or `state`: of the generator before it."""
    actions: Array
    """[t, ...] since then, in the environment's units."""


class Replayable(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Remembers how its episode came about; `past` is as of the last `mark`."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._origin: dict[str, Any] | None = None
        self._actions: list[Array] = []
        self._mark: tuple[dict[str, Any] | None, list[Array], int] = (None, [], 0)

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
        self._actions = []
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        if len(self._actions) <= LONGEST:
            self._actions.append(np.array(action, self.action_space.dtype))
        return self.env.step(action)

    def mark(self) -> None:
        """Note where it is now."""
        self._mark = (self._origin, self._actions, len(self._actions))

    def past(self) -> Past | None:
        """Return how it came to the last mark; None if it cannot be brought there again."""
        origin, actions, count = self._mark
        if origin is None or count > LONGEST:
            return None
        empty = np.zeros((0, *(self.action_space.shape or ())), self.action_space.dtype)
        return Past(origin, np.stack(actions[:count]) if count else empty)

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
