"""Packages of the extra `datasets`, imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any

from imel.errors import ImelError


def needed(module: str) -> Any:
    """A module of an optional package, or how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ImelError(
            f"{package} is not installed; pip install 'imel[datasets]' installs it"
        ) from None
