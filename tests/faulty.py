"""Environments that fail: registered, so that worker processes can make them by their id.

Whether they fail is up to two files in `FOLDER`: while there is `ALWAYS` they do, and of those
that find `ARMED` the first removes it and fails. Worker processes learn of the folder from the
environment variable that the first import of this module sets.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

FOLDER = Path(os.environ.setdefault("FAULTY_FOLDER", tempfile.mkdtemp(prefix="faulty-")))
ALWAYS, ARMED = FOLDER / "always", FOLDER / "armed"
FAIL_AT = 5
EPISODE = 12
RAISED = {
    "raises": RuntimeError("the simulator broke"),
    "exits": SystemExit(3),
    "base": BaseException("beyond all bounds"),
}
WRONG: dict[str, tuple[Any, float]] = {
    "nan": (np.zeros(2, np.float32), float("nan")),
    "large": (np.zeros(2, np.float32), 3e38),
    "scalar": (np.float32(0.0), 0.0),
    "wide": (np.zeros((2, 2), np.float32), 0.0),
}


class Faulty(gymnasium.Env[Any, Any]):
    """A walk on a line; one environment of those side by side fails at the fifth step."""

    def __init__(self, kind: str, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.render_mode = render_mode
        self._kind, self._steps = kind, 0
        self._state = np.zeros(2, dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._steps = 0
        self._state = self.np_random.normal(size=2).astype(np.float32)
        if self._kind == "raises-in-reset" and seed is None and _fails():
            raise OSError("no such simulator")
        return self._state, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        self._state = self._state + 0.1 * np.float32(action[0])
        if self._steps == FAIL_AT and self._kind != "raises-in-reset" and _fails():
            return self._fail()
        over = self._steps >= EPISODE
        return self._state, -float(self._state[0] ** 2), False, over, {}

    def _fail(self) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._kind in WRONG:
            return *WRONG[self._kind], False, False, {}
        if self._kind == "dies":
            os._exit(1)
        if self._kind == "hangs":
            time.sleep(3600)
        raise RAISED[self._kind]


def _fails() -> bool:
    with contextlib.suppress(FileNotFoundError):
        ARMED.unlink()  # of several processes the first fails
        return True
    return ALWAYS.exists()


KINDS = (*RAISED, *WRONG, "raises-in-reset", "dies", "hangs")
for _kind in KINDS:
    gymnasium.register(f"{_kind.title()}-v0", "faulty:Faulty", kwargs={"kind": _kind})
