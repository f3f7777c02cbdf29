"""A run that is being explored, and all that a page may ask about it.

Nothing is ever changed: forgetting makes a copy with a name of its own, so undoing it is asking for
the old name again. What has not been used for long is dropped; files are never written.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from imel.environments.playing import Environment, make_environment, names_in
from imel.errors import ImelError
from imel.explorer.episodes import Episode, advance, evaluate, record, remembered
from imel.explorer.insight import Answer, Array, Insight
from imel.explorer.lesson_view import insight_of
from imel.explorer.memory_map import Map, colouring, make_map
from imel.pictures.curve import read_curve
from imel.pictures.rendering import picture, pose
from imel.pictures.style import summarise_near
from imel.policies import Policy
from imel.runs import layout
from imel.runs.stored import StoredRun

Key = Annotated[str, Field(pattern=r"^m\d{1,4}(e\d{1,6})?$")]
"""`m3` is the fourth model of the run, `m3e1` that without some of its rows."""
Named = Annotated[str, Field(pattern=r"^m\d{1,4}(e\d{1,6})?-(mean|sampled|remembered)--?\d{1,16}$")]
"""An episode: the model, the kind of its actions, and the seed or the number."""
Place = Annotated[int, Field(ge=0, lt=1 << 31)]
Rows = Annotated[list[Place], Field(min_length=1, max_length=1 << 20)]
Count = Annotated[int, Field(ge=1, le=32)]

QUESTIONS = (
    *("run", "model", "map", "colour", "columns", "picture"),
    *("episode", "evaluation", "frame", "trail", "step"),
)
"""What a page may ask: the methods `ask_*` of a session."""
_MODELS, _MAPS, _EDITS, _PICTURES, _PLAYED = 6, 32, 256, 1024, 6
"""Of each as many are kept as were used last."""
_DOTS = 2000
"""Episodes of the learning curve that are drawn as dots."""


class Session:
    """A run that is being explored."""

    def __init__(self, run: StoredRun) -> None:
        self.run = run
        self.curve = describe_curve(run.folder) if run.place.is_dir() else None
        self.insight = lru_cache(_MODELS)(self._insight)
        self.map = lru_cache(_MAPS)(self._map)
        self.rows = lru_cache(_MODELS)(self._rows)
        self._picture = lru_cache(_PICTURES)(self._draw)
        self._forgotten: dict[str, Array] = {}
        self._played: OrderedDict[str, tuple[Any, Generator[None, None, None]]] = OrderedDict()
        self._numbers = itertools.count(1)
        # Drawing contexts belong to a thread: one draws episodes, another one remembered states
        self._stage, self._painter = (ThreadPoolExecutor(1, name) for name in ("stage", "painter"))
        self._posed: Environment | None = None

    def close(self) -> None:
        """Close all environments."""
        for _, work in self._played.values():
            self._stage.submit(work.close)
        self._stage.shutdown()
        self._painter.shutdown(cancel_futures=True)

    def prepare(self) -> Insight:
        """Open the newest model and compute its map, so that the first page need not wait."""
        insight = self.insight(self.newest)
        if insight.rows:
            self.rows(self.newest, self.newest, insight.first_projection)
            insight.step(insight.memory("states")[0])  # computes what all answers share
        return insight

    # --- models ---

    @property
    def newest(self) -> str:
        """The key of the newest model that can be opened, which a page shows first."""
        models = self.run.models
        usable = (i for i, model in enumerate(models) if model.problem is None)
        return f"m{max(usable, default=len(models) - 1)}"

    def _insight(self, key: str) -> Insight:
        whole, _, edited = key.partition("e")
        if edited:
            forgotten = self._forgotten.get(key)
            if forgotten is None:
                raise ImelError(f"the edited model '{key}' is no longer kept; undo, and edit again")
            model = self.insight(whole)
            return insight_of(model.policy, model.names, forgotten)
        number = int(whole[1:])
        if number >= len(self.run.models):
            raise ImelError(f"there is no model '{key}'")
        stored = self.run.models[number]
        if stored.problem is not None:
            raise ImelError(stored.problem)
        policy = Policy.load(str(stored.path))
        return insight_of(policy, names_in(self.run.env, policy.dimensions))

    def _map(self, key: str, projection: str) -> Map:
        return make_map(self.insight(key.partition("e")[0]), projection)

    def _rows(self, model: str, frame: str, projection: str) -> Array:
        return self.map(frame, projection).rows(self.insight(model))

    def ask_run(self) -> dict[str, Any]:
        """Describe the run, its models and the newest of them."""
        names = ("label", "iteration", "timesteps", "problem")
        return {
            "title": self.run.title,
            "env": self.run.env,
            "curve": self.curve,
            "newest": self.insight(self.newest).describe(),
            "models": [
                {"key": f"m{number}"} | {name: getattr(stored, name) for name in names}
                for number, stored in enumerate(self.run.models)
            ],
        }

    def ask_model(self, model: Key) -> dict[str, Any]:
        """Describe a model."""
        return self.insight(model).describe()

    def ask_map(self, model: Key, frame: Key, projection: str) -> Answer:
        """Place the rows of a model in the plane of the same or of another one."""
        labels = self.map(frame, projection).labels
        return {"labels": labels}, {"points": self.rows(model, frame, projection)}

    def ask_colour(self, model: Key, frame: Key, by: str, dimension: Place = 0) -> Answer:
        """Colour the rows of a model, on the scale of another one's."""
        return colouring(self.insight(model), self.insight(frame), by, dimension)

    def ask_columns(self, model: Key) -> Answer:
        """Return what a page needs of every row."""
        insight = self.insight(model)
        return {}, {name: insight.column(name) for name in insight.columns}

    def forget(self, model: Key, rows: Rows) -> dict[str, Any]:
        """Make a copy of a model without some more of its rows."""
        insight = self.insight(model)
        if max(rows) >= insight.rows:
            raise ImelError(f"rows are numbers from 0 to {insight.rows - 1}")
        forgotten = insight.forgotten.copy()
        forgotten[rows] = True
        key = f"{model.partition('e')[0]}e{next(self._numbers)}"
        self._forgotten[key] = forgotten
        if len(self._forgotten) > _EDITS:
            del self._forgotten[next(iter(self._forgotten))]
        return {"model": key, **self.insight(key).describe()}

    # --- episodes and evaluations ---

    def ask_episode(self, episode: Named) -> Answer:
        """Play an episode on for a moment, and describe it."""
        self._stage.submit(self._play_on, episode).result()
        return self.episode(episode).describe()

    def ask_evaluation(self, model: Key, episodes: Count = 8) -> dict[str, Any]:
        """Play an evaluation on for a moment; return the returns of its episodes so far."""
        name = f"{model}-evaluated-{episodes}"
        return {"returns": list(self._stage.submit(self._play_on, name).result())}

    def _play_on(self, name: str) -> Any:
        # On the thread that owns what episodes draw with
        if name not in self._played:
            self._played[name] = self._begin(name)
        while len(self._played) > _PLAYED:
            _, (_, work) = self._played.popitem(last=False)
            work.close()
        made, work = self._played[name]
        try:
            advance(work)
        except ImelError:
            del self._played[name]
            raise
        return made

    def _begin(self, name: str) -> tuple[Any, Generator[None, None, None]]:
        key, kind, number = name.split("-", 2)
        insight = self.insight(key)
        if kind == "remembered":
            return remembered(insight, int(number)), (None for _ in ())
        insight.require_rows()
        env = self._environment()
        if kind == "evaluated":
            returns: list[float] = []
            return returns, evaluate(returns, insight.left, env, int(number))
        episode = Episode()
        return episode, record(episode, insight.left, env, int(number), kind == "sampled")

    def _environment(self) -> str:
        if self.run.env is None:
            raise ImelError("the environment is not known: start the explorer with --env")
        return self.run.env

    def episode(self, name: str) -> Episode:
        """Return an episode as far as it has been played."""
        try:
            self._played.move_to_end(name)
            episode: Episode = self._played[name][0]
        except KeyError:
            raise ImelError(f"the episode '{name}' is not there, or no longer kept") from None
        return episode

    def ask_frame(self, episode: Named, step: Place) -> bytes | None:
        """Return the picture of a step."""
        return self.episode(episode).frame(step)

    def ask_trail(self, episode: Named, model: Key, frame: Key, projection: str) -> Answer:
        """Return a model's actions along an episode, and the way of the episode on the map."""
        states = self.episode(episode).columns()[0]
        if not len(states):
            return {}, {}
        insight = self.insight(model)
        points = self.map(frame, projection).coordinates(insight.tensor(states))
        return {}, {"points": points, "means": insight.means(states)}

    def ask_step(
        self, episode: Named, step: Place, model: Key, frame: Key, projection: str
    ) -> Answer:
        """Take a model's action at a step of an episode apart."""
        state = self.episode(episode).observation(step)
        insight = self.insight(model)
        document, arrays = insight.step(state)
        points = self.map(frame, projection).coordinates(insight.tensor(state[None])).tolist()
        position = points[0] if points else None
        return {**document, "state": state.tolist(), "position": position}, arrays

    # --- pictures of remembered states ---

    def ask_picture(self, model: Key, row: Place, number: Place | None = None) -> bytes:
        """Draw the environment in a remembered state, or in one that is kept of a lesson."""
        key = model.partition("e")[0]
        return self._painter.submit(self._picture, key, row, number).result()

    def _draw(self, key: str, row: int, number: int | None) -> bytes:
        state = self.insight(key).state(row, number)
        if self._posed is None:
            self._posed = make_environment(self._environment(), rendered=True)
            self._posed.reset(seed=0)
        pose(self._posed, state)
        return picture(self._posed)


def describe_curve(folder: Path) -> dict[str, Any] | None:
    """Return the curve of a run directory as plain lists; None without a record of training."""
    if not (folder / layout.MONITOR).is_file():
        return None
    curve = read_curve(folder / layout.MONITOR, folder / layout.EVALUATION, "")
    if not len(curve.returns):
        return None
    trend, evaluation = summarise_near(curve.steps, curve.returns), curve.evaluation
    shown = np.unique(np.linspace(0, len(curve.returns) - 1, _DOTS).astype(int))
    finite = {
        name: [float(value) if np.isfinite(value) else None for value in getattr(trend, name)]
        for name in ("places", "mean", "low", "high")
    }
    return {
        "steps": curve.steps[shown].tolist(),
        "returns": curve.returns[shown].tolist(),
        "evaluation": evaluation and {"steps": evaluation.steps, "mean": evaluation.mean},
        **finite,
    }
