"""A mean explained by lessons: the episodes that taught it, as a sum.

    mean = phi(s)^T theta = sum_e phi(s)^T theta_e

A lesson is what one episode (or a period of merged ones) has added to the coefficients theta.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from imel.errors import ImelError
from imel.explain.explanation import COLUMNS, Array, Experiences, Readable, common_fields
from imel.explain.lesson_words import episode_words, number, return_words, short, steps_words
from imel.policies import RidgePolicy
from imel.policies.names import DimensionNames

TOP_SHARE, MIN_OPPOSING_SHARE = 0.5, 0.01
"""Of all that speaks for the mean: what `top_lessons` have, what one that is `opposing` cancels."""
_NAMED, _SLIGHT = 3, 0.01
"""State dimensions named at most, and the least slope of one beside the steepest."""
_SAME = 0.05
"""Returns that differ by less than this share of the run's range have stayed as they were."""
_STEP = 1e-2
"""Deviations of the state to both sides by which slopes are measured."""


@dataclass(frozen=True, eq=False)
class LessonContributions:
    """What each lesson adds to a mean, the largest first by the Euclidean norm in policy units."""

    episodes: Array  # [L] the (first) episode of the lesson: what `policy_without` takes
    counts: Array  # [L] episodes in it; more than one in a merged period
    steps: Array  # [L, 2] environment steps of the run before and after it
    lengths: Array  # [L] transitions in it
    returns: Array  # [L] mean return of its episodes, as far as they have been played
    contributions: Array  # [L, d_a] what it adds to the mean

    def __len__(self) -> int:
        return len(self.episodes)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LessonExplanation(Readable):
    """A mean before clipping, and every lesson's part: `lessons.contributions` sum to `mean`."""

    kind: ClassVar = "lessons"
    exact: ClassVar = True
    widths = (11, 15, 9, 7)

    lessons: LessonContributions
    sensitivity: Array  # [d_a, d_s] slope of the mean, per deviation of each state dimension
    remembered: Mapping[str, Array]
    """The policy's memory, of which `moments` are taken."""

    @property
    def projection(self) -> Array:
        """What each lesson adds along the mean, or to the logits of what is chosen."""  # [L]
        return np.asarray(self.lessons.contributions @ self.distribution.direction(self.mean))

    @property
    def shares(self) -> Array:
        """Each lesson's projection as a share of all that speaks for the mean."""  # [L]
        projection = self.projection
        return projection / (float(np.maximum(projection, 0.0).sum()) or 1.0)

    @property
    def top_lessons(self) -> Array:
        """The fewest lessons that make up half of all that speaks for the mean, as positions."""
        shares = np.maximum(self.shares, 0.0)
        order = np.argsort(-shares, kind="stable")
        reached = np.cumsum(shares[order]) >= TOP_SHARE * shares.sum()
        return order[: int(reached.argmax()) + 1] if shares.any() else order[:0]

    @property
    def opposing(self) -> Array:
        """The lessons that cancel at least one per cent of what speaks for the mean."""
        order = np.argsort(self.shares, kind="stable")
        return np.asarray(order[self.shares[order] < -MIN_OPPOSING_SHARE])

    @property
    def cumulative_contributions(self) -> tuple[Array, Array]:
        """Steps [L] of the run, and sums [L, d_a] of lessons up to them: the last is the mean."""
        lessons = self.lessons
        order = np.lexsort((lessons.episodes, lessons.steps[:, 0]))
        return lessons.steps[order, 0], np.cumsum(lessons.contributions[order], axis=0)

    def moments(self, lesson: int) -> Experiences:
        """Return the experiences of a lesson, named by one of its episodes, still in memory."""
        order = np.argsort(self.lessons.episodes)
        firsts, counts = self.lessons.episodes[order], self.lessons.counts[order]
        (row,) = lesson_rows(firsts, counts, np.array([lesson]))
        memory = self.remembered
        of_it = np.searchsorted(firsts, memory["episodes"], side="right") - 1 == row
        in_time = np.lexsort((memory["steps"], memory["episodes"]))
        rows = in_time[of_it[in_time]]
        return Experiences(rows=rows, **{name: memory[name][rows] for name in COLUMNS})

    @property
    def headings(self) -> tuple[str, ...]:
        """What the cells of the table are."""
        origin = self.origin and f" ({self.origin} without lessons)"
        added = f"adds to the {self.columns_of_logits or 'mean'}{origin}"
        return ("episode", "steps of run", "return", "share", added)

    def table(self, count: int) -> list[tuple[str, ...]]:
        """Return the first rows in words, under the headings."""
        lessons, shares = self.lessons, self.shares
        return [
            (
                episode_words(lessons.episodes[i], lessons.counts[i]),
                steps_words(*lessons.steps[i]),
                return_words(lessons.returns[i], lessons.steps[i, 1]),
                f"{shares[i]:+.1%}",
                self.in_units(lessons.contributions[i], digits=3, change=True),
            )
            for i in range(min(count, len(lessons)))
        ]

    def sentence(self) -> str:
        """Say which lessons taught the mean, when, and how many speak against it."""
        top, shown = self.top_lessons, self.lessons.steps[:, 1] == 0  # before the run's first step
        if not len(top):
            return f"{self.answer}: no lesson has taught the policy anything here"
        parts = []
        if shown[top].any():
            parts.append(f"{shown[top].sum():,} of {shown.sum():,} demonstrations")
        if not shown[top].all():
            parts.append(self._own_words(top[~shown[top]], int((~shown).sum())))
        count, cancelled = len(self.opposing), float(np.maximum(-self.shares, 0.0).sum())
        noun = f"{count:,} lesson{'' if count == 1 else 's'}" if count else "no single lesson"
        share = f" ({100 * cancelled:.0f} % cancels out)" if cancelled >= 0.005 else ""
        return (
            f"{self.answer}: mostly taught by {' and by '.join(parts)}; {noun} "
            f"speak{'' if count > 1 else 's'} against it{share}"
        )

    def _own_words(self, own: Array, total: int) -> str:
        """Say how many lessons of the run itself these are, of which steps and returns."""
        lessons = self.lessons
        counts, steps = lessons.counts[own], lessons.steps[own]
        noun = "episode" if (lessons.counts == 1).all() else "lesson"
        merged = f" ({counts.sum():,} episodes)" if counts.sum() > len(own) else ""
        first, last = short(steps[:, 0].min()), short(steps[:, 1].max())
        words = f"{len(own):,} of {total:,} {noun}s{merged} between steps {first} and {last}, when"
        returns = lessons.returns[own][np.argsort(steps[:, 0], kind="stable")]
        if len(returns) == 1:
            return f"{words} the return was {number(returns[0])}"
        half = len(returns) // 2
        before, after = returns[:half].mean(), returns[-half:].mean()
        if abs(after - before) <= _SAME * float(np.ptp(lessons.returns)):
            return f"{words} returns were about {number(returns.mean())}"
        verb = "rose" if after > before else "fell"
        return f"{words} returns {verb} from {number(before)} to {number(after)}"

    def sensitivity_sentence(self) -> str:
        """Name the state dimensions that the mean changes most with, in the environment's units."""
        sizes = np.linalg.norm(self.sensitivity, axis=0)  # [d_s]
        if not sizes.any():
            return "the mean does not depend on the state here"
        slopes = self.sensitivity * np.reshape(self.scale, (-1, 1))
        kind, note = ("the logit of ", "") if self.distribution.sizes else ("", ", before clipping")
        order = np.argsort(-sizes, kind="stable")[:_NAMED]
        parts = []
        for place in order[sizes[order] > _SLIGHT * sizes.max()]:
            most = int(np.abs(self.sensitivity[:, place]).argmax())
            verb = "raises" if slopes[most, place] > 0 else "lowers"
            moved = f"{verb} {kind}{self.names.action[most]} by {number(abs(slopes[most, place]))}"
            parts.append(f"of {self.names.state[place]} {moved}")
        return f"one standard deviation more {', '.join(parts)} (slope at this state{note})"

    def sentences(self) -> list[str]:
        """Return all there is to say beside the table."""
        return [*super().sentences(), self.sensitivity_sentence()]


