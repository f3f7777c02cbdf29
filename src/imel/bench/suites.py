"""Grids with a name: the paper's comparison, ablations, chance, and other spaces than vectors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from imel.bench.algorithms import VARIANTS
from imel.bench.tasks import SPACE_TASKS, TASKS
from imel.errors import SettingsError, nearest_name

SUITES = ("paper", "ablation", "random", "spaces")


@dataclass(frozen=True)
class Suite:
    """What to run, and where the results belong."""

    tasks: tuple[str, ...]
    algorithms: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int | None
    """Of every run; None for each task's own."""
    store: Path


def find_suite(name: str | None, quick: bool) -> Suite:
    """The suite of this name, or what is run where none is named.

    Quick, it is a small part of it, in a store of its own, to see in minutes that it runs.
    """
    if name is None:
        free = Suite(tuple(TASKS), ("ridge", "mki", "trpo"), (0, 1, 2), None, Path("runs/bench"))
        return replace(free, seeds=(0,), steps=4096) if quick else free
    if name not in SUITES:
        raise SettingsError(f"unknown suite '{name}'; {nearest_name(name, SUITES)}")
    spaces = name == "spaces"
    suite = Suite(
        tasks=tuple(SPACE_TASKS if spaces else TASKS),
        algorithms=_algorithms(name, quick),
        # None of those that settings were chosen on
        seeds=(600, 601, 602, 603, 604) if spaces else (10, 11, 12, 13, 14),
        steps=None,
        # One for all: what an ablation compares with, the paper's suite has run already
        store=Path("results/spaces" if spaces else "results/paper"),
    )
    if not quick:
        return suite
    return replace(
        suite,
        tasks=("levers", "sensors") if spaces else ("mountaincar", "inverted-pendulum"),
        seeds=suite.seeds[:2],
        steps=10_000,
        store=Path("results/quick"),
    )


def _algorithms(name: str, quick: bool) -> tuple[str, ...]:
    if name == "paper":
        learned = ("ridge", "trpo") if quick else ("ridge", "mki", "np", "regressor", "trpo", "ppo")
        return (*learned, "random")
    if name == "spaces":
        return ("ridge", "ppo", "random")
    if name == "ablation":
        bases = dict.fromkeys(base for base, _ in VARIANTS.values())
        return (*bases, *VARIANTS, "random")
    return ("random",)
