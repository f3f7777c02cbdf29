"""Why this action, of a `RidgePolicy`: the episodes that taught it, as an exact sum.

    mean = phi(s)^T theta = sum_e phi(s)^T theta_e

A lesson is what one episode (or a period of merged ones) has added to the coefficients theta.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imel.distributions import Distribution
from imel.errors import ImelError
from imel.explain import lesson_words
from imel.explain.explanation import COLUMNS, Readable
from imel.explain.familiarity import familiarity_of
from imel.policies import RidgePolicy
from imel.policies.names import DimensionNames

Array = NDArray[Any]

_MOSTLY = 0.5
"""`mostly`: the fewest lessons with this share of all that speaks for the mean."""
_SPEAKS = 0.01
"""`against`: lessons that take back at least this share of all that speaks for the mean."""


@dataclass(frozen=True, eq=False)
class LessonContributions:
    """What each lesson adds to a mean, the largest contribution first.

    Contributions are compared by their Euclidean norm in policy units, in which every dimension of
    the action has the range [-1, 1].
    """

    episodes: Array  # [L] the (first) episode of the lesson: what `policy_without` takes
    counts: Array  # [L] episodes in it; more than one in a merged period
    steps: Array  # [L, 2] environment steps of the run before and after it
    lengths: Array  # [L] transitions in it
    returns: Array  # [L] mean return of its episodes, as far as they have been played
    contributions: Array  # [L, d_a] what it adds to the mean

    def __len__(self) -> int:
        return len(self.episodes)

    @property
    def demonstrated(self) -> Array:
        """Which of them are of a warm start: they end before the run's first step."""  # [L] bool
        return np.asarray(self.steps[:, 1] == 0)


@dataclass(frozen=True, eq=False)
class Moments:
    """The experiences of a lesson that are still in memory, in order of time."""

    rows: Array  # [n] places in the policy's memory
    episodes: Array  # [n]
    steps: Array  # [n] within the episode
    states: Array  # [n, d_s] raw
    actions: Array  # [n, d_a] taken
    means: Array  # [n, d_a] mu, when it was improved last
    improved_means: Array  # [n, d_a] mu*
    advantages: Array  # [n]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def asked(self) -> Array:
        """What each experience asked for in the last update: mu* - mu."""  # [n, d_a]
        return np.asarray(self.improved_means - self.means)


@dataclass(frozen=True, eq=False)
class Making:
    """What the lessons up to each step of the run add up to.

    Of today's policy: what it does at other steps is not what the policy did then.
    """

    steps: Array  # [L] environment steps of the run before each lesson, ascending
    means: Array  # [L, d_a] the sum of all lessons so far; the last row is the mean


