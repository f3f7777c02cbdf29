"""The paper's Figure 1: one update step, against the first principal component of the states."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from imel.pictures.nearby import Array
from imel.pictures.surface import (
    OLD,
    POLICY,
    draw_improvements,
    draw_policy_line,
    scale_actions,
    symbol_of,
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
    span: tuple[float, float] = (-1.0, 1.0)


def update_figure(step: UpdateStep) -> Figure:
    """Draw the old policy, the improvement of each experience, and the new policy."""
    figure = Figure(figsize=(9.5, 5.8), layout="constrained")
    axes = figure.subplots()
    count = len(step.positions)
    shown = np.random.default_rng(0).permutation(count)[:_MOST_ARROWS]
    x, old, improved = (
        column[shown] for column in (step.positions, step.old_means, step.improved_means)
    )
    symbol = symbol_of(step.span)
    draw_improvements(axes, x, old, improved, f"improvement {symbol} → {symbol}*")
    low, high = np.percentile(step.positions, [0.5, 99.5])
    places = np.linspace(low, high, 160)
    for means, name in ((step.old_means, f"old policy {symbol}"), (step.new_means, "new policy")):
        of_old = means is step.old_means
        axes.scatter(
            x,
            means[shown],
            s=9,
            color=OLD if of_old else POLICY,
            alpha=0.55,
            linewidths=0,
            zorder=3,
            label=f"{name} at a state",
        )
        draw_policy_line(
            axes, step.positions, means, places, f"{name}, mean near there", old=of_old
        )
    values = np.concatenate([old, improved, step.new_means])
    scale_actions(axes, values, step.action_label, step.span)
    axes.set_xlim(low, high)
    axes.set_xlabel(step.axis_label)
    axes.set_title(textwrap.fill(step.title, _TITLE_WIDTH), fontsize=11)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
