"""Settings: one dataclass for each family of policies, checked before anything is made."""

from imel.settings.common import Settings
from imel.settings.keywords import Keywords
from imel.settings.paper import (
    ContextSettings,
    FitSettings,
    InterpolatorSettings,
    MkiSettings,
    NpSettings,
    PaperSettings,
)
from imel.settings.ridge import RidgeSettings
from imel.settings.validation import parse_schedule

__all__ = [
    "ContextSettings",
    "FitSettings",
    "InterpolatorSettings",
    "Keywords",
    "MkiSettings",
    "NpSettings",
    "PaperSettings",
    "RidgeSettings",
    "Settings",
    "parse_schedule",
]
