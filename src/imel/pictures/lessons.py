"""Pictures of `imel lessons`: when the policy was taught, and what its lessons are worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import EngFormatter, PercentFormatter
from numpy.typing import NDArray

from imel.pictures.nearby import draw_episodes, quiet_axes
from imel.runs.evaluation import Deletion, Removal

Array = NDArray[Any]

_CURVE, _LESSON, _LARGEST, _RANDOM = "#2166ac", "#8a8a8a", "#d6604d", "#2166ac"
_SIMILAR, _HELPS = "#e08214", "#1b7837"
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
    worth: Array | None = None  # [L] what each is worth to the return, to first order
    errors: Array | None = None  # [L] its standard error


def lessons_figure(history: LessonHistory) -> Figure:
    """Draw the returns of episodes over the run, and below them the sizes of their lessons."""
    judged = history.worth is not None
    figure = Figure(figsize=(9, 7.5 if judged else 6), layout="constrained")
    heights = [3, 2, 2] if judged else [3, 2]
    above, middle, *rest = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    below = rest[0] if rest else middle
    above.set_title(history.title, fontsize=13)
    largest = np.argsort(-history.sizes, kind="stable")[:_MARKED]
    _draw_returns(above, history, largest)
    _draw_sizes(middle, history, largest)
    if rest:
        _draw_worth(below, history)
    for axes in (above, middle, *rest):
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
    # Those that taught in the last rollout may be running still: their returns are not whole
    whole = history.ends < history.ends.max()
    whole = whole if whole.any() else ~whole
    draw_episodes(axes, ends[whole], history.returns[whole], _CURVE, "episodes")
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


def _draw_worth(axes: Axes, history: LessonHistory) -> None:
    """Draw what lessons are worth: in colour where that is more than two standard errors."""
    assert history.worth is not None
    assert history.errors is not None
    ends, scores = spread(history.ends), history.worth / np.maximum(history.errors, 1e-30)
    for chosen, colour, label in (
        (np.abs(scores) <= 2.0, _LESSON, None),
        (scores > 2.0, _HELPS, "helps (two standard errors)"),
        (scores < -2.0, _LARGEST, "harms"),
    ):
        if chosen.any():
            axes.errorbar(
                ends[chosen],
                history.worth[chosen],
                yerr=history.errors[chosen],
                fmt="o",
                markersize=3,
                linewidth=0.8,
                color=colour,
                label=label,
            )
    axes.axhline(0.0, color=_LESSON, linewidth=0.8)
    axes.set_ylabel("worth to the return\n(± standard error)")


def deletion_figure(title: str, whole: Array, deletions: Sequence[Deletion]) -> Figure:
    """Draw return and change of the action against the share of lessons taken back."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    figure.suptitle(title, fontsize=13)
    shares = [0.0, *(each.share for each in deletions)]
    for kind, colour, label in (
        ("random", _RANDOM, "as many at random"),
        ("similar", _SIMILAR, "of the episodes most alike"),
        ("largest", _LARGEST, "the largest shares of the policy"),
    ):
        removals: list[Removal] = [getattr(each, kind) for each in deletions]
        played = [whole, *(removal.returns for removal in removals)]
        means = [float(returns.mean()) for returns in played]
        errors = [float(returns.std() / max(1, len(returns) - 1) ** 0.5) for returns in played]
        style = {"color": colour, "marker": "o", "linewidth": 2, "label": label}
        left.errorbar(shares, means, yerr=errors, capsize=4, **style)
        right.plot(shares, [0.0, *(removal.shift for removal in removals)], **style)
    left.set_ylabel("deterministic return (mean, standard error)")
    right.set_ylabel("change of the action (root mean square)")
    for axes in (left, right):
        axes.set_xlabel("lessons taken back")
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xticks(shares[1:])
        quiet_axes(axes)
    right.legend(fontsize=9)
    return figure
