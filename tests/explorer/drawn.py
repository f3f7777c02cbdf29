"""An environment that draws itself without any library: a point to be steered to the middle."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

STEPS, HEIGHT, WIDTH = 24, 48, 64


class DrawnEnv(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """A white square on blue where the point is; further out costs more."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(
        self, render_mode: str | None = None, blind: bool = False, actions: int = 2
    ) -> None:
        self.observation_space = spaces.Box(-1.5, 1.5, (2,), np.float32)
        self.action_space = spaces.Box(-2.0, 2.0, (actions,), np.float32)
        self.render_mode, self._blind = render_mode, blind
        self.place = np.zeros(2, dtype=np.float32)
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        self._step = 0
        return self.place.copy(), {}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.place = np.clip(self.place + 0.1 * action[:2], -1.5, 1.5).astype(np.float32)
        self._step += 1
        reward = -float(np.square(self.place).sum())
        return self.place.copy(), reward, False, self._step >= STEPS, {}

    def render(self) -> Any:
        if self._blind:
            raise RuntimeError("no light")
        pixels = np.full((HEIGHT, WIDTH, 3), (20, 40, 120), dtype=np.uint8)
        column, row = self.pixel()
        pixels[max(0, row - 3) : row + 4, max(0, column - 3) : column + 4] = 255
        return pixels

    def pixel(self) -> tuple[int, int]:
        """Column and row of the point."""
        share = (self.place + 1.5) / 3.0
        return int(share[0] * (WIDTH - 1)), int((1.0 - share[1]) * (HEIGHT - 1))


gymnasium.register("Drawn-v0", entry_point="explorer.drawn:DrawnEnv")
for count in (6, 17):  # of which only two do something
    gymnasium.register(
        f"Drawn{count}-v0", entry_point="explorer.drawn:DrawnEnv", kwargs={"actions": count}
    )
gymnasium.register("Undrawn-v0", entry_point=lambda: DrawnEnv())  # type: ignore[arg-type]
gymnasium.register("Blind-v0", entry_point="explorer.drawn:DrawnEnv", kwargs={"blind": True})
