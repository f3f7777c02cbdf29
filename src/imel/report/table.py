"""What is in a store, as tables for a terminal: every seed, medians and ranges, nothing more."""

from __future__ import annotations

from statistics import median

from rich import box
from rich.table import Table

from imel.report.results import Group, Results, TaskResults

_COLUMNS = ("return of each seed", "median", "min", "max", "stochastic", "seconds", "/ trpo")


def tables(results: Results) -> list[Table]:
    """A table for each task and number of steps."""
    return [_table(task) for task in results.tasks]


def _table(results: TaskResults) -> Table:
    title = f"{results.task}, {results.steps:,} steps"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("algorithm", min_width=9, overflow="fold")
    for name in _COLUMNS:
        # A narrow terminal breaks the list of seeds, not the numbers
        table.add_column(name, justify="right", no_wrap=name != _COLUMNS[0])
    baseline = results.groups.get("trpo")
    for group in results.groups.values():
        table.add_row(*_cells(group, baseline))
    if results.random is not None:
        table.add_row(*_cells(results.random, None))
    return table


def _cells(group: Group, baseline: Group | None) -> list[str]:
    returns = group.evaluated
    seconds = _seconds(group)
    return [
        group.label,
        " ".join(f"{value:.1f}" for value in returns),
        *(f"{value:.1f}" for value in (median(returns), min(returns), max(returns))),
        f"{median(group.explored):.1f}" if len(group.explored) else "-",
        f"{seconds:.1f}",
        "-" if baseline is None else f"{seconds / _seconds(baseline):.2f}",
    ]


def _seconds(group: Group) -> float:
    return median(run.seconds for run in group.runs)
