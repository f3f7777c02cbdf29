"""Pictures of a policy: a map over a plane of states, an update, the map over training as a GIF."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.animation import PillowWriter
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from imel.pictures import style
from imel.pictures.style import Array, Keywords, styled

_MOST_SHOWN, _MOST_ARROWS = 300, 40
"""Experiences drawn at most, and arrows beside a map."""
_TITLE_WIDTH = 90
_TICKS = (0, 0.5, 1, 2, 5, 10, 20, 50)
_RANGE = " (its range is [-1, 1])"
_SHARE = 0.1
"""Of all states: over so many a policy's line averages."""
_GIF_DOTS_PER_INCH, _FRAMES_PER_SECOND, _LAST = 90, 4, 5
"""The last frame of an animation is shown so many times more."""


@dataclass(frozen=True, kw_only=True)
class UpdateStep:
    """Experiences, before and after a policy learned from them; one dimension of the action.

    Means are in policy units; where actions are discrete, they are probabilities of one option.
    """

    title: str
    axis_labels: tuple[str, str]
    action_label: str
    positions: Array  # [N, 2] the experiences' states on a plane
    old_means: Array  # [N] mu: the mean that was improved
    improved_means: Array  # [N] mu*
    policy_means: Array  # [N] of the policy that learned from them
    span: tuple[float, float] = (-1.0, 1.0)
    """The range of actions, or of probabilities."""
    dimension: int = 0
    """The dimension of the action, or the option."""

    @property
    def symbol(self) -> str:
        """The letter of what is shown: a probability or a mean."""
        return "p" if self.span == (0.0, 1.0) else "μ"

    def shown(self) -> Array:
        """Return the rows that are drawn: all, or a sample of them that is always the same."""
        count, draws = len(self.positions), np.random.default_rng(0)
        return np.sort(draws.choice(count, min(count, _MOST_SHOWN), replace=False))


@styled
def update_figure(step: UpdateStep) -> Figure:
    """Draw the old policy, the improvement of each experience, and the new policy."""
    figure = Figure(figsize=(9.5, 5.8))
    axes = figure.subplots()
    axes.set_title(textwrap.fill(step.title, _TITLE_WIDTH))
    _draw_update(axes, step, _MOST_SHOWN)
    figure.legend(loc=style.BELOW, ncols=3)
    return figure


def _draw_update(axes: Axes, step: UpdateStep, arrows: int) -> None:
    """Draw two policies, their means near each place, and arrows of the largest changes."""
    x, rows, symbol = step.positions[:, 0], step.shown(), step.symbol
    changes = step.improved_means - step.old_means
    largest = rows[np.argsort(-np.abs(changes[rows]), kind="stable")[:arrows]]
    raised, lowered = (1, "^", style.RED, "raised"), (-1, "v", style.BLUE, "lowered")
    for sign, marker, colour, name in (raised, lowered):
        of = largest[sign * changes[largest] > 0]
        ends, faint = step.improved_means[of], Keywords(color=colour, alpha=0.6)
        label = f"{symbol} → {symbol}*, {name}"
        axes.vlines(x[of], step.old_means[of], ends, linewidth=0.9, label=label, **faint)
        axes.scatter(x[of], ends, s=7, linewidths=0, marker=marker, **faint)
    dots, wide = Keywords(s=10, alpha=0.6, linewidths=0, zorder=3), Keywords(lw=2.3, zorder=4)
    for means, name, colour, dashes in (
        (step.old_means, f"old policy {symbol}", style.GREY, "--"),
        (step.policy_means, "new policy", style.BLACK, "-"),
    ):
        axes.scatter(x[rows], means[rows], color=colour, label=f"{name} at a state", **dots)
        near, label = style.summarise_near(x, means, _SHARE), f"{name}, mean near there"
        axes.plot(near.places, near.mean, dashes, color=colour, label=label, **wide)
    axes.set(xlabel=step.axis_labels[0], xlim=np.percentile(x, [0.5, 99.5]))
    _scale_actions(axes, step)


