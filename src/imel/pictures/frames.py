"""Pictures side by side: a state on the left, the remembered states behind its action right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

_SIDE = 2.1
"""Inches of a frame's width."""
_TITLE = 0.5
"""Inches above it."""
_STATE = "#e08a00"


@dataclass(frozen=True)
class Frame:
    """A picture with a title, or the place of one that cannot be drawn."""

    title: str
    pixels: NDArray[Any] | None  # [height, width, 3]


@dataclass(frozen=True)
class Strip:
    """A state and the memories behind the action there, the largest weight first."""

    state: Frame
    memories: tuple[Frame, ...]


def frames_figure(title: str, strips: Sequence[Strip]) -> Figure:
    """One line of pictures for each strip."""
    columns = 1 + max(len(strip.memories) for strip in strips)
    shape = next((s.state.pixels.shape for s in strips if s.state.pixels is not None), (1, 1))
    height = _SIDE * shape[0] / shape[1] + _TITLE
    size = (_SIDE * columns, height * len(strips) + _TITLE)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11)
    grid = figure.subplots(len(strips), columns, squeeze=False)
    for line, strip in zip(grid, strips, strict=True):
        frames = [strip.state, *strip.memories]
        for number, axes in enumerate(line):
            if number >= len(frames):
                axes.set_axis_off()
                continue
            _draw(axes, frames[number], number == 0)
    return figure


def _draw(axes: Axes, frame: Frame, marked: bool) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(frame.title, fontsize=9, color=_STATE if marked else "black")
    if frame.pixels is None:
        axes.set_aspect("equal")
        axes.text(0.5, 0.5, "not drawn", ha="center", va="center", fontsize=9, color="#8a8a8a")
    else:
        axes.imshow(frame.pixels)
    for spine in axes.spines.values():
        spine.set_edgecolor(_STATE if marked else "#b0b0b0")
        spine.set_linewidth(2.5 if marked else 0.8)
