"""A lesson explanation in words: a sentence, a short table, and what in the state it depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from imel.distributions import vector

if TYPE_CHECKING:
    from imel.explain.by_lessons import LessonExplanation

Array = NDArray[Any]

_DIMENSIONS = 3
_SAME = 0.05
"""Returns that differ by less than this share of the run's range have stayed as they were."""


def sentence(why: LessonExplanation) -> str:
    """Say which lessons taught the mean, when, and how many speak against it."""
    said, mostly = why.answer, why.mostly
    if not len(mostly):
        return f"{said}: no lesson has taught the policy anything here"
    shown = why.lessons.demonstrated
    parts = []
    if shown[mostly].any():
        parts.append(f"{shown[mostly].sum():,} of {shown.sum():,} demonstrations")
    own = mostly[~shown[mostly]]
    if len(own):
        parts.append(_own_words(why, own, int((~shown).sum())))
    said += f": mostly taught by {' and by '.join(parts)}"
    count = len(why.against)
    number = f"{count:,} lesson{'' if count == 1 else 's'}" if count else "no single lesson"
    said += f"; {number} speak{'' if count > 1 else 's'} against it"
    share = f"{100 * why.taken_back:.0f} %"
    return said + (f" ({share} is taken back in all)" if why.taken_back >= 0.005 else "")


def _own_words(why: LessonExplanation, own: Array, total: int) -> str:
    """Say how many lessons of the run itself these are, of which steps and returns."""
    lessons = why.lessons
    counts, steps = lessons.counts[own], lessons.steps[own]
    noun = "episode" if (lessons.counts == 1).all() else "lesson"
    words = f"{len(own):,} of {total:,} {noun}s"
    if counts.sum() > len(own):
        words += f" ({counts.sum():,} episodes)"
    return (
        f"{words} between steps {short(steps[:, 0].min())} and {short(steps[:, 1].max())}, "
        f"{_returns(why, own)}"
    )


def _returns(why: LessonExplanation, mostly: Array) -> str:
    """Compare the returns of the earlier and of the later half of some lessons."""
    order = np.argsort(why.lessons.steps[mostly, 0], kind="stable")
    returns = why.lessons.returns[mostly][order]
    if len(returns) == 1:
        return f"when the return was {number(returns[0])}"
    half = len(returns) // 2
    before, after = returns[:half].mean(), returns[-half:].mean()
    if abs(after - before) <= _SAME * float(np.ptp(why.lessons.returns)):
        return f"when returns were about {number(returns.mean())}"
    verb = "rose" if after > before else "fell"
    return f"when returns {verb} from {number(before)} to {number(after)}"


def sensitivity_sentence(why: LessonExplanation) -> str:
    """Name the state dimensions that the mean changes most with."""
    sizes = np.linalg.norm(why.sensitivity, axis=0)  # [d_s]
    if not sizes.any():
        return "it does not depend on the state here"
    parts = []
    for dimension in np.argsort(-sizes, kind="stable")[:_DIMENSIONS]:
        slopes = why.sensitivity[:, dimension]
        action = int(np.abs(slopes).argmax())
        moved = f"{why.names.action[action]} {slopes[action]:+.2f}"
        parts.append(f"{why.names.state[dimension]} ({moved})")
    return "depends most on (change for one deviation): " + ", ".join(parts)


def table(why: LessonExplanation, count: int) -> list[tuple[str, ...]]:
    """Return the cells of the first lessons.

    A share is what a lesson adds in the direction of the mean, of all that speaks for the mean.
    """
    lessons, along = why.lessons, why.along
    spoken = float(np.maximum(along, 0.0).sum()) or 1.0
    return [
        (
            episode_words(lessons.episodes[i], lessons.counts[i]),
            steps_words(*lessons.steps[i]),
            return_words(lessons.returns[i], lessons.steps[i, 1]),
            f"{along[i] / spoken:+.1%}",
            vector(lessons.contributions[i], digits=3),
        )
        for i in range(min(count, len(lessons)))
    ]


def episode_words(first: int, count: int) -> str:
    """Name the episode of a lesson, or the period: the first episode and how many follow it."""
    return f"{first}" if count == 1 else f"{first} (+{count - 1})"


def steps_words(start: int, end: int) -> str:
    """Name the steps of a run in which a lesson was taught, or that it came from a warm start."""
    return f"{short(start)} to {short(end)}" if end else "demonstration"


def return_words(value: float, end: int) -> str:
    """Return a lesson's return; a demonstration without rewards has none."""
    return number(value) if end or value else "-"


def short(steps: float) -> str:
    """Return a number of steps with three digits at most: 41k, 1.2M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if steps >= size:
            return f"{steps / size:.{1 if steps < 10 * size else 0}f}".removesuffix(".0") + unit
    return f"{steps:.0f}"


def number(value: float) -> str:
    """Return a return with as many digits as matter."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
