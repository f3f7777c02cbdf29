"""What the explorer asks of a `RidgePolicy`: its lessons, their parts in an action, and a map.

A `LessonInsight` is a policy seen as a sum of lessons. Its rows are those of the ledger, in the
order of the run.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imel.errors import ImelError
from imel.explain import LessonExplanation, policy_without
from imel.explain.by_lessons import contributions_at, explain_lessons
from imel.explain.reduced import lesson_sizes
from imel.explorer.insight import Colour, Insight, Projection
from imel.explorer.memory_map import Colouring, Plane, plane_through, scaled_colours
from imel.pictures.curve import spread
from imel.policies import Policy, RidgePolicy
from imel.policies.names import DimensionNames

Array = NDArray[Any]

_COMPARED = 64
"""Remembered states at which it is compared what lessons add."""
_COLOURS = {
    "size": ("sizes", "size: what it adds to the action"),
    "return": ("returns", "return of its episode"),
    "age": ("ends", "steps of the run"),
}


class LessonInsight(Insight):
    """A `RidgePolicy` with all of its lessons, or with some of them taken back."""

    kind = "lessons"
    policy: RidgePolicy
    left: RidgePolicy

    def _count(self) -> int:
        return len(self.policy.lessons)

    def _reduced(self) -> Policy:
        return policy_without(self.policy, lessons=self.lessons("episodes")[self.forgotten])

    @property
    def first_projection(self) -> Projection:
        """The map that is shown first."""
        return "run"

    @property
    def weighted(self) -> bool:
        """Whether each row has a share in every answer."""
        return True

    @property
    def last_step(self) -> int:
        """The environment steps of the run after the last lesson."""
        return int(self.lessons("ends").max(initial=0))

    def lessons(self, name: str) -> Array:
        """Return a column of the ledger."""
        return self.policy.lessons.column(name).cpu().numpy()

    @cached_property
    def sizes(self) -> Array:
        """What each lesson adds to the action, as a root mean square over remembered states."""
        return lesson_sizes(self.policy)

    def table(self) -> dict[str, Array]:
        """Return the columns that a page needs of every lesson."""
        names = ("episodes", "counts", "starts", "ends", "lengths")
        columns = {name: self.lessons(name) for name in names}
        columns["returns"] = self.lessons("returns") / columns["counts"]
        places, remembered = spread(columns["ends"]), self.column("episodes")
        return {**columns, "places": places, "sizes": self.sizes, "remembered": remembered}

    def why(self, state: Array) -> tuple[LessonExplanation, Array]:
        """Take the mean at a state apart into lessons; return with it the row of each lesson."""
        (why,) = explain_lessons(self.left, self._tensor(state)[None], self.names)
        return why, np.searchsorted(self.lessons("episodes"), why.lessons.episodes)

    def alike(self, state: Array, rows: Array) -> Array:
        """Return which of each lesson's kept states is most like a state."""  # [n]
        kept = self.lessons("samples")[rows]  # [n, k, d_s]
        places = self.normalised(kept.reshape(-1, kept.shape[2])).reshape(kept.shape)
        distances = np.linalg.norm(places - self.normalised(state[None]), axis=2)
        return np.asarray(distances.argmin(axis=1))

    def moment(self, row: int, number: int) -> Array:
        """Return one of the states that are kept of a lesson."""
        samples = self.policy.lessons.column("samples")
        if not (0 <= row < samples.shape[0] and 0 <= number < samples.shape[1]):
            raise ImelError(f"there is no state {number} of lesson {row}")
        return samples[row, number].cpu().numpy()


def insight_of(policy: Policy, names: DimensionNames) -> Insight:
    """Return what is asked of a policy: about its lessons, or about its memories."""
    return (LessonInsight if policy.lessons is not None else Insight)(policy, names)


def make_lesson_plane(insight: LessonInsight, projection: Projection) -> Plane:
    """The plane of a model's lessons: over the run, or by what they taught."""
    if projection not in ("run", "taught"):
        raise ImelError(f"lessons have no map by '{projection}'")
    insight.require_memories()
    if projection == "run":
        over = ("steps of the run", "return"), np.eye(2)
        return plane_through(insight, partial(_coordinates, compared=None), axes=over)
    remembered = insight.column("states")
    some = remembered[:: -(-len(remembered) // _COMPARED)]
    return plane_through(insight, partial(_coordinates, compared=some), name="taught")


def _coordinates(insight: Insight, compared: Array | None) -> Array:
    """Place lessons in time and by their returns, or by what they add at some states."""
    assert isinstance(insight, LessonInsight)
    if compared is None:
        table = insight.table()
        return np.stack([table["places"], table["returns"]], axis=1)
    policy = insight.policy
    with torch.no_grad():
        features = policy.features(policy.normaliser(torch.from_numpy(compared).to(policy.device)))
        added = contributions_at(policy, features).transpose(0, 1).flatten(1)  # [L, n d_a]
    return added.double().cpu().numpy()


def lesson_colours(insight: LessonInsight, frame: Insight, by: Colour) -> Colouring:
    """The colour of each lesson, on the scale of the frame's lessons."""
    if by not in _COLOURS or not isinstance(frame, LessonInsight):
        raise ImelError(f"lessons have no colour by '{by}'")
    column, label = _COLOURS[by]
    return scaled_colours(insight.table()[column], frame.table()[column], label)
