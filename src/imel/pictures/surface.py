"""The picture of a policy: its mean over a plane of states, and the memories it is made of.

Left the policy as a map; right an update step as in the paper's Figure 1, against one axis. Over
training the map is an animated GIF, from one checkpoint to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.animation import PillowWriter
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from numpy.typing import NDArray

from imel.pictures.nearby import Array, Summary, summarise_near

_MAP = "coolwarm"
_RAISED, _LOWERED, OLD, POLICY = "#b2182b", "#2166ac", "#8a8a8a", "#111111"
_MOST_SHOWN, _MOST_ARROWS = 300, 40
"""Memories drawn at most, and arrows: those of the largest changes."""
_ARROW_HEIGHT = 0.06
"""The arrow of a change by one policy unit, as a share of the map's height."""
_TICKS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
_GIF_DOTS_PER_INCH, _FRAMES_PER_SECOND = 90, 4
_LAST = 6
"""The last frame of an animation stays as long as this many."""
_REACH = 0.05
"""The policy's line averages over memories this near, as a share of their extent."""
_PROBABILITY = (0.0, 1.0)
"""The range of what is shown of discrete actions."""


@dataclass(frozen=True)
class PolicySurface:
    """A policy's mean over a plane and its memories, for one action dimension, in policy units."""

    title: str  # which run, and which action where there are several
    axis_labels: tuple[str, str]
    action_label: str
    x: Array  # [X] coordinates of the map's columns
    y: Array  # [Y] coordinates of the map's rows
    means: Array  # [Y, X] the policy's mean on the plane
    positions: Array  # [N, 2] the memories on the plane
    old_means: Array  # [N] mu: the mean that was improved
    improved_means: Array  # [N] mu*
    policy_means: Array  # [N] the policy's mean now, at each memory's own state
    span: tuple[float, float] = (-1.0, 1.0)
    """The range of actions, or of the probability that stands in a discrete action's place."""

    @property
    def colours(self) -> Normalize:
        """The range as colours."""
        return Normalize(*self.span)

    def shown(self) -> NDArray[np.intp]:
        """Rows that are drawn: all, or a sample of them that is always the same."""
        count = len(self.positions)
        if count <= _MOST_SHOWN:
            return np.arange(count)
        return np.sort(np.random.default_rng(0).choice(count, _MOST_SHOWN, replace=False))


def surface_figure(surface: PolicySurface) -> Figure:
    """Draw the map and the update side by side."""
    figure = Figure(figsize=(13, 5.8), layout="constrained")
    figure.suptitle(surface.title, fontsize=13)
    left, right = figure.subplots(1, 2)
    improved = "probability p*" if surface.span == _PROBABILITY else "mean μ*"
    left.set_title(f"the policy, and memories coloured by their improved {improved}", fontsize=11)
    _colour_bar(figure, left, draw_map(left, surface), surface)
    _draw_update(right, surface)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _colour_bar(figure: Figure, axes: Axes, image: QuadMesh, surface: PolicySurface) -> None:
    probability = surface.span == _PROBABILITY
    note = "" if probability else " (its range is [-1, 1])"
    extend = "neither" if probability else "both"
    figure.colorbar(image, ax=axes, label=f"{surface.action_label}{note}", extend=extend)


def draw_map(axes: Axes, surface: PolicySurface) -> QuadMesh:
    """Draw the policy over the plane and its memories; return the image for a colour bar."""
    image = axes.pcolormesh(
        surface.x,
        surface.y,
        surface.means,
        shading="gouraud",
        rasterized=True,
        cmap=_MAP,
        norm=surface.colours,
    )
    rows = surface.shown()
    x, y = surface.positions[rows].T
    change = (surface.improved_means - surface.old_means)[rows]
    height = (surface.y[-1] - surface.y[0]) * _ARROW_HEIGHT
    ends = y + np.clip(change, -2.0, 2.0) * height
    largest = np.argsort(-np.abs(change), kind="stable")[:_MOST_ARROWS]
    draw_arrows(axes, x[largest], y[largest], ends[largest], color="black", alpha=0.6)
    axes.scatter(
        x,
        y,
        c=surface.improved_means[rows],
        s=16,
        edgecolors="black",
        linewidths=0.5,
        cmap=_MAP,
        norm=surface.colours,
        zorder=3,
    )
    axes.set_xlim(surface.x[0], surface.x[-1])
    axes.set_ylim(surface.y[0], surface.y[-1])
    axes.set_xlabel(surface.axis_labels[0])
    axes.set_ylabel(surface.axis_labels[1])
    return image


