"""The two pictures in a run directory, from its files and its model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imel.algorithm import IMeL
from imel.pictures.curve import curve_figure, read_curve
from imel.pictures.plane import policy_surface
from imel.pictures.surface import surface_figure
from imel.runs import layout

DOTS_PER_INCH = 130


def draw_run(
    folder: Path, model: IMeL, config: Mapping[str, Any], action: int | None = None
) -> list[Path]:
    """Draw policy.png and, if there is a record of the training, curve.png."""
    title = ", ".join(
        [
            *([config["env"]] if "env" in config else []),
            type(model.policy).__name__,
            *([f"seed {config['seed']}"] if "seed" in config else []),
        ]
    )
    figures = {layout.POLICY: surface_figure(policy_surface(model.policy, title, action))}
    monitor = folder / layout.MONITOR
    if monitor.is_file():
        curve = read_curve(monitor, folder / layout.EVALUATION, title)
        figures[layout.CURVE] = curve_figure(curve)
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=DOTS_PER_INCH)
    return [folder / name for name in figures]