@dataclass(frozen=True, eq=False, repr=False)
class LessonExplanation(Readable):
    """An action's mean and every lesson's part in it: `lessons.contributions` sum to `mean`.

    It explains the deterministic policy. Means and actions are in policy units: the action range is
    [-1, 1].
    """

    kind: ClassVar = "lessons"
    exact: ClassVar = True
    widths = (11, 15, 9, 7)

    observation: Array  # [d_s] raw
    mean: Array  # [d_a]
    lessons: LessonContributions
    sensitivity: Array  # [d_a, d_s] d mean / d state, in deviations of each state dimension
    familiarity: float
    """The share of memories that are at least as far from the other episodes as this state is
    from memory. NaN if the memory holds a single episode."""
    names: DimensionNames
    distribution: Distribution
    remembered: Mapping[str, Array] = field(repr=False)
    """The policy's memory, of which `moments` are taken."""

    @property
    def headings(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the cells of the table are."""
        added = f"adds to the {self.columns_of_logits or self.distribution.parameters}"
        return ("episode", "steps of run", "return", "share", added)

    @property
    def along(self) -> Array:
        """What each lesson adds in the direction of the mean; their sum is the mean's norm.

        Where actions are discrete: what it adds to the logits of the options that are chosen.
        """
        return np.asarray(self.lessons.contributions @ self.distribution.direction(self.mean))

    @property
    def mostly(self) -> Array:
        """The fewest lessons that make up half of all that speaks for the mean, as positions.

        All that speaks for it: the sum of what lessons add in its direction, without those that
        take something back.
        """
        along = np.maximum(self.along, 0.0)
        order = np.argsort(-along, kind="stable")
        reached = np.cumsum(along[order]) >= _MOSTLY * along.sum()
        return order[: int(reached.argmax()) + 1] if along.any() else order[:0]

    @property
    def against(self) -> Array:
        """The lessons that take back at least one per cent of what speaks for the mean."""
        along = self.along
        order = np.argsort(along, kind="stable")
        speaking = along[order] < -_SPEAKS * np.maximum(along, 0.0).sum()
        return np.asarray(order[speaking])

    @property
    def taken_back(self) -> float:
        """All that speaks against the mean, as a share of what speaks for it."""
        along = self.along
        spoken = float(np.maximum(along, 0.0).sum())
        return float(np.maximum(-along, 0.0).sum()) / spoken if spoken else 0.0

    @property
    def making(self) -> Making:
        """The mean as it adds up over the steps of the run."""
        lessons = self.lessons
        order = np.lexsort((lessons.episodes, lessons.steps[:, 0]))
        return Making(lessons.steps[order, 0], np.cumsum(lessons.contributions[order], axis=0))

    def moments(self, lesson: int) -> Moments:
        """Return the experiences of a lesson, named by one of its episodes, still in memory."""
        order = np.argsort(self.lessons.episodes)
        firsts, counts = self.lessons.episodes[order], self.lessons.counts[order]
        (row,) = lesson_rows(firsts, counts, np.array([lesson]))
        of_it = np.searchsorted(firsts, self.remembered["episodes"], side="right") - 1 == row
        rows = np.flatnonzero(of_it)
        columns = {name: self.remembered[name][rows] for name in COLUMNS}
        order = np.lexsort((columns["steps"], columns["episodes"]))
        return Moments(rows[order], **{name: values[order] for name, values in columns.items()})

    sentence = lesson_words.sentence
    sensitivity_sentence = lesson_words.sensitivity_sentence
    table = lesson_words.table

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.sensitivity_sentence()}"

    def _repr_html_(self) -> str:
        from imel.explain.picture import draw_lessons

        return draw_lessons(self)


def explain_lessons(
    policy: RidgePolicy, states: Tensor, names: DimensionNames
) -> list[LessonExplanation]:
    """Take the deterministic means at raw states apart into lessons."""  # [T, d_s]
    ledger = policy.lessons
    if not len(ledger):
        raise ImelError("the policy has had no lesson yet: it has not been trained")
    with torch.no_grad():
        normalised = policy.normaliser(states)
        features = policy.features(normalised)  # [T, d_phi]
        contributions = contributions_at(policy, features)
        sensitivity = policy.features.gradient(normalised, policy.coefficients.float())
        means = policy.act(states)[0]
    familiar = np.full(len(states), np.nan)
    if len(policy.memory):
        familiar = familiarity_of(policy)(states)
    remembered = _remembered(policy)
    return [
        LessonExplanation(
            observation=states[i].cpu().numpy(),
            mean=means[i].cpu().numpy(),
            lessons=_table(policy, contributions[i]),
            sensitivity=sensitivity[i].cpu().numpy(),
            familiarity=float(familiar[i]),
            names=names,
            distribution=policy.distribution,
            remembered=remembered,
        )
        for i in range(len(states))
    ]


def contributions_at(policy: RidgePolicy, features: Tensor) -> Tensor:
    """Return what each lesson adds to the mean: phi(s)^T theta_e."""  # [T, d_phi] -> [T, L, d_a]
    # A batched product over the lessons: einsum would copy all coefficients into another order
    return (features @ policy.lessons.column("coefficients")).transpose(0, 1)


def _table(policy: RidgePolicy, contributions: Tensor) -> LessonContributions:
    order = contributions.norm(dim=1).argsort(descending=True, stable=True)

    def column(name: str) -> Array:
        return policy.lessons.column(name)[order].cpu().numpy()

    return LessonContributions(
        episodes=column("episodes"),
        counts=column("counts"),
        steps=np.stack([column("starts"), column("ends")], axis=1),
        lengths=column("lengths"),
        returns=column("returns") / column("counts"),
        contributions=contributions[order].cpu().numpy(),
    )


def _remembered(policy: RidgePolicy) -> Mapping[str, Array]:
    """Return a copy of the memory, made once until the policy changes."""
    column = policy.memory.column
    return policy.cached(
        "remembered", lambda: {name: column(name).clone().cpu().numpy() for name in COLUMNS}
    )


def lesson_rows(firsts: Array, counts: Array, episodes: Array) -> Array:
    """Return the row of each episode's lesson; of a merged one that of its period.

    :param firsts: [L] the first episode of each row, ascending
    :param counts: [L] episodes in each row
    """
    rows = np.searchsorted(firsts, episodes, side="right") - 1
    # A period reaches to the next row, a single episode no further than itself
    ends = np.append(firsts[1:], firsts[-1] + counts[-1])
    ends = np.where(counts == 1, firsts + 1, ends)
    unknown = (rows < 0) | (episodes >= ends[rows])
    if unknown.any():
        raise ImelError(
            f"no lesson of episode {episodes[unknown][0]}; there are {len(firsts):,} lessons, of "
            f"episodes {firsts[0]} to {ends[-1] - 1}"
        )
    return np.asarray(rows)