def _draw_update(axes: Axes, surface: PolicySurface) -> None:
    rows = surface.shown()
    x = surface.positions[rows, 0]
    old, improved = surface.old_means[rows], surface.improved_means[rows]
    symbol = symbol_of(surface.span)
    largest = np.argsort(-np.abs(improved - old), kind="stable")[:_MOST_ARROWS]
    arrows = f"{symbol} → {symbol}*, the largest"
    draw_improvements(axes, x[largest], old[largest], improved[largest], arrows)
    axes.scatter(x, old, s=14, color=OLD, zorder=3, label=f"{symbol} at a memory")
    label = "new policy: mean and 10–90 % over the memories near there"
    line = draw_policy_line(axes, surface.positions[:, 0], surface.policy_means, surface.x, label)
    axes.fill_between(line.places, line.low, line.high, color=POLICY, alpha=0.13, linewidth=0)
    values = np.concatenate([old, improved, surface.policy_means])
    scale_actions(axes, values, surface.action_label, surface.span)
    axes.set_xlim(surface.x[0], surface.x[-1])
    axes.set_xlabel(surface.axis_labels[0])
    axes.set_title("the memories' improvement, and the policy made of it", fontsize=11)


def save_animation(surfaces: Sequence[PolicySurface], path: Path) -> None:
    """Write maps with the same axes as the frames of a GIF; each has its own title."""
    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    axes = figure.subplots()
    image = draw_map(axes, surfaces[-1])
    _colour_bar(figure, axes, image, surfaces[-1])
    # Laid out once, with the longest title: frames must not jump
    axes.set_title(max((surface.title for surface in surfaces), key=len), fontsize=11)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    writer = PillowWriter(fps=_FRAMES_PER_SECOND)
    with writer.saving(figure, path, _GIF_DOTS_PER_INCH):
        for number, surface in enumerate(surfaces):
            axes.clear()
            draw_map(axes, surface)
            axes.set_title(surface.title, fontsize=11)
            for _ in range(_LAST if number == len(surfaces) - 1 else 1):
                writer.grab_frame()


def symbol_of(span: tuple[float, float]) -> str:
    """Return the letter of what is shown: a probability or a mean."""
    return "p" if span == _PROBABILITY else "μ"


def draw_improvements(axes: Axes, x: Array, old: Array, improved: Array, label: str) -> None:
    """Draw arrows from mu to mu*; raised and lowered ones differ in colour."""
    raised = improved > old
    for chosen, colour, name in ((raised, _RAISED, "raised"), (~raised, _LOWERED, "lowered")):
        columns = (column[chosen] for column in (x, old, improved))
        draw_arrows(axes, *columns, color=colour, alpha=0.5, label=f"{label}, {name}")


def draw_policy_line(
    axes: Axes, x: Array, means: Array, places: Array, label: str, old: bool = False
) -> Summary:
    """Draw a policy's mean over the states near each place; return the summary."""
    line = summarise_near(x, means, places, _REACH, (10.0, 90.0))
    colour, style = (OLD, "--") if old else (POLICY, "-")
    axes.plot(
        line.places, line.mean, color=colour, linestyle=style, linewidth=2.3, zorder=4, label=label
    )
    return line


def draw_arrows(axes: Axes, x: Array, start: Array, end: Array, **style: Any) -> None:
    """Draw vertical lines with a head at their end, whatever the axis' scale."""
    axes.vlines(x, start, end, linewidth=0.9, **style)
    style.pop("label", None)
    for chosen, marker in ((end > start, "^"), (end < start, "v")):
        axes.scatter(x[chosen], end[chosen], marker=marker, s=7, linewidths=0, **style)


def scale_actions(axes: Axes, values: Array, label: str, span: tuple[float, float]) -> None:
    """Scale the axis: the action range linear, means beyond it logarithmic.

    Beyond the range actions are clipped and means no longer matter, but they may be far off. There
    are no probabilities beyond theirs.
    """
    if span == _PROBABILITY:
        axes.set_ylim(-0.03, 1.03)
        axes.set_ylabel(label)
        return
    axes.set_ylabel(f"{label} (logarithmic beyond [-1, 1])")
    axes.set_yscale("symlog", linthresh=1.0, linscale=2.0)
    low, high = np.percentile(values, [1.0, 99.0])
    axes.set_ylim(min(1.4 * low, -1.15), max(1.4 * high, 1.15))
    axes.yaxis.set_major_locator(FixedLocator([-tick for tick in _TICKS[:0:-1]] + [*_TICKS]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    for bound in (-1.0, 1.0):
        axes.axhline(bound, color=OLD, linewidth=0.8, linestyle=(0, (4, 4)), zorder=0)
