"""The learning curve of a run, from its monitor file and its evaluations alone."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from imel.errors import ImelError
from imel.pictures.nearby import draw_episodes
from imel.pictures.style import BELOW, BLUE, RED, Array, Keywords, styled
from imel.runs.layout import read_evaluation, read_evaluations


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
    with monitor.open(encoding="utf-8") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a run in which no episode has ended
        try:
            if not file.readline().startswith("#"):
                raise ValueError("it is not a monitor file")
            columns = [(name, float) for name in file.readline().strip().split(",")]
            table = np.loadtxt(file, delimiter=",", dtype=columns, ndmin=1)
            returns, lengths = table["r"], table["l"]
        except (TypeError, ValueError) as error:
            raise ImelError(f"{monitor} is damaged: {error}") from None
    steps = table["steps"] if ("steps", float) in columns else np.cumsum(lengths)
    if not (np.abs(np.concatenate([returns, lengths, steps])) <= 1e300).all():
        raise ImelError(f"{monitor} is damaged: it has values that are not finite")
    final = read_evaluation(evaluation)
    during = () if evaluations is None else tuple(map(_evaluation, read_evaluations(evaluations)))
    return LearningCurve(title, steps, returns, _evaluation(final) if final else None, during)


def _evaluation(document: Mapping[str, Any]) -> Evaluation:
    played = document["deterministic"]
    return Evaluation(document["timesteps"], document["episodes"], played["mean"], played["std"])


@styled
def curve_figure(curve: LearningCurve) -> Figure:
    """Draw episodes as dots, their trend as a line with a band, the evaluation as a marker."""
    figure = Figure(figsize=(8, 5.4))
    axes = figure.subplots()
    axes.set(title=curve.title, xlabel="environment steps", ylabel="episode return")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if len(curve.returns):
        label = "training episodes (stochastic)"
        trend = draw_episodes(axes, curve.steps, curve.returns, BLUE, label)
        band = trend.places, trend.low, trend.high
        axes.fill_between(*band, color=BLUE, alpha=0.2, linewidth=0, label="20–80 %")
    else:
        axes.text(0.5, 0.5, "no episode has ended", transform=axes.transAxes, ha="center")
    if curve.evaluations:
        steps, means = np.transpose([(each.steps, each.mean) for each in curve.evaluations])
        label = f"deterministic, {curve.evaluations[0].episodes} episodes each"
        axes.plot(steps, means, "o-", markersize=4, linewidth=1.3, color=RED, label=label)
    if (last := curve.evaluation) is not None:
        label = f"deterministic, {last.episodes} episodes: {last.mean:.1f} ± {last.std:.1f}"
        style: Keywords = {"fmt": "D", "markersize": 7, "capsize": 5, "color": RED, "label": label}
        axes.errorbar(last.steps, last.mean, yerr=last.std, **style)
    axes.set_xlim(left=0.0)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc=BELOW, ncols=2)
    return figure
