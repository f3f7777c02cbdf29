"""Pictures of an environment: as it is while it is played, and as it was in a remembered state.

`imel why --frame` draws a state beside those of the lessons or memories behind it.
"""

from __future__ import annotations

import ctypes.util
import io
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import gymnasium
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from imel.environments.playing import Environment, environment_of, play_policy
from imel.errors import ImelError, one_line
from imel.explain import Explanation, LessonExplanation
from imel.pictures.style import GREY, ORANGE, Array, styled
from imel.policies import Policy

Why = Explanation | LessonExplanation


class UnclearStateError(ImelError):
    """This observation does not determine a state of its environment."""


_QUALITY = 82
_LARGEST = 640
"""Pixels of a picture's longer side."""
_HINT = "MuJoCo needs a display, or MUJOCO_GL=egl or osmesa"
_POSED = ("Continuous_MountainCarEnv", "MountainCarEnv", "CartPoleEnv", "InvertedPendulumEnv")
"""Environments that observe their whole state as it is."""
_CONNECTIONS = {
    "lessons": "the largest lessons still in memory, where most alike",
    "sum": "the memories its action is made of",
    "none": "the memories nearest to it",
}
_BEHIND = 5
"""Lessons or memories that are drawn beside a state."""
_SIDE, _TITLE = 2.1, 0.5
"""Inches of a frame's width, and above it."""


def prepare_drawing() -> None:
    """Let environments draw without a display, before the first of them is made."""
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


def why_figure(
    policy: Policy, env_id: str, seed: int, explained: Mapping[int, Why]
) -> tuple[Figure, str]:
    """Draw steps of an episode, each beside what is behind it; say why some could not be drawn."""
    prepare_drawing()
    played: dict[int, Array] = {}
    lines, note = [], ""
    with environment_of(policy, env_id, rendered=True) as env:

        def look(number: int) -> None:
            if number in explained:
                played[number] = pixels_of(env)

        list(islice(play_policy(env, policy, seed, look=look), max(explained) + 1))
        for step, why in explained.items():
            score = f", familiarity {100 * why.familiarity:.0f} %"
            frames = {f"step {step}{score if why.familiarity >= 0 else ''}": played[step]}
            for title, state in _behind(policy, why)[:_BEHIND]:
                try:
                    pose(env, state)
                    frames[title] = pixels_of(env)
                except UnclearStateError:
                    pass
                except ImelError as error:
                    note = f" (memories are not drawn: {error})"
            lines.append(frames)
    connection = _CONNECTIONS.get(why.kind, "the memories behind its action")
    title = f"{env_id}, {type(policy).__name__}: the state, and {connection}"
    return _frames_figure(title, lines), note


def _behind(policy: Policy, why: Why) -> list[tuple[str, Array]]:
    """Return titles and states of the first memories, or of lessons that are still remembered."""
    if isinstance(why, Explanation):
        shares = [f"share {weight:.1%}" for weight in why.weights[:_BEHIND]]
        heads = ["near"] * len(shares) if why.kind == "none" else shares
        places = zip(heads, why.episodes, why.steps, why.states, strict=False)
        return [(f"{head}\nepisode {e}, step {step}", state) for head, e, step, state in places]
    found: list[tuple[str, Array]] = []
    scale = policy.normaliser.scale.cpu().numpy()
    for i, episode in enumerate(why.lessons.episodes):
        moments = why.moments(int(episode))
        if len(moments) and len(found) < _BEHIND:
            apart = np.linalg.norm((moments.states - why.observation) / scale, axis=1)
            nearest = int(apart.argmin())
            added = f"rank {i + 1}: adds {np.linalg.norm(why.lessons.contributions[i]):.2f}"
            title = f"{added}\nepisode {moments.episodes[nearest]}, step {moments.steps[nearest]}"
            found.append((title, moments.states[nearest]))
    return found


@styled
def _frames_figure(title: str, lines: Sequence[Mapping[str, Array]]) -> Figure:
    """Draw lines of pixels under their titles; the first of each line is the state."""
    columns = max(map(len, lines))
    height, width, _ = next(iter(lines[0].values())).shape
    tall = _SIDE * height / width + _TITLE
    figure = Figure(figsize=(_SIDE * columns, tall * len(lines) + _TITLE))
    figure.suptitle(title, fontsize=11)
    grid = figure.subplots(len(lines), columns, squeeze=False)
    for places, frames in zip(grid, lines, strict=True):
        for axes in places[len(frames) :]:
            axes.set_axis_off()
        for number, (axes, frame) in enumerate(zip(places, frames.items(), strict=False)):
            colour, line = (GREY, 0.8) if number else (ORANGE, 2.5)
            axes.set_title(frame[0], fontsize=9, color="black" if number else ORANGE)
            axes.imshow(frame[1])
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(visible=True, color=colour, linewidth=line)
    return figure
