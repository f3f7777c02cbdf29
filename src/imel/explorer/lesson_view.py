"""A policy that is a sum of lessons, as the explorer shows it: its rows are those of the ledger."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from imel.errors import ImelError
from imel.explain.by_lessons import contributions_at
from imel.explain.lesson_words import episode_words, steps_words
from imel.explain.reduced import lesson_sizes
from imel.explorer.insight import LISTED, LIT, Answer, Array, Insight, Space
from imel.pictures.curve import spread
from imel.policies import Policy
from imel.policies.names import DimensionNames

_COMPARED = 64
"""Remembered states at which it is compared what lessons add."""


class LessonInsight(Insight):
    """A policy with all of its lessons, or with some of them taken back."""

    kind = "lessons"
    first_projection = "run"
    weighted = True
    columns = (
        *("episodes", "counts", "starts", "ends", "lengths"),
        *("returns", "places", "sizes", "remembered"),
    )
    colours: ClassVar = {
        "size": ("sizes", "size: what it adds to the action"),
        "return": ("returns", "return of its episode"),
        "age": ("ends", "steps of the run"),
    }
    policy: Any
    left: Any

    def _count(self) -> int:
        return len(self.policy.lessons)

    def _reduced(self) -> Policy:
        reduced: Policy = self.policy.without(lessons=self.column("episodes")[self.forgotten])
        return reduced

    def describe(self) -> dict[str, Any]:
        """Return what a page is told of a model, with the step of the run after its last lesson."""
        return {**super().describe(), "last_step": int(self.column("ends").max(initial=0))}

    def column(self, name: str) -> Array:
        """Return a column of the ledger, or one that is computed from it."""
        if name == "places":
            return spread(self.column("ends"))
        if name == "sizes":
            sizes: Array = self.policy.cached("lesson_sizes", lambda: lesson_sizes(self.policy))
            return sizes
        if name == "remembered":
            return self.memory("episodes")
        column = self.policy.lessons.column(name).numpy(force=True)
        return np.asarray(column / self.column("counts") if name == "returns" else column)

    def space(self, projection: str) -> Space:
        """Return the space of a map: over the `run` by returns, or what lessons `taught`."""
        if projection == "run":
            return Space(lambda model: model.over_the_run, axes=("steps of the run", "return"))
        if projection != "taught":
            raise ImelError(f"lessons have no map by '{projection}'")
        remembered = self.policy.memory.column("states")
        some = remembered[:: -(-len(remembered) // _COMPARED)]
        return Space(lambda model: model.taught(some))

    @property
    def over_the_run(self) -> Tensor:
        """Lessons in their order, and their returns."""  # [L, 2]
        return torch.tensor(np.stack([self.column("places"), self.column("returns")], axis=1))

    @torch.no_grad()
    def taught(self, states: Tensor) -> Tensor:
        """Return what each lesson adds to the mean at some states."""  # [L, n d_a]
        features = self.policy.features(self.policy.normaliser(states))
        return contributions_at(self.policy, features).transpose(0, 1).flatten(1)

    def _behind(self, state: Array) -> Answer:
        """Return the share of every lesson, and the largest in words."""
        (why,) = self.left.explain(self.tensor(state[None]), self.names)
        lessons = why.lessons
        # By row: where the explanation has it
        place_of = np.argsort(np.searchsorted(self.column("episodes"), lessons.episodes))
        shares = why.shares[place_of]
        lit = np.argsort(-np.abs(shares), kind="stable")[:LIT]
        listed = lit[~self.forgotten[lit]][:LISTED]
        alike, sentence = self.alike(state, listed), why.sentence()
        document = {
            # Bars show a mean, but not the probabilities behind logits
            "sentence": sentence.rpartition(": ")[2] if why.distribution.has_std else sentence,
            "depends": why.sensitivity_sentence(),
            "lessons": [
                {
                    "row": int(row),
                    "name": episode_words(lessons.episodes[i], lessons.counts[i]),
                    "steps": steps_words(*lessons.steps[i]),
                    "return": float(lessons.returns[i]),
                    "share": float(shares[row]),
                    "adds": lessons.contributions[i].tolist(),
                    "moment": int(moment),
                }
                for row, i, moment in zip(listed, place_of[listed], alike, strict=True)
            ],
        }
        return document, {"shares": shares, "rows": lit, "weights": shares[lit]}

    def alike(self, state: Array, rows: Array) -> Array:
        """Return which of each lesson's kept states is most like a state."""  # [n]
        kept = self.policy.lessons.column("samples")[rows.tolist()]  # [n, k, d_s]
        places = self.policy.normaliser(kept.flatten(0, 1)).view(kept.shape)
        apart: Tensor = (places - self.policy.normaliser(self.tensor(state[None]))).norm(dim=2)
        return apart.argmin(dim=1).numpy(force=True)


def insight_of(policy: Policy, names: DimensionNames, forgotten: Array | None = None) -> Insight:
    """Return what is asked of a policy: about its lessons if it has any, or about its memories."""
    return (Insight if policy.lessons is None else LessonInsight)(policy, names, forgotten)
