"""The policy over training: its map at one checkpoint after the other, as an animated GIF."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.animation import PillowWriter
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from imel.pictures.surface import PolicySurface, draw_map

_DOTS_PER_INCH = 90
_LAST = 6
"""The last frame stays as long as this many."""


def save_animation(surfaces: Sequence[PolicySurface], path: Path, per_second: int = 4) -> None:
    """Write maps with the same axes as the frames of a GIF; each has its own title."""
    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    image = draw_map(axes, surfaces[-1])
    label = f"{surfaces[-1].action_label} (its range is [-1, 1])"
    figure.colorbar(image, ax=axes, label=label, extend="both")
    # Laid out once, with the longest title: frames must not jump
    axes.set_title(max((surface.title for surface in surfaces), key=len), fontsize=11)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    writer = PillowWriter(fps=per_second)
    with writer.saving(figure, path, _DOTS_PER_INCH):
        for number, surface in enumerate(surfaces):
            axes.clear()
            draw_map(axes, surface)
            axes.set_title(surface.title, fontsize=11)
            for _ in range(_LAST if number == len(surfaces) - 1 else 1):
                writer.grab_frame()
