"""What all pictures share: quiet axes, a few colours, and running summaries of many values."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from numpy.typing import NDArray

Array = NDArray[Any]
Keywords = dict[str, Any]
"""Arguments of matplotlib's functions."""

BLUE, RED, GREEN, ORANGE = "#2166ac", "#d6604d", "#1b7837", "#e08214"
GREY, BLACK = "#8a8a8a", "#111111"
DOTS_PER_INCH = 130
BELOW: Final = "outside lower center"
"""The place of a figure's legend."""
_PLACES, _FEWEST = 200, 10
"""Places of a summary at most, and values that it rests on at least, if there are so many."""

styled = rc_context(
    {
        "axes.grid": True,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": 11,
        "figure.constrained_layout.use": True,
        "figure.dpi": DOTS_PER_INCH,
        "figure.titlesize": 13,
        "grid.alpha": 0.25,
        "legend.fontsize": 9,
        "legend.frameon": False,
    }
)
"""Decorates functions that make a figure."""


def quiet_axes(axes: Axes) -> None:
    """Draw a faint grid, and no frame above and on the right."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


class Summary(NamedTuple):
    """Mean and 20-80 percentile band of the values near each place; all are [P]."""

    places: Array
    mean: Array
    low: Array
    high: Array


def summarise_near(x: Array, values: Array, share: float = 0.08) -> Summary:
    """Summarise values along x, each time a share of them; in the mean the nearer count more."""
    order = np.argsort(x, kind="stable")
    sorted_values, count = pd.Series(values[order]), max(_FEWEST, round(share * len(x)))
    window = sorted_values.rolling(count, min_periods=1, center=True)
    tapered = sorted_values.rolling(count, min_periods=1, center=True, win_type="triang")
    columns = [tapered.mean(), window.quantile(0.2), window.quantile(0.8)]
    shown = np.unique(np.linspace(0, len(x) - 1, _PLACES).astype(int))
    return Summary(x[order][shown], *(column.to_numpy()[shown] for column in columns))


def draw_episodes(axes: Axes, steps: Array, returns: Array, label: str) -> Summary:
    """Draw episodes as dots, fainter where there are many, and their mean as a line."""
    crowd = min(1.0, 300 / len(returns))
    dots: Keywords = {"s": 6 + 8 * crowd, "alpha": 0.12 + 0.25 * crowd, "linewidths": 0}
    axes.scatter(steps, returns, color=BLUE, label=label, rasterized=True, **dots)
    trend = summarise_near(steps, returns)
    axes.plot(trend.places, trend.mean, color=BLUE, linewidth=2, label="running mean")
    return trend
