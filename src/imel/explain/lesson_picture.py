"""A lesson explanation as a small drawing for notebooks: the largest lessons, and its making."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from imel.explain import lesson_words
from imel.explain.explanation import familiarity_words

if TYPE_CHECKING:
    from imel.explain.lessons import LessonExplanation

_SHOWN, _LINE = 10, 20
_LEFT, _BAR, _CURVE, _WIDTH, _GAP = 230, 75, 250, 700, 60
"""Pixels: where bars begin, how long the longest is, the curve's width, all together."""
_FOR, _AGAINST, _MEAN = "#2d6fb5", "#c0392b", "#e08a00"


def drawing(why: LessonExplanation) -> str:
    """Bars for what lessons add in the direction of the mean; beside them its sum over the run."""
    count = min(_SHOWN, len(why.lessons))
    height = _LINE * (max(count, 4) + 2)
    parts = [*_bars(why, count), *_making(why, height)]
    said = (why.sentence(), familiarity_words(why.familiarity), lesson_words.sensitivity_words(why))
    lines = "<br>".join(escape(line) for line in said)
    return (
        f'<div><p>{lines}</p><svg width="{_WIDTH}" height="{height}" font-family="sans-serif" '
        'font-size="12" role="img" aria-label="the lessons behind the action">'
        f"{''.join(parts)}</svg></div>"
    )


def _bars(why: LessonExplanation, count: int) -> list[str]:
    cells, along = lesson_words.table(why, count), why.along[:count]
    largest = max(float(np.abs(along).max(initial=0.0)), 1e-12)
    zero = _LEFT + _BAR
    parts = [_text(0, 14, "episode"), _text(70, 14, "steps"), _text(160, 14, "return")]
    parts.append(_text(zero, 14, "against · for", "middle"))
    for i in range(count):
        y = _LINE * (i + 1.5)
        length = _BAR * abs(float(along[i])) / largest
        x, colour = (zero, _FOR) if along[i] >= 0 else (zero - length, _AGAINST)
        episode, steps, returned, share, _ = cells[i]
        for place, word in ((0, episode), (70, steps), (160, returned)):
            parts.append(_text(place, y + 4, word))
        parts.append(
            f'<rect x="{x:.1f}" y="{y - 5}" width="{length:.1f}" height="10" rx="2" '
            f'fill="{colour}"><title>{share}</title></rect>'
        )
    return parts


def _making(why: LessonExplanation, height: int) -> list[str]:
    """The sum of lessons in the direction of the mean over the run's steps."""
    making, norm = why.making, float(np.linalg.norm(why.mean))
    if not norm:
        return []
    values = np.concatenate([[0.0], making.means @ (why.mean / norm)])
    steps = np.concatenate([making.steps[:1], making.steps])
    low, high = min(0.0, float(values.min())), max(norm, float(values.max()))
    start, top, bottom = _LEFT + 2 * _BAR + _GAP, _LINE, height - _LINE
    span = max(float(steps.max()), 1.0)

    def y(value: float) -> float:
        return bottom - (bottom - top) * (value - low) / (high - low)

    points = " ".join(
        f"{start + _CURVE * step / span:.1f},{y(value):.1f}"
        for step, value in zip(steps, values, strict=True)
    )
    return [
        _text(start, 14, "its making: the sum of lessons over the run"),
        f'<line x1="{start}" x2="{start + _CURVE}" y1="{y(0.0):.1f}" y2="{y(0.0):.1f}" '
        'stroke="currentColor" opacity="0.3"/>',
        f'<line x1="{start}" x2="{start + _CURVE}" y1="{y(norm):.1f}" y2="{y(norm):.1f}" '
        f'stroke="{_MEAN}" stroke-dasharray="4 3"/>',
        f'<polyline points="{points}" fill="none" stroke="{_FOR}" stroke-width="1.5"/>',
        _text(start - 4, y(norm) + 4, "mean", "end"),
        _text(start, height - 4, "0"),
        _text(start + _CURVE, height - 4, f"{lesson_words.short(span)} steps", "end"),
    ]


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="currentColor" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )
