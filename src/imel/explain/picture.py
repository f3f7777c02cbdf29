"""An explanation as a small drawing for notebooks: the sentence, and a line for each memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from imel.explain.explanation import Explanation

_SHOWN, _LINE = 10, 20
_LEFT, _BAR, _TRACK, _WIDTH = 110, 120, 300, 620
"""Pixels: where bars begin, how long the longest is, how long the track is, all together."""
_RAISED, _LOWERED, _MEAN = "#c0392b", "#2d6fb5", "#e08a00"


def drawing(why: Explanation) -> str:
    """Bars for the weights, and beside them the step mu -> mu* in one dimension of the action."""
    count = min(_SHOWN, len(why.weights))
    means, improved = why.means[:count], why.improved_means[:count]
    # Of several dimensions the one in which the memories shown were moved most
    chosen = int(np.abs(improved - means).sum(axis=0).argmax())
    before, after = means[:, chosen], improved[:, chosen]
    mean = float(why.mean[chosen])
    low, high = (float(f(-1.0 if f is min else 1.0, mean, *before, *after)) for f in (min, max))
    start = _LEFT + _BAR + 60

    def x(value: float) -> float:
        return start + _TRACK * (value - low) / (high - low)

    height = _LINE * (count + 2)
    parts = [
        _text(0, 14, "episode · step"),
        _text(_LEFT, 14, "weight"),
        _text(start, 14, f"μ → μ* of action {chosen}, the mean dashed"),
        f'<line x1="{x(mean):.1f}" x2="{x(mean):.1f}" y1="{_LINE}" y2="{height - _LINE}" '
        f'stroke="{_MEAN}" stroke-width="2" stroke-dasharray="4 3"/>',
        _text(start, height - 4, f"{low:+.2f}"),
        _text(start + _TRACK, height - 4, f"{high:+.2f}", "end"),
    ]
    largest = max(float(np.abs(why.weights[:count]).max()), 1e-12)
    for i in range(count):
        y = _LINE * (i + 1.5)
        colour = _RAISED if after[i] > before[i] else _LOWERED
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
    return (
        f"<div><p>{why.sentence()}<br>{why.familiarity_sentence()}</p>"
        f'<svg width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="12" '
        f'role="img" aria-label="the memories behind the action">{"".join(parts)}</svg></div>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="currentColor" text-anchor="{anchor}">{text}</text>'
