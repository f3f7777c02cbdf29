"""Figures of a report: learning curves, a panel a task; scores over all tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from imel.pictures.style import quiet_axes
from imel.report.labels import Styles, algorithm_name, legend_handles, short_steps, styles
from imel.report.results import (
    MEASURES,
    FinishedRun,
    Group,
    Results,
    Scores,
    TaskResults,
    overall,
    panel_title,
    run_together,
)
from imel.report.statistics import Array, bootstrap, interquartile_mean

_POINTS = 50  # steps at which runs are compared; as many as the bench stores rows of a run
_PAPER_BAND = (20.0, 80.0)
_LETTERS_PER_INCH = 10.5  # of a figure's title
_LEGEND_INCHES = 2.0  # width of one entry of a figure's legend, about

_TITLES = {"evaluated": "deterministic return", "explored": "training return, last 10 % of steps"}
_GREY = "#8c8c8c"


def mean_and_percentiles(values: Array) -> Array:
    """Mean and 20th and 80th percentile over seeds, as in the paper's figures."""
    return np.stack([values.mean(axis=-1), *np.percentile(values, _PAPER_BAND, axis=-1)])


def mean_and_interval(values: Array) -> Array:
    """Interquartile mean over seeds and its bootstrap interval."""
    return bootstrap(interquartile_mean, [values])


@dataclass(frozen=True)
class CurveKind:
    """What a figure of learning curves shows."""

    caption: str
    curve: str  # of a finished run: [k, 2] step and return
    summary: Callable[[Array], Array] = mean_and_interval  # [P, n] to [3, P]: middle, low, high
    timed: bool = False  # whether returns are drawn against processor seconds instead of steps


_INTERVAL = "interquartile mean over seeds, 95 % bootstrap interval"
_BAND = "mean over seeds, band from the 20th to the 80th percentile"
_TIMES = "deterministic return against processor time on one core: steps at the mean speed of a run"
PAPER = CurveKind(f"training return while exploring: {_BAND}", "training", mean_and_percentiles)
TRAINING = CurveKind(f"training return while exploring: {_INTERVAL}", "training")
EVALUATION = CurveKind(f"deterministic return: {_INTERVAL}", "evaluations")
COST = CurveKind(_TIMES, "evaluations", timed=True)


def align(curves: Sequence[Array], steps: int) -> tuple[Array, Array]:
    """Runs on one grid of steps, [P] and [P, n], interpolated from where all have a value on."""
    first = max(float(curve[0, 0]) for curve in curves)
    grid = np.linspace(0.0, steps, _POINTS + 1)
    grid = np.concatenate([[first], grid[grid > first]])
    return grid, np.stack([np.interp(grid, *curve.T) for curve in curves], axis=-1)


def line(runs: Sequence[FinishedRun], steps: int, kind: CurveKind) -> Array | None:
    """Steps, middle, low and high ends of one algorithm's curve; None where no run has a value."""
    curves = [curve for run in runs if len(curve := getattr(run, kind.curve))]
    if not curves:
        return None
    grid, values = align(curves, steps)
    return np.stack([grid, *kind.summary(values)])  # [4, P]


def seconds_per_step(groups: Sequence[Group]) -> list[float | None]:
    """Return the median processor seconds per step of each algorithm, None where it has no run.

    Of the runs beside one of the first algorithm, on the processor most algorithms, then runs, had.
    """
    beside = [[run for run, _ in run_together(group, groups[0])] for group in groups]

    def weight(kind: str | None) -> tuple[int, int, str]:
        counts = [sum(run.processor == kind for run in runs) for runs in beside]
        return sum(map(bool, counts)), sum(counts), kind or ""

    chosen = max({run.processor for runs in beside for run in runs}, key=weight)
    found: list[float | None] = []
    for runs in beside:
        timed = [
            (run.cpu_seconds, run.evaluations[-1, 0]) for run in runs if run.processor == chosen
        ]
        speeds = [seconds / steps for seconds, steps in timed if seconds and steps]
        found.append(float(np.median(speeds)) if speeds else None)
    return found


