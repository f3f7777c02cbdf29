"""Episodes to scrub through: played by the policy while they are recorded, or remembered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imel.environments.playing import Environment, make_environment, play_policy, require_spaces
from imel.errors import ImelError
from imel.explorer.insight import Insight
from imel.pictures.rendering import picture

Array = NDArray[Any]

LONGEST = 1000
"""Steps after which a recording ends, whatever the environment says."""
_SECONDS_A_STEP = 0.06
"""What drawing may take on average; steps in between are left out where it takes longer."""


@dataclass
class Episode:
    """The steps of an episode; a recording grows while it is watched."""

    title: str
    observations: list[Array] = field(default_factory=list)  # each [d_s]
    actions: list[Array] = field(default_factory=list)  # each [d_a], policy units
    rewards: list[float] = field(default_factory=list)
    frames: dict[int, bytes] = field(default_factory=dict)
    """Pictures by step; where drawing is slow, not of every one."""
    rows: list[int] = field(default_factory=list)
    """The memories it is made of, if it is a remembered one."""
    no_frames: str | None = None
    """Why there are no frames, if so."""
    ended: str | None = None
    """How it ended; None while it is being played."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        return len(self.rewards)

    def arrays(self) -> tuple[Array, Array, Array]:
        """Observations, actions and rewards of the steps so far."""
        with self.lock:
            return (
                np.array(self.observations, dtype=np.float32),
                np.array(self.actions, dtype=np.float32),
                np.array(self.rewards, dtype=np.float32),
            )

    def drawn(self) -> list[int]:
        """The steps that have a picture of their own."""
        with self.lock:
            return list(self.frames)

    def frame(self, step: int) -> bytes | None:
        """The picture of a step, or of the last one before it that was drawn."""
        with self.lock:
            drawn = [number for number in self.frames if number <= step]
            return self.frames[drawn[-1]] if drawn else None

    def observation(self, step: int) -> Array:
        """What was observed before a step."""
        if not 0 <= step < len(self):
            raise ImelError(f"the episode has {len(self)} steps; there is no step {step}")
        return self.observations[step]


def remembered(insight: Insight, number: int) -> Episode:
    """What the memory holds of an episode, in the order of its steps."""
    rows = np.flatnonzero(insight.column("episodes") == number)
    if not len(rows):
        raise ImelError(f"no memory of episode {number}")
    rows = rows[np.argsort(insight.column("steps")[rows])]
    return Episode(
        title=f"remembered episode {number}",
        observations=list(insight.column("states")[rows]),
        actions=list(insight.column("actions")[rows]),
        rewards=[float(reward) for reward in insight.column("rewards")[rows]],
        rows=rows.tolist(),
        no_frames="remembered, not recorded",
        ended="as far as it is remembered",
    )


def record(
    episode: Episode,
    insight: Insight,
    env_id: str,
    seed: int,
    noise: bool,
    progress: Callable[[float], None],
) -> None:
    """Play an episode; steps and frames are there to be watched as soon as they are made."""
    spent = 0.0
    with closing(_make(episode, env_id)) as env:
        require_spaces(insight.left, env, env_id)

        def look(number: int) -> None:
            nonlocal spent
            begun = time.perf_counter()
            if spent <= _SECONDS_A_STEP * number:
                _draw(episode, env, number)
                # The first one also opens the drawing context
                spent += time.perf_counter() - begun if number else 0.0

        for decision, step in islice(play_policy(env, insight.left, seed, noise, look), LONGEST):
            with episode.lock:
                episode.observations.append(decision.state)
                episode.actions.append(decision.action)
                episode.rewards.append(step.reward)
            progress(len(episode) / LONGEST)
    if step.terminated:
        episode.ended = "terminated"
    else:
        episode.ended = (
            "truncated by the time limit" if step.truncated else f"cut after {LONGEST} steps"
        )


def _make(episode: Episode, env_id: str) -> Environment:
    """Return the environment that is played, one that draws if it can."""
    if episode.no_frames is None:
        try:
            return make_environment(env_id, rendered=True)
        except ImelError as error:
            episode.no_frames = str(error)
    return make_environment(env_id, rendered=False)


def _draw(episode: Episode, env: Any, step: int) -> None:
    if episode.no_frames is None:
        try:
            frame = picture(env)
        except ImelError as error:
            episode.no_frames = str(error)
        else:
            with episode.lock:
                episode.frames[step] = frame
