"""Running summaries of values along an axis, and episodes drawn with theirs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from imel.pictures.style import Array, Keywords

_PLACES, _FEWEST = 200, 10
"""Places of a summary at most, and values that it rests on at least, if there are so many."""


@dataclass(frozen=True)
class Summary:
    """Mean and 20-80 percentile band of the values near each place."""

    places: Array  # [P]
    mean: Array  # [P]
    low: Array  # [P]
    high: Array  # [P]


def summarise_near(x: Array, values: Array, share: float) -> Summary:
    """Summarise values along x, each time a share of them; in the mean the nearer count more."""
    order = np.argsort(x, kind="stable")
    sorted_values, count = pd.Series(values[order]), max(_FEWEST, round(share * len(x)))
    window = sorted_values.rolling(count, min_periods=1, center=True)
    tapered = sorted_values.rolling(count, min_periods=1, center=True, win_type="triang")
    columns = [tapered.mean(), window.quantile(0.2), window.quantile(0.8)]
    shown = np.unique(np.linspace(0, len(x) - 1, _PLACES).astype(int))
    return Summary(x[order][shown], *(column.to_numpy()[shown] for column in columns))


def episode_trend(steps: Array, returns: Array) -> Summary:
    """Summarise episodes near the same steps."""
    return summarise_near(steps, returns, 0.08)


def draw_episodes(axes: Axes, steps: Array, returns: Array, colour: str, label: str) -> Summary:
    """Draw episodes as dots, fainter where there are many, and their mean as a line."""
    crowd = min(1.0, 300 / len(returns))
    dots: Keywords = {"s": 6 + 8 * crowd, "alpha": 0.12 + 0.25 * crowd, "linewidths": 0}
    axes.scatter(steps, returns, color=colour, label=label, rasterized=True, **dots)
    trend = episode_trend(steps, returns)
    axes.plot(trend.places, trend.mean, color=colour, linewidth=2, label="running mean")
    return trend
