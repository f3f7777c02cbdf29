"""Figures over all tasks: normalised scores, performance profiles, and what variants change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from imel.pictures.nearby import quiet_axes
from imel.report.labels import algorithm_name, legend_handles, styles
from imel.report.results import Results
from imel.report.scores import MEASURES, Scores, overall, overall_difference, profile, strata

_TITLES = {"evaluated": "deterministic return", "explored": "training return, last 10 % of steps"}
_THRESHOLDS = 100
_FARTHEST = 3.0
"""A profile is drawn up to this multiple of the reference, if any score goes so far."""
_GREY = "#8c8c8c"
_WORSE, _BETTER = "#b2182b", "#2166ac"


def scores_figure(
    results: Results, measures: Sequence[Scores], labels: Sequence[str], reference: str
) -> Figure:
    """Interquartile means of normalised scores, one panel a measure; hollow over fewer tasks."""
    shown = [each for each in zip(MEASURES, measures, strict=True) if each[1]]
    size = (4.6 * len(shown), 0.34 * len(labels) + 1.4)
    figure, panels = _rows_of(labels, len(shown), size)
    title = "interquartile mean over runs, tasks counted alike, 95 % bootstrap interval"
    style, hollow = styles(results.labels), False
    for axes, (measure, scores) in zip(panels, shown, strict=True):
        for place, label in enumerate(labels):
            found = overall(scores, label)
            if found is None:
                continue
            score, tasks = found
            colour, inside = style[label][0], style[label][0]
            if tasks < len(scores):
                inside, hollow = "white", True
            (band,) = axes.plot([score.low, score.high], [place, place], color=colour, alpha=0.35)
            band.set(linewidth=7, solid_capstyle="butt")
            axes.plot(score.value, place, "o", color=colour, markerfacecolor=inside, markersize=6)
        _mark_levels(axes)
        axes.set_title(_TITLES[measure], fontsize=10)
        axes.set_xlabel(_score_label(reference))
    figure.suptitle(f"{title}\n(hollow: over fewer tasks)" if hollow else title, fontsize=11)
    return figure


def profile_figure(
    results: Results, scores: Scores, labels: Sequence[str], reference: str
) -> Figure:
    """The share of runs whose score is above each threshold."""
    figure = Figure(figsize=(7.2, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.set_title("performance profile: deterministic return of every task and seed", fontsize=11)
    axes.set_xlabel(f"{_score_label(reference)}, τ")
    axes.set_ylabel("share of runs with a score above τ")
    style = styles(results.labels)
    shown = [label for label in labels if strata(scores, label)]
    reach = max(float(each.max()) for label in shown for each in strata(scores, label))
    thresholds = np.linspace(0.0, min(max(1.05 * reach, 1.1), _FARTHEST), _THRESHOLDS)
    for label in shown:
        share, low, high = profile(scores, label, thresholds)
        colour, dashes = style[label]
        axes.fill_between(thresholds, low, high, color=colour, alpha=0.12, linewidth=0, step="post")
        axes.step(thresholds, share, where="post", color=colour, linestyle=dashes, linewidth=1.8)
    axes.set_xlim(0.0, thresholds[-1])
    axes.set_ylim(0.0, 1.02)
    _mark_levels(axes)
    figure.legend(handles=legend_handles(shown, style), loc="outside lower center", ncols=3)
    return figure


def ablation_figure(scores: Scores, base: str, variants: Sequence[str]) -> Figure:
    """By how much each variant's score differs from its base's, over all tasks and on each."""
    compared = [("all tasks", scores), *((task[0], {task: scores[task]}) for task in scores)]
    size = (1.5 * len(compared) + 1.6, 0.28 * len(variants) + 1.5)
    figure, panels = _rows_of(variants, len(compared), size, sharex=True)
    title = f"score less that of {algorithm_name(base)} (0 random, 1 {algorithm_name(base)})"
    figure.suptitle(f"{title}, 95 % interval; in colour where it excludes zero", fontsize=11)
    for axes, (title, part) in zip(panels, compared, strict=True):
        axes.set_title(title, fontsize=9)
        for place, label in enumerate(variants):
            change = overall_difference(part, label, base)
            if change is None:
                continue
            signed = _BETTER if change.value > 0.0 else _WORSE
            colour = signed if change.excludes(0.0) else "black"
            ends = [change.low, change.high]
            axes.plot(ends, [place, place], color=colour, linewidth=1.6, alpha=0.7)
            axes.plot(change.value, place, "o", color=colour, markersize=4.5)
        _mark_levels(axes, [0.0])
    reach = max(float(np.abs(axes.dataLim.intervalx).max()) for axes in figure.axes)
    figure.axes[0].set_xlim(-1.05 * max(reach, 0.1), 1.05 * max(reach, 0.1))
    return figure


def _rows_of(
    labels: Sequence[str], panels: int, size: tuple[float, float], sharex: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure of panels side by side, with a row for each label, the first on top."""
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(1, panels, squeeze=False, sharex=sharex, sharey=True).flat)
    axes[0].set_yticks(range(len(labels)), [algorithm_name(label) for label in labels])
    axes[0].set_ylim(len(labels) - 0.5, -0.5)
    return figure, axes


def _mark_levels(axes: Axes, levels: Sequence[float] = (0.0, 1.0)) -> None:
    for level in levels:
        axes.axvline(level, color=_GREY, linewidth=0.9, linestyle=(0, (4, 4)), zorder=0)
    axes.tick_params(labelsize=9)
    quiet_axes(axes)


def _score_label(reference: str) -> str:
    return f"normalised score (0 random, 1 {algorithm_name(reference)})"
