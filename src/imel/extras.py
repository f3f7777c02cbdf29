"""Packages that come with an extra, imported where they are used and not before."""

from __future__ import annotations

import importlib
from typing import Any

from imel.errors import ImelError


def require(package: str, extra: str) -> Any:
    """A package, or an error that says how to get it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        name = package.partition(".")[0]
        # Only the package itself: one that is there and broken has to say so in its own words
        if error.name is None or error.name.partition(".")[0] != name:
            raise
        raise ImelError(f"{name} is not installed: pip install 'imel[{extra}]'") from None
