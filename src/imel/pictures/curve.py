"""Pictures over the steps of a run: its learning curve, and the lessons of `imel lessons`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from imel.errors import ImelError
from imel.pictures.style import (
    BELOW,
    BLUE,
    GREY,
    ORANGE,
    RED,
    Array,
    Keywords,
    draw_episodes,
    styled,
)
from imel.runs.layout import read_evaluation, read_evaluations

if TYPE_CHECKING:
    from imel.runs.evaluation import Deletion

_MARKED = 5
"""The largest lessons, that are named."""


class Evaluation(NamedTuple):
    """The deterministic return after some steps."""

    steps: int
    episodes: int
    mean: float
    std: float


class LearningCurve(NamedTuple):
    """The episodes of a training run in the order in which they ended."""

    title: str
    steps: Array  # [n] environment steps taken when the episode ended
    returns: Array  # [n]
    evaluation: Evaluation | None = None  # the one at the end
    evaluations: tuple[Evaluation, ...] = ()  # those during training


def read_curve(
    monitor: Path, evaluation: Path, title: str, evaluations: Path | None = None
) -> LearningCurve:
    """Read a curve from a monitor file; without a column of steps, lengths are summed."""
    with monitor.open(encoding="utf-8") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a run in which no episode has ended
        try:
            if not file.readline().startswith("#"):
                raise ValueError("it is not a monitor file")
            columns = [(name, float) for name in file.readline().strip().split(",")]
            table = np.loadtxt(file, delimiter=",", dtype=columns, ndmin=1)
            steps = table["steps"] if ("steps", float) in columns else np.cumsum(table["l"])
            if not (np.abs([table["r"], table["l"], steps]) <= 1e300).all():
                raise ValueError("it has values that are not finite")
        except (TypeError, ValueError) as error:
            raise ImelError(f"{monitor} is damaged: {error}") from None
    final, during = read_evaluation(evaluation), read_evaluations(evaluations or Path())
    last = _evaluation(final) if final else None
    return LearningCurve(title, steps, table["r"], last, tuple(map(_evaluation, during)))


def _evaluation(row: Mapping[str, Any]) -> Evaluation:
    played = row["deterministic"]
    return Evaluation(row["timesteps"], row["episodes"], played["mean"], played["std"])


@styled
def curve_figure(curve: LearningCurve) -> Figure:
    """Draw episodes as dots, their trend as a line with a band, the evaluation as a marker."""
    figure = Figure(figsize=(8, 5.4))
    axes = figure.subplots()
    axes.set(title=curve.title, xlabel="environment steps", ylabel="episode return")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if len(curve.returns):
        trend = draw_episodes(axes, curve.steps, curve.returns, "training episodes (stochastic)")
        band = trend.places, trend.low, trend.high
        axes.fill_between(*band, color=BLUE, alpha=0.2, linewidth=0, label="20–80 %")
    else:
        axes.text(0.5, 0.5, "no episode has ended", transform=axes.transAxes, ha="center")
    if curve.evaluations:
        steps, episodes, means, _ = np.transpose(curve.evaluations)
        label = f"deterministic, {episodes[0]:.0f} episodes each"
        axes.plot(steps, means, "o-", markersize=4, linewidth=1.3, color=RED, label=label)
    if (last := curve.evaluation) is not None:
        label = f"deterministic, {last.episodes} episodes: {last.mean:.1f} ± {last.std:.1f}"
        style: Keywords = {"fmt": "D", "markersize": 7, "capsize": 5, "color": RED, "label": label}
        axes.errorbar(last.steps, last.mean, yerr=last.std, **style)
    axes.set_xlim(left=0.0)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc=BELOW, ncols=2)
    return figure


@styled
def lessons_figure(title: str, lessons: Mapping[str, Array]) -> Figure:
    """Draw the returns of episodes over the run, and below them the sizes of their lessons.

    :param lessons: columns, in the order in which they began. Those that taught in the last rollout
        may be running still: their returns are not whole
    """
    sizes, returns = lessons["sizes"], lessons["returns"]
    figure = Figure(figsize=(9, 6))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    ends = spread(lessons["ends"])
    largest = np.argsort(-sizes, kind="stable")[:_MARKED]
    whole = lessons["ends"] < lessons["ends"].max()
    whole = whole if whole.any() else ~whole
    draw_episodes(upper, ends[whole], returns[whole], "episodes")
    dots: Keywords = {"s": 42, "color": RED, "edgecolors": "white", "linewidths": 0.8, "zorder": 4}
    label = f"the {len(largest)} largest lessons"
    upper.scatter(ends[largest], returns[largest], label=label, **dots)
    upper.set(title=title, ylabel="return of the episode")
    lower.vlines(ends, 0.0, sizes, colors=GREY, linewidths=1.0)
    lower.vlines(ends[largest], 0.0, sizes[largest], colors=RED, linewidths=2.2)
    place: Keywords = {"rotation": 90, "ha": "center", "va": "bottom", "color": RED, "fontsize": 8}
    for i in largest:
        lower.text(ends[i], sizes[i], f" {lessons['episodes'][i]}", **place)
    lower.set_ylim(0.0, 1.25 * float(sizes.max()) or 1.0)
    lower.set_ylabel("size of the lesson\n(what it adds to the action)")
    lower.set(xlabel="environment steps", xlim=(0.0, 1.02 * float(ends.max())))
    lower.xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.legend(loc=BELOW, ncols=5)
    return figure


def spread(ends: Array) -> Array:
    """Return places for episodes that ended in the same rollout: evenly over it, in order."""
    steps, member = np.unique(ends, return_inverse=True)
    rollouts = pd.Series(member).groupby(member)
    passed = (rollouts.cumcount() + 1) / rollouts.transform("size")
    return np.asarray(ends - np.diff(steps, prepend=0)[member] * (1.0 - passed.to_numpy()))


@styled
def deletion_figure(title: str, whole: Array, deletions: Sequence[Deletion]) -> Figure:
    """Draw return and change of the action against the share of lessons taken back."""
    figure = Figure(figsize=(11, 4.6))
    left, right = figure.subplots(1, 2)
    figure.suptitle(title)
    names = ["nothing", *(f"{each.share:.0%}" for each in deletions)]
    for kind, colour, label in (
        ("random", BLUE, "as many at random"),
        ("similar", ORANGE, "of the episodes most alike"),
        ("largest", RED, "the largest shares of the policy"),
    ):
        removals = [getattr(each, kind) for each in deletions]
        played = [whole, *(removal.returns for removal in removals)]
        means = [float(returns.mean()) for returns in played]
        errors = [float(returns.std() / max(1, len(returns) - 1) ** 0.5) for returns in played]
        line: Keywords = {"color": colour, "marker": "o", "linewidth": 2}
        left.errorbar(names, means, yerr=errors, capsize=4, label=label, **line)
        right.plot(names, [0.0, *(removal.shift for removal in removals)], **line)
    left.set(xlabel="lessons taken back", ylabel="deterministic return (mean, standard error)")
    right.set(xlabel="lessons taken back", ylabel="change of the action (root mean square)")
    figure.legend(loc=BELOW, ncols=3)
    return figure
