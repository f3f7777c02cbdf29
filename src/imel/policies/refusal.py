"""Refusing settings that a policy does not use, in one line that says who does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from gymnasium import spaces

from imel.errors import SettingsError
from imel.policies import POLICIES, ImelPolicy
from imel.settings import Settings
from imel.settings.gone import GONE

SIGMA = ("std", "std_rate", "std_mode", "min_std", "clip_means")
"""Settings that discrete actions have no use for."""


def refuse_sigma(settings: Settings, action_space: spaces.Space[Any]) -> None:
    """Refuse another sigma than the default where actions are discrete and have none."""
    defaults = type(settings)()
    for name in SIGMA:
        if getattr(settings, name, None) != getattr(defaults, name, None):
            raise SettingsError(f"{action_space} has no sigma and does not use '{name}'")


def checked_settings(
    policy_class: type[ImelPolicy], changes: Mapping[str, Any], also: Iterable[str] = ()
) -> Any:
    """Return the policy's settings with some changed; refuse unknown names and bad values.

    `also` are names that are no settings but may be meant by a misspelt one.
    """
    refuse_unused(changes, policy_class)
    settings = policy_class.settings_class().updated(changes, policy_class.__name__, also)
    policy_class.check_settings(settings)
    return settings


def refuse_unused(settings: Mapping[str, Any], policy_class: type[ImelPolicy]) -> None:
    """Refuse a setting that other policies use, or that earlier versions had."""
    own = {field.name for field in fields(policy_class.settings_class)}
    for name in settings:
        if name in own:
            continue
        if name in GONE:
            raise SettingsError(f"'{name}' is no setting any more: {GONE[name]}")
        users = [
            other.__name__
            for other in POLICIES.values()
            if name in {field.name for field in fields(other.settings_class)}
        ]
        if users:
            raise SettingsError(
                f"{policy_class.__name__} does not use '{name}'; {', '.join(users)} "
                f"{'does' if len(users) == 1 else 'do'}"
            )
