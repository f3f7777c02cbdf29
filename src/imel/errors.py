"""Errors a user can act on: each carries one line that says what is wrong and with what."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST = 500
"""Letters of somebody else's message that a line of ours repeats."""


class ImelError(ValueError):
    """Base of every error caused by input rather than by a defect of imel."""


class SettingsError(ImelError):
    """A setting is unknown, of the wrong type, or out of range."""


class SpaceError(ImelError):
    """An observation or action space imel cannot learn on."""


class EnvironmentFaultError(ImelError):
    """An environment raised, died, hung, or returned what is no number."""

    def __init__(self, reason: str, environment: int | None = None) -> None:
        super().__init__(reason)
        self.environment = environment
        """Which of those side by side, if that is known."""


class NonFiniteError(EnvironmentFaultError):
    """An environment returned a NaN or infinite observation or reward."""


class CheckpointError(ImelError):
    """A file is not a checkpoint of ours, is damaged, or belongs to something else."""


def one_line(error: BaseException) -> str:
    """Return the kind and the text of an exception on one line of bounded length."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]


def nearest_name(name: str, valid: Iterable[str]) -> str:
    """`did you mean 'x'?` for the closest valid name, or the list of all when none is close."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean '{close[0]}'?" if close else f"valid names: {', '.join(names)}"
