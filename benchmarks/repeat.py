"""Run committed runs again and compare every return with theirs, to the last digit.

    python -m benchmarks.repeat
    python -m benchmarks.repeat paper/ridge/hopper/30 --until 300000

A run is named STORE/ALGORITHM/TASK/SEED after its place in results/. Without names, short runs are
repeated whole and long ones until 100,000 steps: RidgePolicy on the eight tasks of the paper, on
discrete and Dict tasks, and the paper's two policies. Rows repeat on the kind of processor that
made them, with the pinned versions of the libraries.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.common import flags
from benchmarks.common import run as run_command
from imel.bench.run import Run, train
from imel.bench.store import Row, Store
from imel.errors import ImelError

RESULTS = Path(__file__).parents[1] / "results"
TASKS = (
    *("mountaincar", "inverted-pendulum", "double-pendulum", "hopper"),
    *("walker2d", "halfcheetah", "ant", "humanoid"),
)
RUNS = (
    *(f"paper/ridge/{task}/30" for task in TASKS),
    *("paper/mki/mountaincar/30", "paper/mki/hopper/30", "paper/np/hopper/31"),
    *("spaces/ridge/CartPole-v1/600", "spaces/ridge/Acrobot-v1/600", "spaces/ridge/sensors/600"),
)
COMPARED = ("step", "train_return", "train_episodes", "eval_return", "eval_returns")


@dataclass
class Repetition:
    """How far a run went as before."""

    name: str
    rows: int
    steps: int
    difference: str | None
    """The first difference, if there is one."""


class EnoughError(Exception):
    """As many steps as were asked for have been repeated."""


def repeat(name: str, until: int) -> Repetition:
    """Run one committed run again."""
    rows = committed(name)
    first, done = rows[0], Repetition(name, 0, 0, None)
    run = Run(first["task"], first["algorithm"], first["seed"], first["steps"], first["overrides"])

    def compare(row: Row) -> None:
        before = rows[done.rows]
        for column in COMPARED:
            if row[column] != before[column]:
                done.difference = f"{column} is {row[column]}, was {before[column]}"
                raise EnoughError
        done.rows, done.steps = done.rows + 1, row["step"]
        if done.steps >= until:
            raise EnoughError

    with contextlib.suppress(EnoughError):
        train(run, compare)
    return done


def committed(name: str) -> list[Row]:
    """Return the rows of a committed run."""
    store, algorithm, task, seed = name.split("/")
    rows = [
        row
        for row in Store(RESULTS / store).rows()
        if (row["algorithm"], row["task"], str(row["seed"])) == (algorithm, task, seed)
    ]
    if not rows:
        raise ImelError(f"there is no run {name} in {RESULTS}")
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Repeat runs, two at a time; exit with 1 if one of them differs."""
    parser = flags(__doc__)
    parser.add_argument("runs", nargs="*", default=RUNS, metavar="STORE/ALGORITHM/TASK/SEED")
    parser.add_argument("--until", type=int, default=100_000, metavar="STEPS")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args(arguments)
    for name in asked.runs:
        committed(name)  # refuses before the first of them runs
    differing = 0
    with ProcessPoolExecutor(asked.processes, max_tasks_per_child=1) as pool:
        for done in pool.map(partial(repeat, until=asked.until), asked.runs):
            said = done.difference or "equal to the last digit"
            print(f"{done.name}: {done.rows} rows, {done.steps:,} steps: {said}", flush=True)
            differing += done.difference is not None
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    run_command(main)
