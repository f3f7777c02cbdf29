"""Stopping a run from outside: when the user asks for it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from stable_baselines3.common.callbacks import BaseCallback


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