def curves_figure(results: Results, labels: Sequence[str], kind: CurveKind) -> Figure:
    """A panel for each task on which one of the algorithms was run."""
    tasks = [task for task in results.tasks if task.of(labels)]
    columns = {0: 1, 1: 1, 2: 2, 3: 3, 4: 2, 5: 3, 6: 3}.get(len(tasks), 4)
    rows = math.ceil(len(tasks) / columns)
    width = max(3.5 * columns, 6.0)
    figure = Figure(figsize=(width, 2.7 * rows + 1.0), layout="constrained")
    fits = len(kind.caption) < _LETTERS_PER_INCH * width
    figure.suptitle(kind.caption if fits else kind.caption.replace(": ", ":\n"), fontsize=11)
    style, drawn = styles(results.labels), set()
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in panels[len(tasks) :]:
        axes.set_visible(False)
    for place, (axes, task) in enumerate(zip(panels, tasks, strict=False)):
        drawn |= _draw_panel(axes, task, labels, kind, style)
        axes.set_title(panel_title(results, task), fontsize=10)
        if place % columns == 0:
            axes.set_ylabel("return")
        if place + columns >= len(tasks):
            axes.set_xlabel("processor seconds" if kind.timed else "environment steps")
    shown = [label for label in labels if label in drawn]
    # As few rows as fit, all about equally long; a legend without entries has a column as well
    lines = math.ceil(max(len(shown), 1) * _LEGEND_INCHES / width)
    entries = {"handles": legend_handles(shown, style), "ncols": math.ceil(len(shown) / lines) or 1}
    figure.legend(loc="outside lower center", **entries)
    return figure


def _draw_panel(
    axes: Axes, task: TaskResults, labels: Sequence[str], kind: CurveKind, style: Styles
) -> set[str]:
    """Draw the curves of a task; the labels of those there are."""
    if kind.timed:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0.0, task.steps)
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_steps(value)))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.tick_params(labelsize=8.5)
    quiet_axes(axes)
    groups, drawn = task.of(labels), set()
    units = seconds_per_step(groups) if kind.timed else [1.0] * len(groups)
    for group, unit in zip(groups, units, strict=True):
        shown = line(group.runs, task.steps, kind)
        if shown is None or unit is None:
            continue
        steps, middle, low, high = shown
        colour, dashes = style[group.label]
        axes.fill_between(unit * steps, low, high, color=colour, alpha=0.16, linewidth=0)
        looks = {"linestyle": dashes, "linewidth": 1.8, "marker": "o" if len(steps) == 1 else None}
        axes.plot(unit * steps, middle, color=colour, label=group.label, **looks)
        drawn.add(group.label)
    if not drawn:
        axes.text(0.5, 0.5, "no episode has ended", transform=axes.transAxes, ha="center")
    return drawn


# --- over all tasks ---


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
            colour, fewer = style[label][0], tasks < len(scores)
            inside, hollow = "white" if fewer else colour, hollow or fewer
            (band,) = axes.plot([score.low, score.high], [place, place], color=colour, alpha=0.35)
            band.set(linewidth=7, solid_capstyle="butt")
            axes.plot(score.value, place, "o", color=colour, markerfacecolor=inside, markersize=6)
        for level in (0.0, 1.0):
            axes.axvline(level, color=_GREY, linewidth=0.9, linestyle=(0, (4, 4)), zorder=0)
        axes.tick_params(labelsize=9)
        quiet_axes(axes)
        axes.set_title(_TITLES[measure], fontsize=10)
        axes.set_xlabel(f"normalised score (0 random, 1 {algorithm_name(reference)})")
    left = figure.axes[0]
    left.set_yticks(range(len(labels)), [algorithm_name(label) for label in labels])
    left.set_ylim(len(labels) - 0.5, -0.5)
    figure.suptitle(f"{title}\n(hollow: over fewer tasks)" if hollow else title, fontsize=11)
    return figure
