"""Figures over all tasks: normalised scores and performance profiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from imel.pictures.nearby import quiet_axes
from imel.report.labels import algorithm_name, legend_handles, styles
from imel.report.results import Results
from imel.report.scores import MEASURES, Scores, overall, profile, strata

_TITLES = {"evaluated": "deterministic return", "explored": "training return, last 10 % of steps"}
_THRESHOLDS = 100
_FARTHEST = 3.0
"""A profile is drawn up to this multiple of the reference, if any score goes so far."""
_GREY = "#8c8c8c"


def scores_figure(
    results: Results, measures: Sequence[Scores], labels: Sequence[str], reference: str
) -> Figure:
    """Interquartile means of normalised scores, one panel a measure; hollow over fewer tasks."""
    shown = [each for each in zip(MEASURES, measures, strict=True) if each[1]]
    size = (4.6 * len(shown), 0.34 * len(labels) + 1.4)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(shown), squeeze=False, sharey=True).flat
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
    left = figure.axes[0]
    left.set_yticks(range(len(labels)), [algorithm_name(label) for label in labels])
    left.set_ylim(len(labels) - 0.5, -0.5)
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


def _mark_levels(axes: Axes) -> None:
    for level in (0.0, 1.0):
        axes.axvline(level, color=_GREY, linewidth=0.9, linestyle=(0, (4, 4)), zorder=0)
    axes.tick_params(labelsize=9)
    quiet_axes(axes)


def _score_label(reference: str) -> str:
    return f"normalised score (0 random, 1 {algorithm_name(reference)})"
