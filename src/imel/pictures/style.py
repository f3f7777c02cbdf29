"""The style of all pictures: quiet axes, a legend without a frame, a few colours."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from numpy.typing import NDArray

Array = NDArray[np.float64]
Keywords = dict[str, Any]
"""Arguments of matplotlib's functions."""

BLUE, RED, GREEN, ORANGE, GREY, BLACK = (
    *("#2166ac", "#d6604d", "#1b7837"),
    *("#e08214", "#8a8a8a", "#111111"),
)
DOTS_PER_INCH = 130
BELOW: Final = "outside lower center"
"""The place of a figure's legend."""

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
