"""What tasks and algorithms are called in reports, their order and their colours."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.lines import Line2D

Styles = Mapping[str, tuple[str, Any]]
"""Colour and matplotlib's line style, by label."""

# Distinct for every common kind of colour blindness (Okabe and Ito). Line styles repeat it in grey
_KNOWN: Mapping[str, tuple[str, str, Any]] = {
    "mki": ("IMeL, MKI", "#0072b2", "-"),
    "np": ("IMeL, NP", "#e69f00", "-"),
    "anp": ("IMeL, ANP", "#cc79a7", "-"),
    "regressor": ("IMeL, regressor", "#009e73", "-"),
    "nearest": ("IMeL, nearest", "#56b4e9", "-"),
    "ridge": ("IMeL, ridge", "#7a4a9e", "-"),
    "trpo": ("TRPO", "#000000", (0, (4, 1.5))),
    "trpo-plain": ("TRPO, not normalised", "#6b6b6b", (0, (4, 1.5, 1, 1.5))),
    "ppo": ("PPO", "#d55e00", (0, (1.5, 1.2))),
    "udrl": ("Upside-Down RL", "#5d7f2a", (0, (5, 1.5, 1, 1.5))),
    "random": ("random", "#8c8c8c", ":"),
}
"""Names of algorithms, in the order of tables and legends, with colour and line style."""
_OTHERS = ("#8c8c8c", "#b8a600", "#8b4513", "#1b4d3e", "#f0a0a0")
_TASKS = {
    "mountaincar": "MountainCarContinuous (2, 1)",
    "inverted-pendulum": "InvertedPendulum (4, 1)",
    "double-pendulum": "InvertedDoublePendulum (11, 1)",
    "hopper": "Hopper (11, 3)",
    "walker2d": "Walker2d (17, 6)",
    "halfcheetah": "HalfCheetah (17, 6)",
    "ant": "Ant (27, 8)",
    "humanoid": "Humanoid (257, 17)",
    "swimmer": "Swimmer (8, 2)",
    "reacher": "Reacher (10, 2)",
    "pusher": "Pusher (23, 7)",
    "bipedal-walker": "BipedalWalker (24, 4)",
    "lunar-lander": "LunarLander, continuous (8, 2)",
}
"""Environments of continuous tasks, with the dimensions of state and action."""


def task_order(task: str) -> tuple[int, str]:
    """Sorts the paper's tasks by size, others by name behind them."""
    names = list(_TASKS)
    return (names.index(task) if task in names else len(names), task)


def task_title(task: str) -> str:
    """Its environment, and the dimensions of state and action where they are known."""
    return _TASKS.get(task, task)


def algorithm_order(label: str) -> tuple[int, str]:
    """Sorts IMeL's algorithms before the baselines, variants behind their base."""
    names, family = list(_KNOWN), label.split()[0]
    while family not in names and "-" in family:
        family = family.rpartition("-")[0]
    return (names.index(family) if family in names else len(names), label)


def algorithm_name(label: str) -> str:
    """What legends call it."""
    return _KNOWN[label][0] if label in _KNOWN else label


def escaped(text: str) -> str:
    """Text from rows, in which Markdown and HTML see nothing but letters."""
    return re.sub(r"[\\`*\[\]<>&|]", r"\\\g<0>", text)


def styles(labels: Sequence[str]) -> Styles:
    """Colour and line style of each; those of a named algorithm are the same in every figure."""
    unnamed = [label for label in labels if label not in _KNOWN]
    others = {label: (_OTHERS[i % len(_OTHERS)], "-.") for i, label in enumerate(unnamed)}
    return others | {label: _KNOWN[label][1:] for label in labels if label in _KNOWN}


def legend_handles(labels: Sequence[str], style: Styles) -> list[Line2D]:
    """A line for each, to be put into a legend."""
    return [
        Line2D([], [], color=colour, linestyle=dashes, linewidth=2, label=algorithm_name(label))
        for label in labels
        for colour, dashes in [style[label]]
    ]


def short_steps(steps: float) -> str:
    """300000 as 300k."""
    for unit, letter in ((1_000_000, "M"), (1_000, "k")):
        if steps >= unit:
            return f"{steps / unit:g}{letter}"
    return f"{steps:g}"
