"""Files for `imel train --config`: JSON or TOML, every key checked before anything is made."""

from __future__ import annotations

import json
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from imel.errors import SettingsError, nearest_name
from imel.policy import POLICIES
from imel.settings.gone import GONE

_SETTINGS = {f.name for policy in POLICIES.values() for f in fields(policy.settings_class)}


def read_config(path: Path, run_class: type[Any]) -> dict[str, Any]:
    """The document in a file; unknown keys, wrong types and bad values are refused by name."""
    document = _parse(path)
    try:
        check_document(document, run_class)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None
    return document


def settings_in(document: Mapping[str, Any]) -> dict[str, Any]:
    """The algorithm's settings among a document's keys."""
    return {name: value for name, value in document.items() if name in _SETTINGS}


def check_document(document: Mapping[str, Any], run_class: type[Any]) -> None:
    """Refuse what is no key of a run, or not of its type."""
    hints = {"env": str, **typing.get_type_hints(run_class), "policy_kwargs": dict}
    for name, value in document.items():
        if name in _SETTINGS:
            continue
        if name in GONE:
            raise SettingsError(f"'{name}' is no setting any more: {GONE[name]}")
        if name not in hints:
            raise SettingsError(
                f"unknown key '{name}'; {nearest_name(name, _SETTINGS | set(hints))}"
            )
        hint = hints[name]
        if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
            expected = getattr(hint, "__name__", str(hint))
            raise SettingsError(f"{name}={value!r} is not of type {expected}")


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from None
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise SettingsError(f"{path} is not valid {kind}: {error}") from None
    if not isinstance(document, dict):
        raise SettingsError(f"{path} holds no table of settings")
    return document
