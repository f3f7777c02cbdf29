"""Playing an environment: making one copy of it."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium

from imel.errors import ImelError

Environment = gymnasium.Env[Any, Any]

_DRAWN = 360
"""Pixels of a picture that MuJoCo draws."""


def make_environment(env_id: str, rendered: bool) -> Environment:
    """One copy of an environment; whatever keeps it from being made is said in one line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matters among them becomes an error
            options = {"render_mode": "rgb_array", **_drawing_options(env_id)} if rendered else {}
            return gymnasium.make(env_id, **options)
    except Exception as error:  # a missing package, a driver, the environment's own code
        raise ImelError(f"cannot make environment '{env_id}': {one_line(error)}") from None


def _drawing_options(env_id: str) -> dict[str, Any]:
    """MuJoCo is told to follow what moves, where a model has a camera for it.

    It draws no larger than is shown: without a GPU that saves half the time.
    """
    spec = gymnasium.registry.get(env_id)
    entry = None if spec is None else spec.entry_point
    mujoco = isinstance(entry, str) and entry.startswith("gymnasium.envs.mujoco")
    return {"width": _DRAWN, "height": _DRAWN, "camera_name": "track"} if mujoco else {}


def one_line(error: Exception) -> str:
    """Return the kind and the text of an exception on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
