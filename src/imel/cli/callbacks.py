"""What watches a run from outside: the episode log, and stopping when the user asks for it."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import ResultsWriter


class EpisodeLog(BaseCallback):
    """Writes each finished episode to a monitor file, as Stable-Baselines3's monitors do.

    Beside return `r`, length `l` and time `t` stands the number of environment steps taken by
    then, `steps`: with environments side by side it is not the sum of the lengths.
    """

    def __init__(self, path: Path, env_id: str) -> None:
        super().__init__()
        self._start = time.time()
        header: dict[str, float | str] = {"t_start": self._start, "env_id": env_id}
        self._writer = ResultsWriter(str(path), header, extra_keys=("steps",))

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self._writer.write_row(
                    {
                        "r": info["episode"]["r"],
                        "l": info["episode"]["l"],
                        "t": round(time.time() - self._start, 6),
                        "steps": self.num_timesteps,
                    }
                )
        return True

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class StopOnSignal(BaseCallback):
    """Ends training between two iterations when SIGINT or SIGTERM comes.

    The rollout under way is dropped, so that the model is whole. A second signal has its usual
    effect, at once.
    """

    received: int | None = None

    def _on_step(self) -> bool:
        return self.received is None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Take signals in this block."""
        usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def handle(number: int, frame: FrameType | None) -> None:
            del frame
            self.received = number
            restore()

        def restore() -> None:
            for number, handler in usual.items():
                signal.signal(number, handler)

        for number in usual:
            signal.signal(number, handle)
        try:
            yield
        finally:
            restore()
