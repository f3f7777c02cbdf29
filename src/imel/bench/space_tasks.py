"""Small tasks of the suite `spaces`: `imel.bench.space_tasks:Levers-v0`, Sensors and Catch."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Levers(gym.Env[Any, Any]):
    """Set several levers as the lamps say; the reward is the share that is right. Chance: 4.2."""

    action_space: spaces.Space[Any] = spaces.MultiDiscrete([2, 3])

    def __init__(self) -> None:
        self.observation_space: spaces.Space[Any] = spaces.MultiDiscrete([2, 3])
        self._lamps, self._steps = np.zeros(2, np.int64), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def _observe(self) -> Any:
        self._lamps = self.np_random.integers([2, 3])
        return self._lamps

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Set the levers; the lamps change."""
        reward = float((np.asarray(action) == self._lamps).mean())
        self._steps += 1
        return self._observe(), reward, False, self._steps == 10, {}


class Sensors(Levers):
    """Two levers as bits; the lamps are parts of a Dict, beside noise. Chance: 5."""

    action_space = spaces.MultiBinary(2)

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(
            lamp=spaces.Discrete(2), height=spaces.Box(-1.0, 1.0, (1,)), noise=spaces.MultiBinary(2)
        )

    def _observe(self) -> Any:
        self._lamps = self.np_random.integers([2, 2])
        height = self.np_random.uniform(0.2, 1.0) * (2 * self._lamps[1] - 1)
        noise = self.np_random.integers(0, 2, 2).astype(np.int8)
        return {"lamp": self._lamps[0], "height": np.array([height], np.float32), "noise": noise}


class Catch(gym.Env[Any, Any]):
    """Catch a ball that falls through a grid, seen as an image; 1 if caught, else -1."""

    def __init__(self, cells: int = 6, size: int = 84) -> None:
        self._cells, self._pixels = cells, size // cells
        self.observation_space = spaces.Box(0, 255, (size, size, 1), np.uint8)
        self.action_space = spaces.Discrete(3)
        self._ball, self._row, self._paddle = 0, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._ball, self._paddle = (int(self.np_random.integers(self._cells)) for _ in range(2))
        self._row = 0
        return self._observe(), {}

    def _observe(self) -> Any:
        image = np.zeros((self._cells * self._pixels, self._cells * self._pixels, 1), np.uint8)
        for row, column in ((self._row, self._ball), (self._cells - 1, self._paddle)):
            y, x = row * self._pixels, column * self._pixels
            image[y : y + self._pixels, x : x + self._pixels] = 255
        return image

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move the paddle by action - 1; the ball falls by one cell."""
        self._paddle = int(np.clip(self._paddle + int(action) - 1, 0, self._cells - 1))
        self._row += 1
        over = self._row == self._cells - 1
        caught = 1.0 if self._paddle == self._ball else -1.0
        return self._observe(), caught if over else 0.0, over, False, {}


for name in ("Levers", "Sensors", "Catch"):
    gym.register(f"{name}-v0", entry_point=f"{__name__}:{name}")
