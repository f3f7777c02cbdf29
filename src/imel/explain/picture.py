"""Explanations as small drawings for notebooks: the sentences, and a line a memory or lesson."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from imel.explain.lesson_words import short

if TYPE_CHECKING:
    from imel.explain.by_lessons import LessonExplanation
    from imel.explain.explanation import Explanation

_SHOWN, _LINE = 10, 20
_LEFT, _BAR, _TRACK, _WIDTH = 110, 120, 300, 620
"""Pixels: where bars begin, how long the longest is, how long the track is, all together."""
_LESSONS_LEFT, _LESSON_BAR, _CURVE, _LESSONS_WIDTH, _GAP = 230, 75, 250, 700, 60
"""The same of a drawing of lessons, with a curve in the track's place."""
_RED, _BLUE, _MEAN = "#c0392b", "#2d6fb5", "#e08a00"


def draw_memories(why: Explanation) -> str:
    """Bars for the weights, and beside them the step mu -> mu* in one dimension of the action."""
    count = min(_SHOWN, len(why.weights))
    means, improved = why.means[:count], why.improved_means[:count]
    # Of several dimensions the one in which the memories shown were moved most
    chosen = int(np.abs(improved - means).sum(axis=0).argmax())
    before, after = means[:, chosen], improved[:, chosen]
    mean, name = float(why.mean[chosen]), why.names.action[chosen]
    name = f"the logit of {name}" if why.distribution.sizes else name
    low, high = (float(f(-1.0 if f is min else 1.0, mean, *before, *after)) for f in (min, max))
    start = _LEFT + _BAR + 60

    def x(value: float) -> float:
        return start + _TRACK * (value - low) / (high - low)

    height = _LINE * (count + 2)
    parts = [
        _text(0, 14, "episode · step"),
        _text(_LEFT, 14, "weight"),
        _text(start, 14, f"μ → μ* of {name}, the mean dashed"),
        f'<line x1="{x(mean):.1f}" x2="{x(mean):.1f}" y1="{_LINE}" y2="{height - _LINE}" '
        f'stroke="{_MEAN}" stroke-width="2" stroke-dasharray="4 3"/>',
        _text(start, height - 4, f"{low:+.2f}"),
        _text(start + _TRACK, height - 4, f"{high:+.2f}", "end"),
    ]
    largest = max(float(np.abs(why.weights[:count]).max()), 1e-12)
    for i in range(count):
        y = _LINE * (i + 1.5)
        colour = _RED if after[i] > before[i] else _BLUE
        length = _BAR * abs(float(why.weights[i])) / largest
        share = "" if why.kind == "none" else f"{why.weights[i]:.1%}"
        parts += [
            _text(0, y + 4, f"{why.episodes[i]} · {why.steps[i]}"),
            f'<rect x="{_LEFT}" y="{y - 5}" width="{length:.1f}" height="10" rx="2" '
            'fill="currentColor" opacity="0.35"/>',
            _text(_LEFT + length + 4, y + 4, share),
            f'<line x1="{x(before[i]):.1f}" x2="{x(after[i]):.1f}" y1="{y}" y2="{y}" '
            f'stroke="{colour}" stroke-width="2"/>',
            f'<circle cx="{x(before[i]):.1f}" cy="{y}" r="3" fill="none" stroke="{colour}"/>',
            f'<circle cx="{x(after[i]):.1f}" cy="{y}" r="4" fill="{colour}"/>',
        ]
    said = (why.sentence(), why.familiarity_sentence())
    return _drawing(said, parts, _WIDTH, height, "the memories behind the action")


def draw_lessons(why: LessonExplanation) -> str:
    """Bars for what lessons add in the direction of the mean; beside them its sum over the run."""
    count = min(_SHOWN, len(why.lessons))
    height = _LINE * (max(count, 4) + 2)
    parts = [*_bars(why, count), *_making(why, height)]
    said = (why.sentence(), why.familiarity_sentence(), why.sensitivity_sentence())
    return _drawing(said, parts, _LESSONS_WIDTH, height, "the lessons behind the action")


def _bars(why: LessonExplanation, count: int) -> list[str]:
    cells, along = why.table(count), why.along[:count]
    largest = max(float(np.abs(along).max(initial=0.0)), 1e-12)
    zero = _LESSONS_LEFT + _LESSON_BAR
    parts = [_text(0, 14, "episode"), _text(70, 14, "steps"), _text(160, 14, "return")]
    parts.append(_text(zero, 14, "against · for", "middle"))
    for i in range(count):
        y = _LINE * (i + 1.5)
        length = _LESSON_BAR * abs(float(along[i])) / largest
        x, colour = (zero, _BLUE) if along[i] >= 0 else (zero - length, _RED)
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
    making, direction = why.making, why.distribution.direction(why.mean)
    norm = float(why.mean @ direction)
    if not norm:
        return []
    values = np.concatenate([[0.0], making.means @ direction])
    steps = np.concatenate([making.steps[:1], making.steps])
    low, high = min(0.0, float(values.min())), max(norm, float(values.max()))
    start, top, bottom = _LESSONS_LEFT + 2 * _LESSON_BAR + _GAP, _LINE, height - _LINE
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
        f'<polyline points="{points}" fill="none" stroke="{_BLUE}" stroke-width="1.5"/>',
        _text(start - 4, y(norm) + 4, why.distribution.parameters, "end"),
        _text(start, height - 4, "0"),
        _text(start + _CURVE, height - 4, f"{short(span)} steps", "end"),
    ]


def _drawing(said: tuple[str, ...], parts: list[str], width: int, height: int, label: str) -> str:
    lines = "<br>".join(escape(line) for line in said)
    return (
        f'<div><p>{lines}</p><svg width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="{label}">{"".join(parts)}</svg></div>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="currentColor" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )
