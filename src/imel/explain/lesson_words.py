"""Lessons, steps and returns in words."""

from __future__ import annotations


def episode_words(first: int, count: int) -> str:
    """Name the episode of a lesson, or the period: the first episode and how many follow it."""
    return f"{first}" if count == 1 else f"{first} (+{count - 1})"


def steps_words(start: int, end: int) -> str:
    """Name the steps of a run in which a lesson was taught, or that it came from a warm start."""
    return f"{short(start)} to {short(end)}" if end else "demonstration"


def return_words(value: float, end: int) -> str:
    """Return a lesson's return; a demonstration without rewards has none."""
    return number(value) if end or value else "-"


def short(steps: float) -> str:
    """Return a number of steps with three digits at most: 41k, 1.2M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if steps >= size:
            return f"{steps / size:.{1 if steps < 10 * size else 0}f}".removesuffix(".0") + unit
    return f"{steps:.0f}"


def number(value: float) -> str:
    """Return a number with as many digits as matter."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
