"""The paper's Figure 1: one update step, against the first principal component of the states."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from imel.pictures.nearby import Array, summarise_near
from imel.pictures.surface import (
    LOWERED,
    OLD,
    POLICY,
    RAISED,
    REACH,
    draw_arrows,
    scale_actions,
)

_MOST_ARROWS, _TITLE_WIDTH = 250, 90


@dataclass(frozen=True)
class UpdateStep:
    """One batch of experience, before and after it was learned from; one action dimension."""

    title: str
    axis_label: str
    action_label: str
    positions: Array  # [T] of the batch's states
    old_means: Array  # [T] mu: the old policy, which acted
    improved_means: Array  # [T] mu*
    new_means: Array  # [T] the new policy at the same states


def update_figure(step: UpdateStep) -> Figure:
    """Old policy, the improvement of each experience, and the new policy made of them."""
    figure = Figure(figsize=(9.5, 5.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    count = len(step.positions)
    shown = np.random.default_rng(0).permutation(count)[:_MOST_ARROWS]
    x, old, improved = (
        column[shown] for column in (step.positions, step.old_means, step.improved_means)
    )
    raised = improved > old
    for chosen, colour, label in ((raised, RAISED, "raised"), (~raised, LOWERED, "lowered")):
        draw_arrows(
            axes,
            *(column[chosen] for column in (x, old, improved)),
            color=colour,
            alpha=0.5,
            label=f"improvement μ → μ*, {label}",
        )
    low, high = np.percentile(step.positions, [0.5, 99.5])
    places = np.linspace(low, high, 160)
    for means, colour, style, name in (
        (step.old_means, OLD, "--", "old policy μ"),
        (step.new_means, POLICY, "-", "new policy"),
    ):
        axes.scatter(
            x,
            means[shown],
            s=9,
            color=colour,
            alpha=0.55,
            linewidths=0,
            zorder=3,
            label=f"{name} at a state",
        )
        line = summarise_near(step.positions, means, places, REACH, (10.0, 90.0))
        axes.plot(
            line.places,
            line.mean,
            color=colour,
            linestyle=style,
            linewidth=2.4,
            zorder=4,
            label=f"{name}, mean near there",
        )
    scale_actions(axes, np.concatenate([old, improved, step.new_means]))
    axes.set_xlim(low, high)
    axes.set_xlabel(step.axis_label)
    axes.set_ylabel(f"{step.action_label} (logarithmic beyond [-1, 1])")
    axes.set_title(textwrap.fill(step.title, _TITLE_WIDTH), fontsize=11)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
