"""What is in a store, as tables: medians and ranges over seeds, nothing more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from rich import box
from rich.table import Table

from imel.bench.store import Row, identity
from imel.bench.tasks import TASKS

_TAIL = 0.1
"""The part of a learning curve, from its end, that stands for the final stochastic return."""


@dataclass(frozen=True)
class Summary:
    """All finished seeds of one algorithm with one setting on one task."""

    task: str
    steps: int
    algorithm: str
    settings_hash: str
    returns: tuple[tuple[int, float], ...]
    """Seed and final deterministic return."""
    stochastic: float | None
    """Median over seeds of the training return over the last tenth of the steps."""
    seconds: float
    """Median over seeds of the training's wall time."""


def summarise(rows: Iterable[Row]) -> list[Summary]:
    """One summary for each algorithm and setting, in the order of tasks and then of rows."""
    groups: dict[tuple[str, int, str, str], list[list[Row]]] = {}
    for curve in _finished_curves(rows):
        last = curve[-1]
        name = " ".join([last["algorithm"], *(f"{k}={v}" for k, v in last["overrides"].items())])
        key = (last["task"], last["steps"], name, last["settings_hash"])
        groups.setdefault(key, []).append(curve)
    summaries = []
    for (task, steps, name, digest), curves in groups.items():
        tails = [tail for curve in curves if (tail := _tail_return(curve)) is not None]
        returns = sorted((curve[-1]["seed"], curve[-1]["eval_return"]) for curve in curves)
        seconds = median(curve[-1]["seconds"] for curve in curves)
        stochastic = median(tails) if tails else None
        summaries.append(Summary(task, steps, name, digest, tuple(returns), stochastic, seconds))
    order = list(TASKS)
    return sorted(
        summaries,
        key=lambda s: (order.index(s.task) if s.task in order else len(order), s.task, s.steps),
    )


def tables(summaries: Sequence[Summary]) -> list[Table]:
    """A table for each task and number of steps."""
    parts: dict[tuple[str, int], list[Summary]] = {}
    for summary in summaries:
        parts.setdefault((summary.task, summary.steps), []).append(summary)
    return [_table(task, steps, part) for (task, steps), part in parts.items()]


def failures(rows: Iterable[Row]) -> list[str]:
    """One line for each run that failed the last time and has no result."""
    rows = list(rows)
    finished = {identity(row) for row in rows if row.get("final")}
    errors = {identity(row): row for row in rows if row.get("error")}
    return [
        f"{row['task']} {row['algorithm']} seed {row['seed']}: {row['error']}"
        for run, row in errors.items()
        if run not in finished
    ]


def _finished_curves(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows of each finished run; of a run done twice, the first."""
    finished: dict[tuple[object, ...], list[Row]] = {}
    curve: list[Row] = []
    for row in rows:
        if row.get("error"):
            curve = []
            continue
        if curve and (identity(curve[-1]) != identity(row) or row["step"] <= curve[-1]["step"]):
            curve = []  # what came before was cut short
        curve.append(row)
        if row["final"]:
            finished.setdefault(identity(row), curve)
            curve = []
    return list(finished.values())


def _tail_return(curve: Sequence[Row]) -> float | None:
    """Mean return of the training episodes that ended in the last tenth of the steps."""
    start = (1 - _TAIL) * curve[-1]["step"]
    parts = [row for row in curve if row["train_episodes"] and row["step"] > start]
    if not parts:
        return None
    returns = [row["train_return"] for row in parts]
    return fmean(returns, weights=[row["train_episodes"] for row in parts])


def _table(task: str, steps: int, summaries: Sequence[Summary]) -> Table:
    table = Table(title=f"{task}, {steps:,} steps", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("algorithm")
    table.add_column("settings")
    columns = ("return of each seed", "median", "min", "max", "stochastic", "seconds", "/ trpo")
    for name in columns:
        table.add_column(name, justify="right")
    baseline = next((s.seconds for s in summaries if s.algorithm == "trpo"), None)
    for summary in summaries:
        returns = [value for _, value in summary.returns]
        table.add_row(
            summary.algorithm,
            summary.settings_hash,
            " ".join(f"{value:.1f}" for value in returns),
            *(f"{value:.1f}" for value in (median(returns), min(returns), max(returns))),
            "-" if summary.stochastic is None else f"{summary.stochastic:.1f}",
            f"{summary.seconds:.1f}",
            "-" if baseline is None else f"{summary.seconds / baseline:.2f}",
        )
    return table
