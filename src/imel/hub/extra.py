"""The package of the extra `hub`, imported where it is used."""

from __future__ import annotations

import importlib
from typing import Any

from imel.errors import ImelError


def huggingface_hub() -> Any:
    """The module, or how to get it."""
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise ImelError(
            "huggingface_hub is not installed; pip install 'imel[hub]' installs it"
        ) from None
