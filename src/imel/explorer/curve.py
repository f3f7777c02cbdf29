"""The learning curve of a run as the page is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from imel.pictures.curve import read_curve, running_trend
from imel.runs import layout

_DOTS = 2000
"""Episodes of the learning curve that are drawn as dots."""


def describe_curve(folder: Path) -> dict[str, Any] | None:
    """Return the curve of a run directory as plain lists; None without a record of training."""
    monitor = folder / layout.MONITOR
    if not monitor.is_file():
        return None
    curve = read_curve(monitor, folder / layout.EVALUATION, "")
    if not len(curve.returns):
        return None
    trend = running_trend(curve)
    shown = np.unique(np.linspace(0, len(curve.returns) - 1, _DOTS).astype(int))
    evaluation = curve.evaluation
    return {
        "steps": curve.steps[shown].tolist(),
        "returns": curve.returns[shown].tolist(),
        "places": _finite(trend.places),
        "mean": _finite(trend.mean),
        "low": _finite(trend.low),
        "high": _finite(trend.high),
        "evaluation": None
        if evaluation is None
        else {"steps": evaluation.steps, "mean": evaluation.mean, "std": evaluation.std},
    }


def _finite(values: Any) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