def explain_lessons(
    policy: RidgePolicy, states: Tensor, names: DimensionNames
) -> list[LessonExplanation]:
    """Take the deterministic means at raw states apart into lessons."""  # [T, d_s]
    column = policy.memory.column
    if not len(policy.lessons):
        raise ImelError("the policy has had no lesson yet: it has not been trained")
    with torch.no_grad():
        places = policy.normaliser(states)
        contributions = contributions_at(policy, policy.features(places))
        slopes = [sensitivity(policy, place).cpu().numpy() for place in places]
    remembered = policy.cached(  # a copy, made once until the policy changes
        "remembered", lambda: {name: column(name).clone().cpu().numpy() for name in COLUMNS}
    )
    parts = zip(common_fields(policy, states, names), contributions, slopes, strict=True)
    return [
        LessonExplanation(
            **fields, lessons=_table(policy, added), sensitivity=slope, remembered=remembered
        )
        for fields, added, slope in parts
    ]


def contributions_at(policy: RidgePolicy, features: Tensor) -> Tensor:
    """Return what each lesson adds to the mean: phi(s)^T theta_e."""  # [T, d_phi] -> [T, L, d_a]
    # A batched product over the lessons: einsum would copy all coefficients into another order
    return (features @ policy.lessons.column("coefficients")).transpose(0, 1)


def sensitivity(policy: RidgePolicy, place: Tensor) -> Tensor:
    """Return the slopes of the mean at a normalised state, whatever its features are."""
    steps = _STEP * torch.eye(len(place), device=place.device)  # [d_s] -> [d_a, d_s]
    after, before = (policy.features(place + sign * steps).double() for sign in (1.0, -1.0))
    slopes: Tensor = (after - before) @ policy.coefficients / (2.0 * _STEP)
    return slopes.T


def _table(policy: RidgePolicy, contributions: Tensor) -> LessonContributions:
    order = contributions.norm(dim=1).argsort(descending=True, stable=True)
    names = ("episodes", "counts", "starts", "ends", "lengths", "returns")
    columns = {name: policy.lessons.column(name)[order].cpu().numpy() for name in names}
    columns["steps"] = np.stack([columns.pop("starts"), columns.pop("ends")], axis=1)
    columns["returns"] = columns["returns"] / columns["counts"]
    return LessonContributions(**columns, contributions=contributions[order].cpu().numpy())


def lesson_rows(firsts: Array, counts: Array, episodes: Array) -> Array:
    """Return the row of each episode's lesson or period, by first episodes and counts of rows."""
    rows = np.searchsorted(firsts, episodes, side="right") - 1
    # A period reaches to the next row, a single episode no further than itself
    ends = np.where(counts == 1, firsts + 1, np.append(firsts[1:], firsts[-1] + counts[-1]))
    unknown = (rows < 0) | (episodes >= ends[rows])
    if unknown.any():
        raise ImelError(
            f"no lesson of episode {episodes[unknown][0]}; there are {len(firsts):,} lessons, of "
            f"episodes {firsts[0]} to {ends[-1] - 1}"
        )
    return np.asarray(rows)
