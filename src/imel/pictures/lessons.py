"""Pictures of `imel lessons`: when the policy was taught, and what its lessons are worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import EngFormatter, PercentFormatter
from numpy.typing import NDArray

from imel.pictures.nearby import draw_episodes, quiet_axes

Array = NDArray[Any]

_CURVE, _LESSON, _LARGEST, _RANDOM = "#2166ac", "#8a8a8a", "#d6604d", "#2166ac"
_MARKED, _CROWDED = 5, 0.05
"""Lessons marked; a label is on the left if another one follows within this share of the run."""


@dataclass(frozen=True)
class LessonHistory:
    """The lessons of a run in the order in which they began."""

    title: str
    episodes: Array  # [L]
    counts: Array  # [L]
    starts: Array  # [L] environment steps
    ends: Array  # [L]
    returns: Array  # [L] of an episode on average
    sizes: Array  # [L] what each adds to the action, root mean square


@dataclass(frozen=True)
class Deletion:
    """The deterministic return without a share of the lessons."""

    share: float
    count: int
    largest: Array  # [episodes] returns without the largest lessons
    random: Array  # [draws] mean returns without as many at random, for several draws


def lessons_figure(history: LessonHistory) -> Figure:
    """Draw the returns of episodes over the run, and below them the sizes of their lessons."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    above.set_title(history.title, fontsize=13)
    largest = np.argsort(-history.sizes, kind="stable")[:_MARKED]
    _draw_returns(above, history, largest)
    _draw_sizes(below, history, largest)
    for axes in (above, below):
        quiet_axes(axes)
    below.xaxis.set_major_formatter(EngFormatter(sep=""))
    below.set_xlabel("environment steps")
    below.set_xlim(0.0, 1.02 * float(history.ends.max()))
    figure.legend(loc="outside lower center", ncols=4, fontsize=9)
    return figure


def spread(ends: Array) -> Array:
    """Return places for episodes that ended in the same rollout: evenly over it, in order."""
    steps, member, counts = np.unique(ends, return_inverse=True, return_counts=True)
    gaps = np.diff(steps, prepend=0)
    order = np.argsort(member, kind="stable")
    rank = np.empty(len(ends))
    firsts = np.cumsum(counts) - counts
    rank[order] = np.arange(len(ends)) - firsts[member[order]] + 1
    return np.asarray(steps[member] - gaps[member] * (1.0 - rank / counts[member]))


def _draw_returns(axes: Axes, history: LessonHistory, largest: Array) -> None:
    ends = spread(history.ends)
    draw_episodes(axes, ends, history.returns, _CURVE, "episodes")
    axes.scatter(
        ends[largest],
        history.returns[largest],
        s=42,
        color=_LARGEST,
        edgecolors="white",
        linewidths=0.8,
        zorder=4,
        label=f"the {len(largest)} largest lessons",
    )
    axes.set_ylabel("return of the episode")


def _draw_sizes(axes: Axes, history: LessonHistory, largest: Array) -> None:
    colours = np.full(len(history.sizes), _LESSON, dtype=object)
    colours[largest] = _LARGEST
    widths = np.where(np.isin(np.arange(len(history.sizes)), largest), 2.2, 1.0)
    ends = spread(history.ends)
    axes.vlines(ends, 0.0, history.sizes, colors=list(colours), linewidths=list(widths))
    top = float(history.sizes.max()) or 1.0
    for i in largest:
        ahead = ends[largest] - ends[i]
        crowded = bool(((ahead > 0) & (ahead < _CROWDED * ends.max())).any())
        axes.annotate(
            f"{history.episodes[i]}",
            (ends[i], history.sizes[i]),
            xytext=(-3 if crowded else 3, 1),
            ha="right" if crowded else "left",
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
            textcoords="offset points",
            fontsize=8,
            color=_LARGEST,
        )
    axes.set_ylim(0.0, 1.1 * top)
    axes.set_ylabel("size of the lesson\n(what it adds to the action)")


def deletion_figure(title: str, whole: Array, deletions: Sequence[Deletion]) -> Figure:
    """Draw the return against the share of lessons taken back: the largest, and random ones."""
    figure = Figure(figsize=(7.5, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_title(title, fontsize=13)
    shares = [0.0, *(each.share for each in deletions)]
    for name, colour, label in (
        ("random", _RANDOM, "as many at random"),
        ("largest", _LARGEST, "the largest lessons"),
    ):
        played = [whole, *(getattr(each, name) for each in deletions)]
        means = [float(returns.mean()) for returns in played]
        errors = [float(returns.std() / max(1, len(returns) - 1) ** 0.5) for returns in played]
        axes.errorbar(
            shares,
            means,
            yerr=errors,
            color=colour,
            marker="o",
            capsize=4,
            linewidth=2,
            label=label,
        )
    axes.set_xlabel("lessons taken back")
    axes.set_ylabel("deterministic return (mean, standard error)")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xticks(shares)
    quiet_axes(axes)
    axes.legend(fontsize=9)
    return figure
