"""Figures over all tasks: normalised scores, performance profiles, and what variants change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from imel.pictures.style import quiet_axes
from imel.report.names import Styles, algorithm_name, legend_handles, styles
from imel.report.results import Results
from imel.report.scores import Scale, overall, overall_difference, profile, strata

_TITLES = {"evaluated": "deterministic return", "explored": "training return, last 10 % of steps"}
_THRESHOLDS = 100
_FARTHEST = 3.0
"""A profile is drawn up to this multiple of the reference, if any score goes so far."""
_GREY = "#8c8c8c"
_WORSE, _BETTER = "#b2182b", "#2166ac"


def scores_figure(
    results: Results, measures: Sequence[Sequence[Scale]], labels: Sequence[str], reference: str
) -> Figure:
    """Interquartile means of normalised scores, one panel a measure; hollow over fewer tasks."""
    measures = [chosen for chosen in measures if chosen]
    height = 0.34 * len(labels) + 1.4
    figure = Figure(figsize=(4.6 * len(measures), height), layout="constrained")
    title = "interquartile mean over runs, tasks counted alike, 95 % bootstrap interval"
    found = [(overall(chosen, label), len(chosen)) for chosen in measures for label in labels]
    if any(one is not None and one[1] < most for one, most in found):
        title += "\n(hollow: over fewer tasks)"
    figure.suptitle(title, fontsize=11)
    panels = figure.subplots(1, len(measures), squeeze=False, sharey=True).flat
    style = styles(results.labels)
    for axes, chosen in zip(panels, measures, strict=True):
        _draw_scores(axes, chosen, labels, style)
        axes.set_title(_TITLES[chosen[0].measure], fontsize=10)
        axes.set_xlabel(_score_label(reference))
    left = figure.axes[0]
    left.set_yticks(range(len(labels)), [algorithm_name(label) for label in labels])
    left.set_ylim(len(labels) - 0.5, -0.5)
    return figure


def _draw_scores(axes: Axes, chosen: Sequence[Scale], labels: Sequence[str], style: Styles) -> None:
    for place, label in enumerate(labels):
        found = overall(chosen, label)
        if found is None:
            continue
        score, tasks = found
        colour, _ = style[label]
        axes.plot(
            [score.low, score.high],
            [place, place],
            color=colour,
            linewidth=7,
            alpha=0.35,
            solid_capstyle="butt",
        )
        inside = colour if tasks == len(chosen) else "white"
        axes.plot(score.value, place, "o", color=colour, markerfacecolor=inside, markersize=6)
    _mark_levels(axes)


def profile_figure(
    results: Results, chosen: Sequence[Scale], labels: Sequence[str], reference: str
) -> Figure:
    """The share of runs whose score is above each threshold."""
    figure = Figure(figsize=(7.2, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.set_title("performance profile: deterministic return of every task and seed", fontsize=11)
    axes.set_xlabel(f"{_score_label(reference)}, τ")
    axes.set_ylabel("share of runs with a score above τ")
    style = styles(results.labels)
    reach = max(float(scores.max()) for label in labels for scores in strata(chosen, label))
    thresholds = np.linspace(0.0, min(max(1.05 * reach, 1.1), _FARTHEST), _THRESHOLDS)
    shown = [label for label in labels if overall(chosen, label) is not None]
    for label in shown:
        share, low, high = profile(chosen, label, thresholds)
        colour, dashes = style[label]
        axes.fill_between(thresholds, low, high, color=colour, alpha=0.12, linewidth=0, step="post")
        axes.step(thresholds, share, where="post", color=colour, linestyle=dashes, linewidth=1.8)
    axes.set_xlim(0.0, thresholds[-1])
    axes.set_ylim(0.0, 1.02)
    _mark_levels(axes)
    figure.legend(handles=legend_handles(shown, style), loc="outside lower center", ncols=3)
    return figure


def ablation_figure(chosen: Sequence[Scale], base: str, variants: Sequence[str]) -> Figure:
    """By how much each variant's score differs from its base's, over all tasks and on each."""
    panels = {"all tasks": chosen} | {scale.task.task: [scale] for scale in chosen}
    size = (1.5 * len(panels) + 1.6, 0.28 * len(variants) + 1.5)
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(
        f"score less that of {algorithm_name(base)} (0 random, 1 {algorithm_name(base)}), "
        "95 % interval; in colour where it excludes zero",
        fontsize=11,
    )
    every = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True).flat
    for axes, (title, compared) in zip(every, panels.items(), strict=True):
        axes.set_title(title, fontsize=9)
        _draw_changes(axes, compared, base, variants)
    left = figure.axes[0]
    left.set_yticks(range(len(variants)), [algorithm_name(label) for label in variants])
    left.set_ylim(len(variants) - 0.5, -0.5)
    reach = max(float(np.abs(axes.dataLim.intervalx).max()) for axes in figure.axes)
    left.set_xlim(-1.05 * max(reach, 0.1), 1.05 * max(reach, 0.1))
    return figure


def _draw_changes(
    axes: Axes, compared: Sequence[Scale], base: str, variants: Sequence[str]
) -> None:
    for place, label in enumerate(variants):
        change = overall_difference(compared, label, base)
        if change is None:
            continue
        colour = "black"
        if change.excludes(0.0):
            colour = _BETTER if change.value > 0.0 else _WORSE
        axes.plot([change.low, change.high], [place, place], color=colour, linewidth=1.6, alpha=0.7)
        axes.plot(change.value, place, "o", color=colour, markersize=4.5)
    _mark_levels(axes, [0.0])


def _mark_levels(axes: Axes, levels: Sequence[float] = (0.0, 1.0)) -> None:
    for level in levels:
        axes.axvline(level, color=_GREY, linewidth=0.9, linestyle=(0, (4, 4)), zorder=0)
    axes.tick_params(labelsize=9)
    quiet_axes(axes)


def _score_label(reference: str) -> str:
    return f"normalised score (0 random, 1 {algorithm_name(reference)})"
