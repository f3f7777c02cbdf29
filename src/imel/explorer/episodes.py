"""Episodes to scrub through, and evaluations: played a moment at a time, while a page asks.

So what a page has started goes no further when the page has gone, and keeps nobody waiting.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

import numpy as np

from imel.environments import playing
from imel.environments.playing import make_environment, play_policy
from imel.errors import ImelError, one_line
from imel.explorer.insight import Answer, Array, Insight
from imel.pictures.rendering import picture
from imel.policies import Policy
from imel.runs.evaluation import EVALUATION_SEED

T = TypeVar("T")

LONGEST = 1000
"""Steps after which a recording ends, whatever the environment says."""
_MOMENT = 0.15
"""Seconds that are played for a question."""
_SECONDS_A_STEP = 0.06
"""What drawing may take on average; steps in between are left out where it takes longer."""


def advance(work: Iterator[None]) -> None:
    """Play on for a moment."""
    until = time.monotonic() + _MOMENT
    try:
        for _ in work:
            if time.monotonic() >= until:
                return
    except ImelError:
        raise
    except BaseException as error:  # of the environment's own code
        traceback.print_exc()
        raise ImelError(f"the environment failed: {one_line(error)}") from None


@dataclass
class Episode:
    """The steps of an episode; a recording grows while it is watched."""

    steps: list[tuple[Array, Array, float]] = field(default_factory=list)
    """Observation [d_s], action [d_a] in policy units, and reward."""
    frames: dict[int, bytes] = field(default_factory=dict)
    """Pictures by step; where drawing is slow, not of every one."""
    rows: list[int] = field(default_factory=list)
    """The memories it is made of, if it is a remembered one."""
    no_frames: str | None = None
    """Why there are no frames, if so."""
    ended: str | None = None
    """How it ended; None while it is being played."""

    def columns(self) -> tuple[Array, Array, Array]:
        """Return observations, actions and rewards of the steps so far."""
        steps = list(self.steps)  # which may grow meanwhile
        parts = [np.array([step[i] for step in steps], dtype=np.float32) for i in range(3)]
        return parts[0], parts[1], parts[2]

    def describe(self) -> Answer:
        """Return what the page is told of it."""
        _, actions, rewards = self.columns()
        document = {
            "steps": len(rewards),
            "frames": list(self.frames),
            "no_frames": self.no_frames,
            "ended": self.ended,
            "rows": self.rows,
        }
        return document, {"actions": actions, "rewards": rewards}

    def frame(self, step: int) -> bytes | None:
        """Return the picture of a step, or of the last one before it that was drawn."""
        drawn = [number for number in list(self.frames) if number <= step]
        return self.frames[drawn[-1]] if drawn else None

    def observation(self, step: int) -> Array:
        """Return what was observed before a step."""
        if step >= len(self.steps):
            raise ImelError(f"the episode has {len(self.steps)} steps; there is no step {step}")
        return self.steps[step][0]

    def attempt(self, draw: Callable[[], T]) -> T | None:
        """Return what is drawn; if that fails, note why there are no frames."""
        try:
            return draw()
        except ImelError as error:
            self.no_frames = str(error)
            return None


def remembered(insight: Insight, number: int) -> Episode:
    """Return what the memory holds of an episode, in the order of its steps."""
    rows = np.flatnonzero(insight.memory("episodes") == number)
    if not len(rows):
        raise ImelError(f"no memory of episode {number}")
    rows = rows[np.argsort(insight.memory("steps")[rows])]
    columns = (insight.memory(name)[rows] for name in ("states", "actions", "rewards"))
    return Episode(
        steps=list(zip(*columns, strict=True)),
        rows=rows.tolist(),
        no_frames="remembered, not recorded",
        ended="as far as it is remembered",
    )


def record(
    episode: Episode, policy: Policy, env_id: str, seed: int, sampled: bool
) -> Generator[None, None, None]:
    """Play an episode step by step; the first step of a recording also makes its environment."""
    drawing = episode.attempt(lambda: make_environment(env_id, rendered=True))
    spent = 0.0
    with closing(drawing or make_environment(env_id, rendered=False)) as env:
        playing.require_spaces(policy, env, env_id)

        def look(number: int) -> None:
            nonlocal spent
            if episode.no_frames is not None or spent > _SECONDS_A_STEP * number:
                return
            begun = time.perf_counter()
            frame = episode.attempt(lambda: picture(env))
            if frame is not None:
                episode.frames[number] = frame
            # The first one also opens the drawing context
            spent += time.perf_counter() - begun if number else 0.0

        for decision, step in islice(play_policy(env, policy, seed, sampled, look), LONGEST):
            episode.steps.append((decision.state, decision.action, step.reward))
            yield
    if step.terminated:
        episode.ended = "terminated"
    elif step.truncated:
        episode.ended = "truncated by the time limit"
    else:
        episode.ended = f"cut after {LONGEST} steps"


def evaluate(
    returns: list[float], policy: Policy, env_id: str, episodes: int
) -> Generator[None, None, None]:
    """Play the episodes of `imel eval` with the mean action, and add their returns."""
    with playing.environment_of(policy, env_id) as env:
        for number in range(episodes):
            total = 0.0
            for _, step in play_policy(env, policy, EVALUATION_SEED + number):
                total += step.reward
                yield
            returns.append(total)
