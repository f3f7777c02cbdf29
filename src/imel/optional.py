"""Packages that are extras: imported where they are used, with a word on how to get them."""

from __future__ import annotations

import importlib
from typing import Any

from imel.errors import ImelError


def needed(module: str, extra: str) -> Any:
    """A module of an optional package, or the extra it comes with."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ImelError(
            f"{package} is not installed; pip install 'imel[{extra}]' installs it"
        ) from None
