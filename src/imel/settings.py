"""All settings of IMeL in one flat place, gathered from the parts they configure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from imel.advantage import AdvantageSettings
from imel.critic import CriticSettings
from imel.errors import SettingsError, nearest_name
from imel.improvement import ImprovementSettings, Update
from imel.memory import MemorySettings
from imel.presets import PRESETS
from imel.rollout import RolloutSettings
from imel.schedules import parse_schedule
from imel.training import FitSettings
from imel.validation import updated

SCHEDULED = ("trust_region", "kl_budget", "std", "learning_rate")

_RANGES = {
    "gamma": (0.0, 1.0),
    "gae_lambda": (0.0, 1.0),
    "advantage_clip": (1e-6, 1e30),
    "min_std": (1e-6, 10.0),
    "std_rate": (0.0, 10.0),
    "entropy_bonus": (0.0, 10.0),
    "prior_std": (0.0, 10.0),
    "memory_size": (2, 2**40),
    "newest_kept": (0, 2**40),
    "improved_size": (0, 2**40),
    "settling": (1, 2**31),
    "cooling": (0, 2**31),
    "easing": (0.0, 10.0),
    "easing_floor": (0.0, 1.0),
    "peak_kl": (0.0, 1e30),
    "gradient_steps": (0, 2**31),
    "max_grad_norm": (1e-9, 1e30),
    "critic_learning_rate": (1e-12, 10.0),
    "max_faults": (0, 2**31),
    "worker_timeout": (0.01, 1e6),
    "batch_size": (2, 2**31),
}


@dataclass(frozen=True)
class Settings(
    CriticSettings,
    FitSettings,
    MemorySettings,
    ImprovementSettings,
    AdvantageSettings,
    RolloutSettings,
):
    """Everything `IMeL(...)` can be told about the algorithm, beside its policy's own options."""

    def updated(self, changes: Mapping[str, Any]) -> Settings:
        """These settings with some changed; refuses what is unknown, mistyped or out of range."""
        for name in SCHEDULED:
            if name in changes:
                parse_schedule(name, changes[name])
        return updated(self, changes, "IMeL", _RANGES)

    def as_json(self) -> dict[str, Any]:
        """Plain data; callable schedules are refused, for they could only be pickled."""
        document = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if callable(value):
                raise SettingsError(
                    f"{field.name} is a function and cannot be saved; "
                    "give a number or 'start:end' instead"
                )
            document[field.name] = list(value) if isinstance(value, tuple) else value
        return document


def preset(name: str | None) -> dict[str, Any]:
    """The settings a preset stands for; none for None."""
    if name is None:
        return {}
    if name not in PRESETS:
        raise SettingsError(f"unknown preset '{name}'; {nearest_name(name, PRESETS)}")
    return PRESETS[name]


def defaults(
    recommended: Mapping[str, Any], preset_name: str | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """What a policy recommends, and what the preset says beside what is given.

    Where none is named, an update that is not the recommended one brings the preset of its name.
    """
    usual = recommended.get("update", Settings().update)
    update = given.get("update", usual)
    if preset_name is None and update != usual and update in get_args(Update):
        preset_name = update
    return {**recommended, **preset(preset_name)}
