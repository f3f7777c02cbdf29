"""Pictures of an environment: as it is while it is played, and as it was in a remembered state."""

from __future__ import annotations

import ctypes.util
import io
import os
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from imel.environments.playing import Environment
from imel.errors import ImelError, one_line

Array = NDArray[Any]


class UnclearStateError(ImelError):
    """This observation does not determine a state of its environment."""


_QUALITY = 82
_LARGEST = 640
"""Pixels of a picture's longer side."""
_HINT = "MuJoCo needs a display, or MUJOCO_GL=egl or osmesa"
_POSED = ("Continuous_MountainCarEnv", "MountainCarEnv", "CartPoleEnv", "InvertedPendulumEnv")
"""Environments that observe their whole state as it is."""


def prepare_drawing() -> None:
    """Let environments draw without a display, where nobody has said how they should.

    To be called before the first of them is made.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.platform == "linux" and not display:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        if ctypes.util.find_library("EGL"):
            os.environ.setdefault("MUJOCO_GL", "egl")


def picture(env: Environment) -> bytes:
    """Render the environment to the bytes of a JPEG file."""
    image = Image.fromarray(pixels_of(env))
    image.thumbnail((_LARGEST, _LARGEST))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


def pixels_of(env: Environment) -> Array:
    """Render the environment to pixels."""  # [height, width, 3]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries that are imported by the first picture
            pixels = env.render()
    except Exception as error:  # whatever a driver or a renderer may raise
        missing = isinstance(error, gymnasium.error.DependencyNotInstalled)
        reason = str(error) if missing else f"{one_line(error)} ({_HINT})"
        raise ImelError(f"no pictures: {reason}") from None
    if not isinstance(pixels, np.ndarray):
        raise ImelError("no pictures: the environment draws no rgb arrays")
    return pixels.astype(np.uint8)


def pose(env: Environment, observation: Array) -> None:
    """Put an environment into the state behind an observation, where that can be done.

    It is checked by the environment itself: what it would observe there must be the observation.
    """
    inner: Any = env.unwrapped
    name, seen = type(inner).__name__, np.asarray(observation, dtype=np.float64)
    # MuJoCo's locomotion tasks observe all joints except their place on the ground
    structure = getattr(inner, "observation_structure", {})
    if name == "PendulumEnv":
        inner.state, inner.last_u = np.array([np.arctan2(seen[1], seen[0]), seen[2]]), None
        observed = inner._get_obs()
    elif name == "AcrobotEnv":
        inner.state = np.concatenate([np.arctan2(seen[[1, 3]], seen[[0, 2]]), seen[4:]])
        observed = inner._get_ob()
    elif name not in _POSED and not {"skipped_qpos", "qvel"} <= structure.keys():
        raise ImelError(f"{name} cannot be put into a remembered state")
    elif hasattr(inner, "set_state"):
        skipped = structure.get("skipped_qpos", 0)
        positions = inner.model.nq - skipped
        place = inner.init_qpos.copy()
        place[skipped:] = seen[:positions]
        inner.set_state(place, seen[positions : positions + inner.model.nv])
        observed = inner._get_obs()[:positions]
    else:
        inner.state = observed = seen
    if not np.allclose(observed, seen[: len(observed)], rtol=1e-3, atol=1e-3):
        raise UnclearStateError("the observation does not determine what is to be drawn")
