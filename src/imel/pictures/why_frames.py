"""The picture of `imel why --frame`: a state, beside those of the lessons or memories behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from imel.environments.playing import environment_of, play_policy
from imel.errors import ImelError
from imel.explain import Explanation, LessonExplanation
from imel.pictures.rendering import UnclearStateError, pixels_of, pose, prepare_drawing
from imel.pictures.style import GREY, ORANGE, styled
from imel.policies import Policy

Array = NDArray[Any]
Why = Explanation | LessonExplanation

_CONNECTIONS = {
    "lessons": "the largest lessons still in memory, where most alike",
    "sum": "the memories its action is made of",
    "none": "the memories nearest to it",
}
_MEMORIES = 5
_SIDE, _TITLE = 2.1, 0.5
"""Inches of a frame's width, and above it."""


def why_figure(
    policy: Policy, env_id: str, seed: int, explained: Mapping[int, Why]
) -> tuple[Figure, str | None]:
    """Draw some steps of an episode, each beside what is behind it.

    Also return why some of that could not be drawn, or None.
    """
    prepare_drawing()
    played: dict[int, Array] = {}
    with environment_of(policy, env_id, rendered=True) as env:

        def look(number: int) -> None:
            if number in explained:
                played[number] = pixels_of(env)

        list(islice(play_policy(env, policy, seed, look=look), max(explained) + 1))
        lines, problem = [], None
        for step, why in explained.items():
            score = f", familiarity {100 * why.familiarity:.0f} %"
            frames = {f"step {step}{score if why.familiarity >= 0 else ''}": played[step]}
            for title, state in _behind(policy, why):
                try:
                    pose(env, state)
                    frames[title] = pixels_of(env)
                except UnclearStateError:
                    pass
                except ImelError as error:
                    problem = f"memories are not drawn: {error}"
            lines.append(frames)
    connection = _CONNECTIONS.get(why.kind, "the memories behind its action")
    title = f"{env_id}, {type(policy).__name__}: the state, and {connection}"
    return _frames_figure(title, lines), problem


def _behind(policy: Policy, why: Why) -> list[tuple[str, Array]]:
    """Return titles and states of the first memories, or of lessons that are still remembered."""
    found: list[tuple[str, Array]] = []
    if isinstance(why, Explanation):
        for i in range(min(_MEMORIES, len(why.weights))):
            share = "near" if why.kind == "none" else f"share {why.weights[i]:.1%}"
            found.append(
                (f"{share}\nepisode {why.episodes[i]}, step {why.steps[i]}", why.states[i])
            )
        return found
    scale = policy.normaliser.scale.cpu().numpy()
    for i, episode in enumerate(why.lessons.episodes):
        moments = why.moments(int(episode))
        if len(moments) and len(found) < _MEMORIES:
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
            colour, line = (ORANGE, 2.5) if number == 0 else (GREY, 0.8)
            axes.set_title(frame[0], fontsize=9, color="black" if number else ORANGE)
            axes.imshow(frame[1])
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(visible=True, color=colour, linewidth=line)
    return figure
