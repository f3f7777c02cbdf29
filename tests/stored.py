"""Rows as the bench stores them, with returns that are known in advance, and a launcher's ear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from imel.bench.pool import Failure
from imel.bench.run import Run
from imel.bench.store import Row, Store

SMALL = {"rollout_size": 64, "n_envs": 4, "memory_size": 128}
"""Settings of runs that last a moment."""


def curve(seed: int = 0, algorithm: str = "mki", returns: float = 1.0, **other: Any) -> list[Row]:
    """A finished run of two rows."""
    run = {"task": "hopper", "algorithm": algorithm, "settings_hash": "ab", "seed": seed}
    run |= {"steps": 100, "overrides": {}}
    first = {"step": 50, "train_return": -9.0, "train_episodes": 7, "seconds": 1.0}
    last = {"step": 100, "train_return": returns - 1, "train_episodes": 2, "seconds": 4.0}
    return [
        run | first | {"eval_return": None, "final": False} | other,
        run | last | {"eval_return": returns, "final": True} | other,
    ]


def run_rows(
    task: str, algorithm: str, seed: int, final: float, steps: int = 1000, **other: Any
) -> list[Row]:
    """Ten rows of a run whose training return rises in a line to half of the final return."""
    common: Row = {"task": task, "algorithm": algorithm, "settings_hash": "ab", "seed": seed}
    common |= {"steps": steps, "overrides": {}, "commit": "0123456789abcdef", "dirty": False}
    rows = []
    for part in range(1, 11):
        row: Row = {"step": part * steps // 10, "train_return": final * part / 20}
        row |= {"train_episodes": 4, "eval_return": final * part / 10 if part % 5 == 0 else None}
        row |= {"seconds": float(part), "cpu_seconds": part / 2, "final": part == 10}
        rows.append(common | row | other)
    return rows


def random_rows(task: str, seed: int, returns: float) -> list[Row]:
    """The one row of acting at random."""
    row = run_rows(task, "random", seed, returns)[-1]
    return [row | {"steps": 0, "step": 0, "train_return": None, "train_episodes": 0}]


def rows_of_runs(results: Mapping[str, Mapping[str, Sequence[float]]], **other: Any) -> list[Row]:
    """Runs, seeds from 10 on: task -> algorithm -> final return of each seed."""
    return [
        row
        for task, algorithms in results.items()
        for algorithm, returns in algorithms.items()
        for seed, value in enumerate(returns, start=10)
        for row in (
            random_rows(task, seed, value)
            if algorithm == "random"
            else run_rows(task, algorithm, seed, value, **other)
        )
    ]


def small_rows() -> list[Row]:
    """Two tasks, two algorithms of IMeL, TRPO, PPO and chance."""
    hopper = {
        "mki": [300.0, 200.0, 500.0, 400.0, 900.0],
        "np": [50.0, 60.0, 70.0, 80.0, 90.0],
        "trpo": [100.0, 110.0, 120.0, 130.0, 140.0],
        "ppo": [20.0, 20.0, 20.0],
        "random": [20.0, 20.0],
    }
    ant = {"mki": [30.0, 31.0, 32.0], "trpo": [20.0, 21.0, 22.0], "random": [0.0, 2.0]}
    return rows_of_runs({"hopper": hopper, "ant": ant})


def runs_in(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each run."""
    ends = [0, *(number for number, row in enumerate(rows, start=1) if row["final"])]
    return [list(rows[start:end]) for start, end in pairwise(ends)]


def small_store(folder: Path) -> None:
    """Add the small rows to a store."""
    for run in runs_in(small_rows()):
        Store(folder).add(run)


class Listener:
    """Keeps what a launcher says."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.outcomes: dict[str, Mapping[str, Any] | Failure] = {}

    def advanced(self, run: Run, step: int) -> None:
        self.steps.append(step)

    def ended(self, run: Run, outcome: Mapping[str, Any] | Failure) -> None:
        self.outcomes[f"{run.task.rpartition('Bench')[2]} {run.seed}"] = outcome
