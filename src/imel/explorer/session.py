"""All that a page may ask about: models of the run, edited copies of them, episodes, pictures.

Nothing is ever changed: forgetting makes a new copy with a name of its own, so undoing it is
asking for the old name again. What has not been used for long is dropped, files are never written.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from imel.environments.playing import Environment, make_environment, names_in
from imel.errors import ImelError
from imel.explorer.answers import describe_curve, describe_step
from imel.explorer.episodes import Episode, record, remembered
from imel.explorer.insight import Colour, Insight, Projection
from imel.explorer.jobs import Job, Jobs
from imel.explorer.lessons import LessonInsight, insight_of, lesson_colours, make_lesson_plane
from imel.explorer.memory_map import Colouring, Plane, colouring, make_plane
from imel.pictures.rendering import UnclearStateError, picture, pose
from imel.policies import Policy
from imel.policies.names import DimensionNames
from imel.runs.evaluation import evaluate
from imel.runs.stored import StoredRun

Array = NDArray[Any]
Value = TypeVar("Value")

_KEY = re.compile(r"m(\d{1,4})(e\d{1,6})?")


class Recent(OrderedDict[Any, Value]):
    """A table that keeps what was used last, made when it is first asked for."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._lock = threading.RLock()

    def obtain(self, key: Any, make: Callable[[], Value]) -> Value:
        """The value under a key."""
        with self._lock:
            if key not in self:
                self[key] = make()
            self.move_to_end(key)
            while len(self) > self._size:
                self.popitem(last=False)
            return self[key]


