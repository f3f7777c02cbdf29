"""The learning curve of a run, from its monitor file and its evaluations alone."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from imel.errors import ImelError
from imel.pictures.nearby import Array, draw_episodes, quiet_axes
from imel.runs.layout import read_evaluation, read_evaluations

_COLOUR, _EVALUATION = "#2166ac", "#d6604d"


@dataclass(frozen=True)
class Evaluation:
    """The deterministic return after some steps."""

    steps: int
    episodes: int
    mean: float
    std: float


@dataclass(frozen=True)
class LearningCurve:
    """The episodes of a training run in the order in which they ended."""

    title: str
    steps: Array  # [n] environment steps taken when the episode ended
    returns: Array  # [n]
    evaluation: Evaluation | None = None
    """The one at the end."""
    evaluations: tuple[Evaluation, ...] = ()
    """Those during training."""


def read_curve(
    monitor: Path, evaluation: Path, title: str, evaluations: Path | None = None
) -> LearningCurve:
    """Read a curve from a monitor file; without a column of steps, lengths are summed."""
    try:
        with monitor.open(encoding="utf-8", newline="") as file:
            if not file.readline().startswith("#"):
                raise ImelError(f"{monitor} is not a monitor file")
            rows = list(csv.DictReader(file))
        returns = np.array([float(row["r"]) for row in rows])
        lengths = np.array([float(row["l"]) for row in rows])
        recorded = [row.get("steps") for row in rows]
        steps = np.array([float(s) for s in recorded if s])
    except ImelError:
        raise
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise ImelError(f"{monitor} is damaged: {error}") from None
    if not (np.abs(np.concatenate([returns, lengths, steps])) <= 1e300).all():
        raise ImelError(f"{monitor} is damaged: it has values that are not finite")
    if len(steps) != len(returns):
        steps = np.cumsum(lengths)
    final = read_evaluation(evaluation)
    during = [] if evaluations is None else read_evaluations(evaluations)
    return LearningCurve(
        title,
        steps,
        returns,
        _evaluation(final) if final else None,
        tuple(_evaluation(row) for row in during),
    )


def curve_figure(curve: LearningCurve) -> Figure:
    """Draw episodes as dots, their trend as a line with a band, the evaluation as a marker."""
    figure = Figure(figsize=(8, 5.4), layout="constrained")
    axes = figure.subplots()
    axes.set_title(curve.title, fontsize=13)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("episode return")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    quiet_axes(axes)
    if len(curve.returns):
        label = "training episodes (stochastic)"
        trend = draw_episodes(axes, curve.steps, curve.returns, _COLOUR, label)
        band = trend.places, trend.low, trend.high
        axes.fill_between(*band, color=_COLOUR, alpha=0.2, linewidth=0, label="20–80 %")
    else:
        axes.text(0.5, 0.5, "no episode has ended", transform=axes.transAxes, ha="center")
    if curve.evaluations:
        _draw_evaluations(axes, curve.evaluations)
    if curve.evaluation is not None:
        _draw_evaluation(axes, curve.evaluation)
    ends = [*curve.steps[-1:], *([curve.evaluation.steps] if curve.evaluation else [])]
    ends += [each.steps for each in curve.evaluations]
    axes.set_xlim(0.0, 1.04 * max(ends, default=1.0))
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=2, fontsize=9)
    return figure


def _draw_evaluations(axes: Axes, evaluations: Sequence[Evaluation]) -> None:
    axes.plot(
        [each.steps for each in evaluations],
        [each.mean for each in evaluations],
        "o-",
        markersize=4,
        linewidth=1.3,
        color=_EVALUATION,
        zorder=4,
        label=f"deterministic, {evaluations[0].episodes} episodes each",
    )


def _draw_evaluation(axes: Axes, evaluation: Evaluation) -> None:
    axes.errorbar(
        evaluation.steps,
        evaluation.mean,
        yerr=evaluation.std,
        fmt="D",
        markersize=7,
        capsize=5,
        color=_EVALUATION,
        zorder=5,
        label=f"deterministic, {evaluation.episodes} episodes: "
        f"{evaluation.mean:.1f} ± {evaluation.std:.1f}",
    )


def _evaluation(document: Mapping[str, Any]) -> Evaluation:
    played = document["deterministic"]
    return Evaluation(document["timesteps"], document["episodes"], played["mean"], played["std"])
