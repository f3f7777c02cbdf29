"""Running summaries of values along an axis, and episodes drawn with theirs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from imel.pictures.style import Array

_PLACES, _REACH = 200, 0.04
"""Where the trend of episodes is taken, and over which share of the steps to either side."""
_FEWEST = 10
"""Values a summary rests on at least, if there are so many."""


@dataclass(frozen=True)
class Summary:
    """Mean and a percentile band of the values near each place."""

    places: Array  # [P]
    mean: Array  # [P]
    low: Array  # [P]
    high: Array  # [P]


def summarise_near(
    x: Array, values: Array, places: Array, reach: float, band: tuple[float, float]
) -> Summary:
    """Summarise the values around each place, the nearer the more.

    Weights fall to zero at the distance `reach`, a share of the extent of x; where values are
    sparse, at that of the tenth nearest, so that a crowd further off has no say. Places beyond
    all x are left out.
    """
    order = np.argsort(values, kind="stable")
    x, values = x[order], values[order]
    places = places[(places >= x.min()) & (places <= x.max())]
    least = max(reach * float(np.ptp(x)), 1e-9)
    fewest = min(_FEWEST, len(x)) - 1
    rows = np.empty((len(places), 3))
    for i, place in enumerate(places):
        distances = np.abs(x - place)
        # A little further, so that the tenth itself counts
        width = max(least, 1.1 * float(np.partition(distances, fewest)[fewest]))
        weights = np.clip(1.0 - (distances / width) ** 2, 0.0, None)
        weights /= weights.sum()
        quantiles = np.cumsum(weights) - 0.5 * weights  # of the values, which are in order
        rows[i] = weights @ values, *np.interp(np.array(band) / 100.0, quantiles, values)
    mean, low, high = rows.T
    return Summary(places, mean, low, high)


def episode_trend(steps: Array, returns: Array) -> Summary:
    """Return the mean and the 20-80 percentile band of episodes near the same steps."""
    places = np.linspace(steps.min(), steps.max(), _PLACES)
    return summarise_near(steps, returns, places, _REACH, (20.0, 80.0))


def draw_episodes(axes: Axes, steps: Array, returns: Array, colour: str, label: str) -> Summary:
    """Draw episodes as dots, fainter where there are many, and their mean as a line."""
    crowd = min(1.0, 300 / len(returns))
    dots = {"s": 6 + 8 * crowd, "alpha": 0.12 + 0.25 * crowd, "linewidths": 0, "rasterized": True}
    axes.scatter(steps, returns, color=colour, label=label, **dots)
    trend = episode_trend(steps, returns)
    axes.plot(trend.places, trend.mean, color=colour, linewidth=2, label="running mean")
    return trend