class Session:
    """A run that is being explored."""

    def __init__(self, run: StoredRun) -> None:
        self.run = run
        self.curve = describe_curve(run.folder) if run.place.is_dir() else None
        self.jobs = Jobs()
        self._insights: Recent[Insight] = Recent(8)
        self._forgotten: Recent[Array] = Recent(256)
        self._planes: Recent[Plane] = Recent(32)
        self._points: Recent[Array] = Recent(8)
        self._episodes: Recent[Episode] = Recent(8)
        self._returns: Recent[list[float]] = Recent(256)
        self._pictures: Recent[bytes] = Recent(1024)
        self._names: DimensionNames | None = None
        self._numbers = itertools.count(1)
        # Drawing contexts belong to a thread: one thread draws all remembered states
        self._painter = ThreadPoolExecutor(1, thread_name_prefix="painter")
        self._posed: Environment | None = None
        self._cannot_pose: str | None = None

    def close(self) -> None:
        """End what is under way."""
        self.jobs.close()
        self._painter.shutdown(wait=True, cancel_futures=True)

    @property
    def newest(self) -> str:
        """The key of the newest model that can be opened, which a page shows first."""
        usable = [i for i, model in enumerate(self.run.models) if model.problem is None]
        return f"m{usable[-1] if usable else len(self.run.models) - 1}"

    def prepare(self) -> Insight:
        """Open the newest model and compute its map, so that the first page need not wait."""
        key = self.newest
        insight = self.insight(key)
        if insight.rows:
            self.points(key, key, insight.first_projection, 0, 1)
            describe_step(insight, insight.column("states")[0])  # computes what all answers share
        return insight

    # --- models ---

    def insight(self, key: str) -> Insight:
        """The model behind a key: `m3` is the fourth file, `m3e1` that without some memories."""
        match = _KEY.fullmatch(key)
        if match is None or int(match[1]) >= len(self.run.models):
            raise ImelError(f"there is no model '{key[:16]}'")
        if match[2] is None:
            return self._insights.obtain(key, lambda: self._load(int(match[1])))
        forgotten = self._forgotten.get(key)
        if forgotten is None:
            raise ImelError(f"the edited model '{key}' is no longer kept; undo, and edit again")
        whole = self.insight(f"m{match[1]}")
        return self._insights.obtain(key, lambda: whole.without(forgotten))

    def _load(self, number: int) -> Insight:
        stored = self.run.models[number]
        if stored.problem is not None:
            raise ImelError(stored.problem)
        policy = Policy.load(str(stored.path))
        self._names = self._names or names_in(self.run.env, policy.dimensions)
        return insight_of(policy, self._names)

    def forget(self, key: str, rows: list[int]) -> str:
        """The key of a copy that has never known some rows."""
        insight = self.insight(key)
        chosen = np.unique(np.asarray(rows, dtype=np.int64))
        if not len(chosen) or chosen[0] < 0 or chosen[-1] >= insight.rows:
            raise ImelError(f"rows are numbers from 0 to {insight.rows - 1}, at least one of them")
        reduced = insight.without(chosen)
        name = f"{key.partition('e')[0]}e{next(self._numbers)}"
        self._forgotten.obtain(name, lambda: reduced.forgotten)
        self._insights.obtain(name, lambda: reduced)
        return name

    def plane(self, key: str, projection: Projection, x: int, y: int) -> Plane:
        """The map's plane; that of an edited model is the whole one's."""
        whole = key.partition("e")[0]

        def make() -> Plane:
            insight = self.insight(whole)
            if isinstance(insight, LessonInsight):
                return make_lesson_plane(insight, projection)
            return make_plane(insight, projection, x, y)

        pair = (x, y) if projection == "dimensions" else None
        return self._planes.obtain((whole, projection, pair), make)

    def points(self, key: str, frame: str, projection: Projection, x: int, y: int) -> Array:
        """Where a model's memories or lessons lie in the plane of the same or another one."""
        whole = key.partition("e")[0]
        plane = self.plane(frame, projection, x, y)
        make = lambda: plane.rows(self.insight(whole))  # noqa: E731
        return self._points.obtain((whole, plane), make)

    def colours(self, key: str, frame: str, by: Colour, dimension: int) -> Colouring:
        """The colours of a model's memories or lessons, on the scale of another one's."""
        insight, scale = self.insight(key), self.insight(frame)
        if isinstance(insight, LessonInsight):
            return lesson_colours(insight, scale, by)
        return colouring(insight, scale, by, dimension)

    # --- episodes ---

    def episode(self, name: str) -> Episode:
        """An episode by its name."""
        found = self._episodes.get(name)
        if found is None:
            raise ImelError(f"the episode '{name[:16]}' is not there, or no longer kept")
        return found

    def remember(self, key: str, number: int) -> str:
        """The name of a remembered episode."""
        return self._keep(remembered(self.insight(key), number))

    def play(self, key: str, seed: int, noise: bool) -> tuple[str, str]:
        """Begin to record an episode; its name and that of the job."""
        env, insight = self._environment(), self._playable(key)
        episode = Episode(title=f"{'sampled' if noise else 'mean'} actions, seed {seed}")

        def work(job: Job) -> None:
            try:
                record(episode, insight, env, seed, noise, job.advance)
            finally:
                episode.ended = episode.ended or "stopped"

        return self._keep(episode), self.jobs.start(work)

    def evaluate(self, key: str, episodes: int) -> str:
        """Begin to play the evaluation's episodes; the job, whose result are their returns."""
        env, insight = self._environment(), self._playable(key)
        known = self._returns.get((key, episodes))

        def work(job: Job) -> dict[str, Any]:
            returns = known or evaluate(insight.left, env, episodes, progress=job.advance).returns
            self._returns.obtain((key, episodes), lambda: returns)
            mean, std = float(np.mean(returns)), float(np.std(returns))
            return {"returns": returns, "mean": mean, "std": std}

        return self.jobs.start(work)

    def _keep(self, episode: Episode) -> str:
        name = f"p{next(self._numbers)}"
        self._episodes.obtain(name, lambda: episode)
        return name

    def _playable(self, key: str) -> Insight:
        insight = self.insight(key)
        insight.require_memories()
        return insight

    def _environment(self) -> str:
        if self.run.env is None:
            raise ImelError("the environment is not known: start the explorer with --env")
        return self.run.env

    # --- pictures ---

    def picture_of(self, key: str, row: int) -> bytes:
        """The environment in a remembered state."""
        states = self.insight(key).column("states")
        if not 0 <= row < len(states):
            raise ImelError(f"there is no memory {row}")
        number = int(key[1:].partition("e")[0])
        return self._pictures.obtain((number, row), lambda: self._painted(states[row]))

    def moment_of(self, key: str, row: int, number: int) -> bytes:
        """The environment in one of the states that are kept of a lesson."""
        insight = self.insight(key)
        if not isinstance(insight, LessonInsight):
            raise ImelError(f"a {type(insight.policy).__name__} has no lessons")
        state = insight.moment(row, number)
        return self._pictures.obtain(
            (key.partition("e")[0], row, number), lambda: self._painted(state)
        )

    def _painted(self, state: Array) -> bytes:
        if self._cannot_pose is not None:
            raise ImelError(self._cannot_pose)
        return self._painter.submit(self._paint, state).result()

    def _paint(self, state: Array) -> bytes:
        try:
            if self._posed is None:
                self._posed = make_environment(self._environment(), rendered=True)
                self._posed.reset(seed=0)
            pose(self._posed, state)
            return picture(self._posed)
        except UnclearStateError:
            raise
        except ImelError as error:
            self._cannot_pose = str(error)
            raise
