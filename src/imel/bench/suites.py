"""Grids with a name: the paper's comparison, longer runs, tasks nobody tuned on, chance, spaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from imel.bench.tasks import SPACE_TASKS, TASKS, UNTUNED_TASKS
from imel.errors import SettingsError, nearest_name


@dataclass(frozen=True)
class Suite:
    """What to run, and where the results belong."""

    tasks: tuple[str, ...]
    algorithms: tuple[str, ...]
    store: Path
    seeds: tuple[int, ...] = (30, 31, 32, 33, 34)  # on which no setting was chosen
    steps: int | None = None
    """Of every run; None for each task's own."""
    quick_tasks: tuple[str, ...] = ("mountaincar", "inverted-pendulum")
    """Where it takes minutes to see that the suite runs."""
    quick_algorithms: tuple[str, ...] = ("ridge", "trpo", "random")


_PAPER = Suite(
    tasks=tuple(TASKS),
    algorithms=("ridge", "mki", "np", "regressor", "trpo", "trpo-plain", "ppo", "random"),
    store=Path("results/paper"),
)
SUITES: Mapping[str, Suite] = {
    "paper": _PAPER,
    "long": Suite(
        tasks=("double-pendulum", "hopper", "walker2d", "halfcheetah", "ant", "humanoid"),
        algorithms=("ridge", "trpo", "random"),
        steps=1_000_000,
        store=Path("results/long"),
    ),
    "untuned": Suite(
        tasks=tuple(UNTUNED_TASKS),
        algorithms=("ridge", "trpo", "ppo", "random"),
        store=Path("results/untuned"),
        quick_tasks=("swimmer", "reacher"),
    ),
    "random": replace(_PAPER, algorithms=("random",), quick_algorithms=("random",)),
    "spaces": Suite(
        tasks=tuple(SPACE_TASKS),
        algorithms=("ridge", "ppo", "random"),
        seeds=(600, 601, 602, 603, 604),
        store=Path("results/spaces"),
        quick_tasks=("levers", "sensors"),
        quick_algorithms=("ridge", "ppo", "random"),
    ),
}
_FREE = Suite(tuple(TASKS), ("ridge", "mki", "trpo"), Path("runs/bench"), seeds=(0, 1, 2))


def find_suite(name: str | None, quick: bool) -> Suite:
    """The suite of this name, or what is run where none is named.

    Quick, it is a small part of it, in a store of its own, to see in minutes that it runs.
    """
    if name is None:
        return replace(_FREE, seeds=(0,), steps=4096) if quick else _FREE
    if name not in SUITES:
        raise SettingsError(f"unknown suite '{name}'; {nearest_name(name, SUITES)}")
    suite = SUITES[name]
    if not quick:
        return suite
    return Suite(
        suite.quick_tasks,
        suite.quick_algorithms,
        Path("results/quick"),
        seeds=suite.seeds[:2],
        steps=10_000,
    )
