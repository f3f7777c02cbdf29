"""Pictures of `imel lessons`: when the policy was taught, and what its lessons are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from imel.pictures.nearby import draw_episodes
from imel.pictures.style import BELOW, BLUE, GREEN, GREY, ORANGE, RED, Keywords, styled
from imel.runs.deletion import Deletion

Array = NDArray[Any]
Columns = Mapping[str, Array]
"""Lessons in the order in which they began: `episodes`, `counts`, `starts` and `ends` in steps of
the run, `returns` of an episode, `sizes`, and where they were judged `worth` and its `errors`."""

_MARKED = 5
"""The largest lessons, that are named."""


@styled
def lessons_figure(title: str, lessons: Columns) -> Figure:
    """Draw the returns of episodes over the run, and below them the sizes of their lessons."""
    judged = "worth" in lessons
    heights = [3, 2, 2] if judged else [3, 2]
    figure = Figure(figsize=(9, 7.5 if judged else 6))
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    ends = spread(lessons["ends"])
    largest = np.argsort(-lessons["sizes"], kind="stable")[:_MARKED]
    _draw_returns(panels[0], lessons, ends, largest)
    _draw_sizes(panels[1], lessons, ends, largest)
    if judged:
        _draw_worth(panels[2], lessons, ends)
    panels[0].set_title(title)
    panels[-1].set(xlabel="environment steps", xlim=(0.0, 1.02 * float(ends.max())))
    panels[-1].xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.legend(loc=BELOW, ncols=5)
    return figure


def spread(ends: Array) -> Array:
    """Return places for episodes that ended in the same rollout: evenly over it, in order."""
    steps, member = np.unique(ends, return_inverse=True)
    rollouts = pd.Series(member).groupby(member)
    passed = (rollouts.cumcount() + 1) / rollouts.transform("size")
    return np.asarray(ends - np.diff(steps, prepend=0)[member] * (1.0 - passed.to_numpy()))


def _draw_returns(axes: Axes, lessons: Columns, ends: Array, largest: Array) -> None:
    # Those that taught in the last rollout may be running still: their returns are not whole
    whole = lessons["ends"] < lessons["ends"].max()
    whole = whole if whole.any() else ~whole
    draw_episodes(axes, ends[whole], lessons["returns"][whole], BLUE, "episodes")
    label = f"the {len(largest)} largest lessons"
    dots: Keywords = {"s": 42, "color": RED, "edgecolors": "white", "linewidths": 0.8, "zorder": 4}
    axes.scatter(ends[largest], lessons["returns"][largest], label=label, **dots)
    axes.set_ylabel("return of the episode")


def _draw_sizes(axes: Axes, lessons: Columns, ends: Array, largest: Array) -> None:
    sizes = lessons["sizes"]
    axes.vlines(ends, 0.0, sizes, colors=GREY, linewidths=1.0)
    axes.vlines(ends[largest], 0.0, sizes[largest], colors=RED, linewidths=2.2)
    for i in largest:
        place: Keywords = {"rotation": 90, "ha": "center", "va": "bottom"}
        text = f" {lessons['episodes'][i]}"
        axes.text(ends[i], sizes[i], text, color=RED, fontsize=8, **place)
    axes.set_ylim(0.0, 1.25 * float(sizes.max()) or 1.0)
    axes.set_ylabel("size of the lesson\n(what it adds to the action)")


def _draw_worth(axes: Axes, lessons: Columns, ends: Array) -> None:
    """Draw what lessons are worth: in colour where that is more than two standard errors."""
    worth, errors = lessons["worth"], lessons["errors"]
    scores = worth / np.maximum(errors, 1e-30)
    for chosen, colour, label in (
        (np.abs(scores) <= 2.0, GREY, None),
        (scores > 2.0, GREEN, "helps (two standard errors)"),
        (scores < -2.0, RED, "harms"),
    ):
        if chosen.any():
            style: Keywords = {"fmt": "o", "markersize": 3, "linewidth": 0.8, "color": colour}
            axes.errorbar(ends[chosen], worth[chosen], errors[chosen], label=label, **style)
    axes.axhline(0.0, color=GREY, linewidth=0.8)
    axes.set_ylabel("worth to the return\n(± standard error)")


@styled
def deletion_figure(title: str, whole: Array, deletions: Sequence[Deletion]) -> Figure:
    """Draw return and change of the action against the share of lessons taken back."""
    figure = Figure(figsize=(11, 4.6))
    left, right = figure.subplots(1, 2)
    figure.suptitle(title)
    names = ["nothing", *(f"{each.share:.0%}" for each in deletions)]
    for kind, colour, label in (
        ("random", BLUE, "as many at random"),
        ("similar", ORANGE, "of the episodes most alike"),
        ("largest", RED, "the largest shares of the policy"),
    ):
        removals = [getattr(each, kind) for each in deletions]
        played = [whole, *(removal.returns for removal in removals)]
        means = [float(returns.mean()) for returns in played]
        errors = [float(returns.std() / max(1, len(returns) - 1) ** 0.5) for returns in played]
        style: Keywords = {"color": colour, "marker": "o", "linewidth": 2}
        left.errorbar(names, means, yerr=errors, capsize=4, label=label, **style)
        right.plot(names, [0.0, *(removal.shift for removal in removals)], **style)
    left.set_ylabel("deterministic return (mean, standard error)")
    right.set_ylabel("change of the action (root mean square)")
    for axes in (left, right):
        axes.set_xlabel("lessons taken back")
    figure.legend(loc=BELOW, ncols=3)
    return figure
