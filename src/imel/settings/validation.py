"""Checking settings and options against the dataclasses that declare them, schedules among them.

A schedule maps Stable-Baselines3's remaining progress (1 at the start, 0 at the end) to a value.
It is written as a number (constant), as `"start:end"` (linear), or given as any callable; a
callable works but cannot be stored in a checkpoint.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from imel.errors import SettingsError, nearest_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
_LARGEST = 1e30
Ranges = Mapping[str, tuple[float, float]]


def updated(
    instance: T, changes: Mapping[str, Any], what: str, ranges: Ranges, also: Iterable[str] = ()
) -> T:
    """Return a dataclass with some fields changed; refuse unknown names and bad values.

    Unless `ranges` says otherwise, whole numbers start at 1 and others at 0. `also` are names that
    the caller takes for something else: they are suggested for a misspelt one, too.
    """
    types = typing.get_type_hints(type(instance))
    hints = {field.name: types[field.name] for field in fields(instance)}
    for name, value in changes.items():
        if name not in hints:
            raise SettingsError(f"{what} has no '{name}'; {nearest_name(name, [*hints, *also])}")
        _check(name, value, hints[name], ranges)
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in changes.items()
    }
    return replace(instance, **plain)


def _check(name: str, value: Any, hint: Any, ranges: Ranges) -> None:
    if typing.get_origin(hint) is typing.Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise SettingsError(f"{name}={value!r} is none of {', '.join(map(repr, choices))}")
    elif typing.get_origin(hint) is tuple:
        sizes = value if isinstance(value, tuple | list) else ()
        if not sizes or not all(type(size) is int and size > 0 for size in sizes):
            raise SettingsError(f"{name}={value!r} is not a list of layer sizes")
    elif hint in (int, float):
        accepted = int if hint is int else (int, float)
        if not isinstance(value, accepted) or isinstance(value, bool):
            raise SettingsError(f"{name}={value!r} is not of type {hint.__name__}")
        low, high = ranges.get(name, (1 if hint is int else 0.0, _LARGEST))
        if not low <= value <= high:
            raise SettingsError(f"{name}={value!r} is not between {low} and {high}")
    elif isinstance(hint, type) and not isinstance(value, hint):
        raise SettingsError(f"{name}={value!r} is not of type {hint.__name__}")


# --- schedules ---

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
