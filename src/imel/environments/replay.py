"""Replaying environments."""

from imel.environments.making import LONGEST, Past, Replayable

__all__ = ["LONGEST", "Past", "Replayable"]
