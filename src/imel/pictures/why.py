"""The picture of `imel why --frame`: a state, beside those of the lessons or memories behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from imel.environments.playing import Environment, environment_of, play_policy
from imel.errors import ImelError
from imel.explain import Explanation, LessonExplanation
from imel.pictures.rendering import UnclearStateError, pixels_of, pose, prepare_drawing
from imel.policies import Policy

Array = NDArray[Any]
Why = Explanation | LessonExplanation
Frame = tuple[str, Array | None]
"""A title, and pixels [height, width, 3], or None where nothing can be drawn."""

_CONNECTIONS = {"sum": "its action is made of", "none": "nearest to it"}
_MEMORIES = 5
_DOTS_PER_INCH = 110
_SIDE, _TITLE = 2.1, 0.5
"""Inches of a frame's width, and above it."""
_STATE = "#e08a00"


@dataclass(frozen=True)
class Chosen:
    """A step that is explained."""

    name: str  # why this step
    step: int
    why: Why
    otherwise: Why | None  # without some episodes


def draw_frames(
    path: Path, policy: Policy, env_id: str, seed: int, chosen: list[Chosen]
) -> str | None:
    """Write the picture; return a note on what could not be drawn, or None."""
    prepare_drawing()
    with environment_of(policy, env_id, rendered=True) as env:
        played = _played_frames(env, policy, seed, {each.step for each in chosen})
        lines, problem = [], None
        for each in chosen:
            remembered, failed = _remembered_frames(env, _pictured(policy, each.why))
            problem = problem or failed
            score = f", familiarity {100 * each.why.familiarity:.0f} %"
            title = f"step {each.step}{score if each.why.familiarity >= 0 else ''}"
            lines.append([(title, played[each.step]), *remembered])
    first = chosen[0].why
    if isinstance(first, LessonExplanation):
        connection = "the largest lessons still in memory, where most alike"
    else:
        connection = f"the memories {_CONNECTIONS.get(first.kind, 'behind its action')}"
    title = f"{env_id}, {type(policy).__name__}: the state, and {connection}"
    frames_figure(title, lines).savefig(path, dpi=_DOTS_PER_INCH, bbox_inches="tight")
    return problem


def _played_frames(
    env: Environment, policy: Policy, seed: int, steps: set[int]
) -> dict[int, Array]:
    """Play the episode again and draw some of its steps."""
    frames: dict[int, Array] = {}

    def look(number: int) -> None:
        if number in steps:
            frames[number] = pixels_of(env)

    for _ in islice(play_policy(env, policy, seed, look=look), max(steps) + 1):
        pass
    return frames


def _pictured(policy: Policy, why: Why) -> list[tuple[str, Array]]:
    """Return titles and states of the first memories, or of lessons that are still remembered."""
    found: list[tuple[str, Array]] = []
    if isinstance(why, Explanation):
        for i in range(min(_MEMORIES, len(why.weights))):
            share = "near" if why.kind == "none" else f"{why.weights[i]:.1%}"
            title = f"{share}\nepisode {why.episodes[i]}, step {why.steps[i]}"
            found.append((title, why.states[i]))
        return found
    scale = policy.normaliser.scale.cpu().numpy()
    for i, episode in enumerate(why.lessons.episodes):
        if len(found) == _MEMORIES:
            break
        moments = why.moments(int(episode))
        if len(moments):
            nearest = int(
                np.linalg.norm((moments.states - why.observation) / scale, axis=1).argmin()
            )
            share = f"lesson {i + 1}, {np.linalg.norm(why.lessons.contributions[i]):.2f}"
            title = f"{share}\nepisode {moments.episodes[nearest]}, step {moments.steps[nearest]}"
            found.append((title, moments.states[nearest]))
    return found


def _remembered_frames(
    env: Environment, pictured: Sequence[tuple[str, Array]]
) -> tuple[list[Frame], str | None]:
    """Draw states under their titles; also return why some could not be drawn."""
    frames, problem = list[Frame](), None
    for title, state in pictured:
        pixels = None
        try:
            pose(env, state)
            pixels = pixels_of(env)
        except UnclearStateError:
            pass  # this state only; its place stays empty
        except ImelError as error:
            problem = f"memories are not drawn: {error}"
        frames.append((title, pixels))
    return frames, problem


def frames_figure(title: str, lines: Sequence[Sequence[Frame]]) -> Figure:
    """Draw lines of frames; the first of each line is the state, the others its memories."""
    columns = max(map(len, lines))
    shape = next((line[0][1].shape for line in lines if line[0][1] is not None), (1, 1))
    height = _SIDE * shape[0] / shape[1] + _TITLE
    size = (_SIDE * columns, height * len(lines) + _TITLE)
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, fontsize=11)
    grid = figure.subplots(len(lines), columns, squeeze=False)
    for places, frames in zip(grid, lines, strict=True):
        for number, axes in enumerate(places):
            if number < len(frames):
                _draw(axes, *frames[number], marked=number == 0)
            else:
                axes.set_axis_off()
    return figure


def _draw(axes: Axes, title: str, pixels: Array | None, marked: bool) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=9, color=_STATE if marked else "black")
    if pixels is None:
        axes.set_aspect("equal")
        axes.text(0.5, 0.5, "not drawn", ha="center", va="center", fontsize=9, color="#8a8a8a")
    else:
        axes.imshow(pixels)
    for spine in axes.spines.values():
        spine.set_edgecolor(_STATE if marked else "#b0b0b0")
        spine.set_linewidth(2.5 if marked else 0.8)
