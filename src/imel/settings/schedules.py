"""Schedules over a run as plain data, so that they can be saved without pickle.

A schedule maps Stable-Baselines3's remaining progress (1 at the start, 0 at the end) to a value.
It is written as a number (constant), as `"start:end"` (linear), or given as any callable; a
callable works but cannot be stored in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from imel.errors import SettingsError

ScheduleLike = float | str | Callable[[float], float]


@dataclass(frozen=True)
class Linear:
    """Goes from `start` to `end` in proportion to the steps taken; constant if they are equal."""

    start: float
    end: float

    def __call__(self, progress_remaining: float) -> float:
        """The value when this share of the run is still to come."""
        remaining = min(max(progress_remaining, 0.0), 1.0)
        return self.end + (self.start - self.end) * remaining


def parse_schedule(name: str, value: ScheduleLike) -> Callable[[float], float]:
    """The schedule behind a setting; refuses what is not one, or not positive throughout."""
    if callable(value):
        return value
    start, colon, end = str(value).partition(":")
    try:
        schedule = Linear(float(start), float(end if colon else start))
    except ValueError:
        raise SettingsError(
            f"{name}={value!r} is neither a number nor 'start:end' (such as '0.4:0.1')"
        ) from None
    if not (0.0 < schedule.start < float("inf") and 0.0 < schedule.end < float("inf")):
        raise SettingsError(f"{name}={value!r} must be positive and finite throughout")
    return schedule
