"""All settings of IMeL in one flat place, gathered from the parts they configure."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from imel.advantage import AdvantageSettings
from imel.critic import CriticSettings
from imel.errors import SettingsError, nearest_name
from imel.improvement import ImprovementSettings
from imel.memory import MemorySettings
from imel.rollout import RolloutSettings
from imel.schedules import parse_schedule
from imel.training import FitSettings

SCHEDULED = ("kl_budget", "std", "learning_rate")

PRESETS: dict[str, dict[str, Any]] = {
    # Where a policy that does nothing is a local optimum: explore with the whole action range first
    "exploration": {"std": "1:0.1"},
}

_RANGES: dict[str, tuple[float, float]] = {
    # name: (at least, at most)
    "gamma": (0.0, 1.0),
    "gae_lambda": (0.0, 1.0),
    "advantage_clip": (1e-6, float("inf")),
    "min_std": (1e-6, 10.0),
    "memory_size": (2, 2**40),
    "prior_size": (1, 2**40),
    "prior_std": (0.0, 10.0),
    "gradient_steps": (0, 2**31),
    "targets_per_step": (1, 2**31),
    "max_grad_norm": (1e-9, float("inf")),
    "critic_learning_rate": (1e-12, 10.0),
    "critic_epochs": (1, 2**31),
    "critic_batch_size": (1, 2**31),
    "batch_size": (2, 2**31),
    "n_envs": (1, 2**20),
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
        hints = typing.get_type_hints(type(self))
        for name, value in changes.items():
            if name not in hints:
                raise SettingsError(f"unknown setting '{name}'; {nearest_name(name, hints)}")
            _check(name, value, hints[name])
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in changes.items()
        }
        return replace(self, **plain)

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


def _check(name: str, value: Any, hint: Any) -> None:
    if name in SCHEDULED:
        parse_schedule(name, value)
        return
    if typing.get_origin(hint) is typing.Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise SettingsError(f"{name}={value!r} is none of {', '.join(map(repr, choices))}")
        return
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, tuple | list) or not all(
            isinstance(v, int) and v > 0 for v in value
        ):
            raise SettingsError(f"{name}={value!r} is not a list of layer sizes")
        return
    accepted = (int, float) if hint is float else (hint,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        raise SettingsError(f"{name}={value!r} is not of type {hint.__name__}")
    low, high = _RANGES.get(name, (float("-inf"), float("inf")))
    if not low <= value <= high:
        raise SettingsError(f"{name}={value!r} is not between {low} and {high}")
