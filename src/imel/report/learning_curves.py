"""Learning curves of many runs as small multiples: one panel a task, one line an algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from imel.pictures.style import Array, quiet_axes
from imel.report.names import Styles, legend_handles, short_steps, styles
from imel.report.results import (
    FinishedRun,
    Group,
    Results,
    TaskResults,
    panel_title,
    run_together,
)
from imel.report.statistics import bootstrap, interquartile_mean

_POINTS = 50
"""Steps at which runs are compared; as many as the bench stores rows of a run."""
_PAPER_BAND = (20.0, 80.0)
_LETTERS_PER_INCH = 10.5
"""Of a figure's title."""
_LEGEND_INCHES = 2.0
"""Width of one entry of a figure's legend, about."""


@dataclass(frozen=True)
class CurveKind:
    """What a figure of learning curves shows."""

    caption: str
    curve: Callable[[FinishedRun], Array]  # [k, 2] step and return
    summary: Callable[[Array], Array]  # [P, n] to [3, P]: the middle, low and high ends
    timed: bool = False
    """Whether returns are drawn against processor seconds instead of steps."""


def mean_and_percentiles(values: Array) -> Array:
    """Mean and 20th and 80th percentile over seeds, as the paper's figures have them."""
    low, high = np.percentile(values, _PAPER_BAND, axis=-1)
    return np.stack([values.mean(axis=-1), low, high])


def mean_and_interval(values: Array) -> Array:
    """Interquartile mean over seeds and its bootstrap interval."""
    return bootstrap(interquartile_mean, [values])


PAPER = CurveKind(
    "training return while exploring: mean over seeds, band from the 20th to the 80th percentile",
    lambda run: run.training,
    mean_and_percentiles,
)
TRAINING = CurveKind(
    "training return while exploring: interquartile mean over seeds, 95 % bootstrap interval",
    lambda run: run.training,
    mean_and_interval,
)
EVALUATION = CurveKind(
    "deterministic return: interquartile mean over seeds, 95 % bootstrap interval",
    lambda run: run.evaluations,
    mean_and_interval,
)
COST = CurveKind(
    "deterministic return against processor time on one core: steps at the mean speed of a run",
    lambda run: run.evaluations,
    mean_and_interval,
    timed=True,
)


def align(curves: Sequence[Array], steps: int) -> tuple[Array, Array]:
    """Runs on one grid of steps, [P] and [P, n], by linear interpolation.

    The grid begins where every run has a value: before its first, a run's return is not known.
    After its last, that one holds.
    """
    first = max(float(curve[0, 0]) for curve in curves)
    grid = np.linspace(0.0, steps, _POINTS + 1)
    grid = np.concatenate([[first], grid[grid > first]])
    return grid, np.stack([np.interp(grid, *curve.T) for curve in curves], axis=-1)


def line(runs: Sequence[FinishedRun], steps: int, kind: CurveKind) -> Array | None:
    """Steps, middle, low and high ends of one algorithm's curve; None where no run has a value."""
    curves = [curve for run in runs if len(curve := kind.curve(run))]
    if not curves:
        return None
    grid, values = align(curves, steps)
    return np.stack([grid, *kind.summary(values)])  # [4, P]


def seconds_per_step(groups: Sequence[Group]) -> list[float | None]:
    """Return the processor seconds per step of each algorithm: the median over its runs.

    Only seeds that the first algorithm has on the same kind of processor count, and of these kinds
    only the one that most algorithms, then most runs, have. None for an algorithm without a run.
    """
    beside = [[run for run, _ in run_together(group, groups[0])] for group in groups]

    def weight(kind: str | None) -> tuple[int, int, str]:
        counts = [sum(run.processor == kind for run in runs) for runs in beside]
        return sum(map(bool, counts)), sum(counts), kind or ""

    chosen = max({run.processor for runs in beside for run in runs}, key=weight)
    found = [
        [
            run.cpu_seconds / run.evaluations[-1, 0]
            for run in runs
            if run.processor == chosen and run.cpu_seconds is not None
        ]
        for runs in beside
    ]
    return [float(np.median(values)) if values else None for values in found]


def curves_figure(results: Results, labels: Sequence[str], kind: CurveKind) -> Figure:
    """A panel for each task on which one of the algorithms was run."""
    tasks = [task for task in results.tasks if any(label in task.groups for label in labels)]
    columns = _columns(len(tasks))
    rows = math.ceil(len(tasks) / columns)
    figure = Figure(figsize=(max(3.5 * columns, 6.0), 2.7 * rows + 1.0), layout="constrained")
    fits = len(kind.caption) < _LETTERS_PER_INCH * figure.get_figwidth()
    figure.suptitle(kind.caption if fits else kind.caption.replace(": ", ":\n"), fontsize=11)
    style = styles(results.labels)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for place, axes in enumerate(panels):
        if place >= len(tasks):
            axes.set_visible(False)
            continue
        _draw_panel(axes, tasks[place], labels, kind, style)
        axes.set_title(panel_title(results, tasks[place]), fontsize=10)
        if place % columns == 0:
            axes.set_ylabel("return")
        if place + columns >= len(tasks):
            axes.set_xlabel("processor seconds" if kind.timed else "environment steps")
    lines = {one.get_label() for axes in figure.axes for one in axes.lines}
    drawn = [label for label in labels if label in lines]
    figure.legend(
        handles=legend_handles(drawn, style),
        loc="outside lower center",
        ncols=_legend_columns(len(drawn), figure.get_figwidth()),
    )
    return figure


def _legend_columns(entries: int, inches: float) -> int:
    """Return the columns of a legend with as few rows as fit, all about equally long."""
    entries = max(entries, 1)  # a legend without entries has a column as well
    rows = math.ceil(entries * _LEGEND_INCHES / inches)
    return math.ceil(entries / rows)


def _columns(panels: int) -> int:
    if panels <= 3:
        return max(panels, 1)
    return 2 if panels == 4 else 3 if panels <= 6 else 4


def _draw_panel(
    axes: Axes, task: TaskResults, labels: Sequence[str], kind: CurveKind, style: Styles
) -> None:
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
    groups = [task.groups[label] for label in labels if label in task.groups]
    units = seconds_per_step(groups) if kind.timed else [1.0] * len(groups)
    for group, unit in zip(groups, units, strict=True):
        shown = line(group.runs, task.steps, kind)
        if shown is None or unit is None:
            continue
        label = group.label
        colour, dashes = style[label]
        steps, middle, low, high = shown
        places = unit * steps
        axes.fill_between(places, low, high, color=colour, alpha=0.16, linewidth=0)
        alone = "o" if len(steps) == 1 else None
        axes.plot(
            places,
            middle,
            color=colour,
            linestyle=dashes,
            linewidth=1.8,
            marker=alone,
            label=label,
        )
    if not axes.lines:
        axes.text(0.5, 0.5, "no episode has ended", transform=axes.transAxes, ha="center")
