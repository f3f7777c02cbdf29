"""Improved Memories Learning: reinforcement learning by interpolating improved memories."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from imel.algorithm import IMeL
    from imel.errors import ImelError
    from imel.explain import Explanation, LessonExplanation
    from imel.policies import (
        AnpPolicy,
        MkiPolicy,
        NearestPolicy,
        NpPolicy,
        Policy,
        RegressorPolicy,
        RidgePolicy,
    )
    from imel.registry import register

__version__ = "0.1.0"

__all__ = [
    "AnpPolicy",
    "Explanation",
    "IMeL",
    "ImelError",
    "LessonExplanation",
    "MkiPolicy",
    "NearestPolicy",
    "NpPolicy",
    "Policy",
    "RegressorPolicy",
    "RidgePolicy",
    "register",
]

_MODULES = {
    "IMeL": "imel.algorithm",
    "ImelError": "imel.errors",
    "Explanation": "imel.explain",
    "LessonExplanation": "imel.explain",
    "register": "imel.registry",
    **{name: "imel.policies" for name in __all__ if name.endswith("Policy")},
}


if not TYPE_CHECKING:  # which would take any name for a public one

    def __getattr__(name: str) -> Any:
        """A public name, imported when it is asked for: `imel --help` has no use for torch."""
        if name not in _MODULES:
            raise AttributeError(f"module 'imel' has no attribute '{name}'")
        return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