def _scale_actions(axes: Axes, step: UpdateStep) -> None:
    """Scale the axis: the action range linear, means beyond it, that are clipped, logarithmic."""
    if step.symbol == "p":
        axes.set(ylim=(-0.03, 1.03), ylabel=step.action_label)
        return
    axes.set_yscale("symlog", linthresh=1.0, linscale=2.0)
    ticks = [*(-tick for tick in _TICKS[:0:-1]), *_TICKS]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    rows = step.shown()
    values = [step.old_means[rows], step.improved_means[rows], step.policy_means]
    low, high = np.percentile(np.concatenate(values), [1.0, 99.0])
    axes.set_ylim(min(1.4 * low, -1.15), max(1.4 * high, 1.15))
    axes.set_ylabel(f"{step.action_label} (logarithmic beyond [-1, 1])")
    for bound in step.span:
        axes.axhline(bound, color=style.GREY, linewidth=0.8, linestyle=(0, (4, 4)), zorder=0)


@dataclass(frozen=True, kw_only=True)
class PolicySurface(UpdateStep):
    """A policy's mean over a plane, and its memories as the experiences it learned from."""

    x: Array  # [X] coordinates of the map's columns
    y: Array  # [Y] coordinates of the map's rows
    means: Array  # [Y, X] the policy's mean on the plane


@styled
def surface_figure(surface: PolicySurface) -> Figure:
    """Draw the map and the update side by side."""
    figure = Figure(figsize=(13, 5.8))
    figure.suptitle(surface.title)
    left, right = figure.subplots(1, 2)
    improved = "probability p*" if surface.symbol == "p" else "mean μ*"
    left.set_title(f"the policy, and memories coloured by their improved {improved}")
    _draw_map(left, surface)
    right.set_title("the memories' improvement, and the policy made of it")
    _draw_update(right, surface, _MOST_ARROWS)
    figure.legend(loc=style.BELOW, ncols=6)
    return figure


def _draw_map(axes: Axes, surface: PolicySurface, bar: bool = True) -> None:
    """Draw the policy over the plane and its memories, with or without a colour bar."""
    colours: Keywords = {"cmap": "coolwarm", "norm": Normalize(*surface.span), "rasterized": True}
    grid = surface.x, surface.y, surface.means
    image = axes.pcolormesh(*grid, shading="gouraud", **colours)
    rows = surface.shown()
    (x, y), improved = surface.positions[rows].T, surface.improved_means[rows]
    axes.scatter(x, y, 16, improved, edgecolors="black", linewidths=0.5, zorder=3, **colours)
    axes.grid(False)
    axes.spines[:].set_visible(True)
    axes.set(xlim=surface.x[[0, -1]], ylim=surface.y[[0, -1]])
    axes.set(xlabel=surface.axis_labels[0], ylabel=surface.axis_labels[1])
    if bar:
        note, extend = ("", "neither") if surface.symbol == "p" else (_RANGE, "both")
        label = surface.action_label + note
        axes.figure.colorbar(image, ax=axes, label=label, extend=extend)


@styled
def save_animation(surfaces: Sequence[PolicySurface], path: Path) -> None:
    """Write maps with the same axes as the frames of a GIF; each has its own title."""
    figure = Figure(figsize=(7.2, 5.4))
    axes = figure.subplots()
    _draw_map(axes, surfaces[-1])
    # Laid out once, with the longest title: frames must not jump
    axes.set_title(max((surface.title for surface in surfaces), key=len))
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    writer = PillowWriter(fps=_FRAMES_PER_SECOND)
    with writer.saving(figure, path, _GIF_DOTS_PER_INCH):
        for surface in [*surfaces, *[surfaces[-1]] * _LAST]:
            axes.clear()
            _draw_map(axes, surface, bar=False)
            axes.set_title(surface.title)
            writer.grab_frame()
