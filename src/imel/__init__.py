"""Improved Memories Learning: reinforcement learning by interpolating improved memories."""

from imel.algorithm import IMeL
from imel.errors import ImelError
from imel.explain import Explanation
from imel.policy import (
    AnpPolicy,
    MkiPolicy,
    NearestPolicy,
    NpPolicy,
    RegressorPolicy,
    RidgePolicy,
)

__version__ = "0.1.0"

__all__ = [
    "AnpPolicy",
    "Explanation",
    "IMeL",
    "ImelError",
    "MkiPolicy",
    "NearestPolicy",
    "NpPolicy",
    "RegressorPolicy",
    "RidgePolicy",
]
