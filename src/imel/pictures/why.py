"""The picture of `imel why --frame`: a state, and beside it those of the memories behind it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from imel.errors import ImelError
from imel.explain import Explanation
from imel.pictures.frames import Frame, Strip, frames_figure
from imel.pictures.rendering import UnclearStateError, pixels_of, pose, prepare_drawing
from imel.playing import Environment, make_environment
from imel.policy import ImelPolicy

Array = NDArray[Any]

_CONNECTIONS = {"sum": "its action is made of", "none": "nearest to it"}
_MEMORIES = 5
_DOTS_PER_INCH = 110


@dataclass(frozen=True)
class Chosen:
    """A step that is explained."""

    name: str  # why this step
    step: int
    why: Explanation
    otherwise: Explanation | None  # without some episodes


def draw_frames(
    path: Path, policy: ImelPolicy, env_id: str, seed: int, chosen: list[Chosen]
) -> str | None:
    """Write the picture; what could not be drawn in it, if so."""
    prepare_drawing()
    with closing(make_environment(env_id, rendered=True)) as env:
        played = _played_frames(env, policy, seed, {each.step for each in chosen})
        strips, problem = [], None
        for each in chosen:
            remembered, failed = _remembered_frames(env, each)
            problem = problem or failed
            score = f", familiarity {100 * each.why.familiarity:.0f} %"
            title = f"step {each.step}{score if each.why.familiarity >= 0 else ''}"
            strips.append(Strip(Frame(title, played[each.step]), tuple(remembered)))
    connection = _CONNECTIONS.get(chosen[0].why.kind, "behind its action")
    title = f"{env_id}, {type(policy).__name__}: the state, and the memories {connection}"
    frames_figure(title, strips).savefig(path, dpi=_DOTS_PER_INCH, bbox_inches="tight")
    return problem


def _played_frames(
    env: Environment, policy: ImelPolicy, seed: int, steps: set[int]
) -> dict[int, Array]:
    """The episode once more, drawn at some of its steps."""
    frames: dict[int, Array] = {}
    observation, _ = env.reset(seed=seed)
    for step in range(max(steps) + 1):
        if step in steps:
            frames[step] = pixels_of(env)
        action, _ = policy.predict(observation, deterministic=True)
        observation, *_ = env.step(action)
    return frames


def _remembered_frames(env: Environment, chosen: Chosen) -> tuple[list[Frame], str | None]:
    """The states of the first memories, and why they could not be drawn, if so."""
    why, frames, problem = chosen.why, [], None
    for i in range(min(_MEMORIES, len(why.weights))):
        share = "near" if why.kind == "none" else f"{why.weights[i]:.1%}"
        title = f"{share}\nepisode {why.episodes[i]}, step {why.steps[i]}"
        pixels = None
        try:
            pose(env, why.states[i])
            pixels = pixels_of(env)
        except UnclearStateError:
            pass  # this state only; its place stays empty
        except ImelError as error:
            problem = f"memories are not drawn: {error}"
        frames.append(Frame(title, pixels))
    return frames, problem
