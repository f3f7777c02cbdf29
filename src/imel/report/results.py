"""The rows of a store put in order: tasks, on each the algorithms, of each the seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from imel.pictures.style import Array
from imel.report.names import algorithm_order, short_steps, task_order, task_title

Row = Mapping[str, Any]

RANDOM = "random"
"""The algorithm that only acts at random: the zero of normalised scores."""
_TAIL = 0.1
"""The part of a learning curve, from its end, that stands for the final stochastic return."""


@dataclass(frozen=True)
class FinishedRun:
    """One seed from beginning to end."""

    seed: int
    evaluated: float
    """Final deterministic return."""
    explored: float | None
    """Mean return of the training episodes that ended in the last tenth of the steps."""
    seconds: float
    cpu_seconds: float | None
    processor: str | None
    """On which it ran; None in rows that do not say."""
    training: Array  # [k, 2] step, mean return of the training episodes since the row before
    evaluations: Array  # [k, 2] step, deterministic return


@dataclass(frozen=True)
class Group:
    """All finished seeds of one algorithm with one setting on one task."""

    label: str
    """Its name and what was changed of its settings; what tables and figures call it."""
    base: str | None
    """The algorithm of which this is a variant, if it is one."""
    runs: tuple[FinishedRun, ...]  # in the order of their seeds

    @property
    def evaluated(self) -> Array:
        """Final deterministic return of each seed."""
        return np.array([run.evaluated for run in self.runs])

    @property
    def explored(self) -> Array:
        """Final stochastic return of each seed that has one."""
        return np.array([run.explored for run in self.runs if run.explored is not None])


@dataclass(frozen=True)
class TaskResults:
    """What was run on one task for one number of steps."""

    task: str
    steps: int
    groups: Mapping[str, Group]  # by label, in the order of tables and legends
    random: Group | None
    """The returns of acting at random, where they were measured."""


@dataclass(frozen=True)
class Results:
    """A whole store."""

    tasks: tuple[TaskResults, ...]
    failures: tuple[str, ...]
    """One line for each run that failed the last time and has no result."""
    commits: tuple[str, ...]
    """Of the code that ran; with a `+` where it differed from the commit."""

    @property
    def labels(self) -> list[str]:
        """Every algorithm and variant, each once, in the order of tables and legends."""
        return sorted({label for task in self.tasks for label in task.groups}, key=algorithm_order)

    @property
    def variants(self) -> dict[str, str]:
        """Variants whose base was run as well, and their bases."""
        groups = [group for task in self.tasks for group in task.groups.values()]
        present = {group.label for group in groups}
        bases = {group.label: group.base for group in groups}
        return {
            label: base
            for label in self.labels
            if (base := bases[label]) is not None and base in present
        }

    @property
    def algorithms(self) -> list[str]:
        """The labels that are no variants of others."""
        return [label for label in self.labels if label not in self.variants]


def run_together(group: Group, beside: Group) -> list[tuple[FinishedRun, FinishedRun]]:
    """Pairs of runs whose times compare: those of one seed, on processors of the same name."""
    others = {(run.seed, run.processor): run for run in beside.runs}
    pairs = ((run, others.get((run.seed, run.processor))) for run in group.runs)
    return [(run, other) for run, other in pairs if other is not None]


def cost_ratio(group: Group, beside: Group) -> float | None:
    """Median ratio of processor times, over the runs whose times compare."""
    ratios = [
        run.cpu_seconds / other.cpu_seconds
        for run, other in run_together(group, beside)
        if run.cpu_seconds is not None and other.cpu_seconds
    ]
    return median(ratios) if ratios else None


def panel_title(results: Results, task: TaskResults) -> str:
    """The task's title, with the number of steps where it was run for several."""
    title = task_title(task.task)
    budgets = [other.steps for other in results.tasks if other.task == task.task]
    return title if len(budgets) == 1 else f"{title}, {short_steps(task.steps)} steps"


def gather(rows: Iterable[Row]) -> Results:
    """Everything finished in the rows of a store, independent of the order of its files."""
    rows = list(rows)
    cells: dict[tuple[str, int], dict[tuple[str, str], list[Sequence[Row]]]] = {}
    for curve in _finished_curves(rows):
        last = curve[-1]
        cell = cells.setdefault((last["task"], last["steps"]), {})
        cell.setdefault((_label(last), last["settings_hash"]), []).append(curve)
    random = {
        task: group
        for (task, _), cell in cells.items()
        for group in _groups(cell).values()
        if group.label == RANDOM
    }
    tasks = []
    for (task, steps), cell in cells.items():
        groups = {label: g for label, g in _groups(cell).items() if label != RANDOM}
        if groups or not any(other[0] == task and other[1] != steps for other in cells):
            tasks.append(TaskResults(task, steps, groups, random.get(task)))
    return Results(
        tuple(sorted(tasks, key=lambda t: (*task_order(t.task), t.steps))),
        tuple(_failures(rows)),
        tuple(sorted({_commit(row) for row in rows if row.get("commit")})),
    )


def _groups(cell: Mapping[tuple[str, str], list[Sequence[Row]]]) -> dict[str, Group]:
    """By label; the hash is added where one label stands for several settings."""
    names = [label for label, _ in cell]
    groups = {}
    for (name, digest), curves in cell.items():
        label = name if names.count(name) == 1 else f"{name} #{digest}"
        last = curves[0][-1]
        runs = sorted(map(_finished_run, curves), key=lambda run: run.seed)
        base = last["algorithm"] if last["overrides"] else None
        groups[label] = Group(label, base, tuple(runs))
    return {label: groups[label] for label in sorted(groups, key=algorithm_order)}


def _label(row: Row) -> str:
    changes = (f"{name}={value}" for name, value in row["overrides"].items())
    return " ".join([row["algorithm"], *changes])


def _finished_run(curve: Sequence[Row]) -> FinishedRun:
    last = curve[-1]
    training = [(row["step"], row["train_return"]) for row in curve if row["train_episodes"]]
    evaluated = [row for row in curve if row["eval_return"] is not None]
    return FinishedRun(
        seed=last["seed"],
        evaluated=last["eval_return"],
        explored=_tail_return(curve),
        seconds=last["seconds"],
        cpu_seconds=last.get("cpu_seconds"),
        processor=last.get("processor"),
        training=np.array(training, dtype=float).reshape(-1, 2),
        evaluations=np.array([(r["step"], r["eval_return"]) for r in evaluated], dtype=float),
    )


def _tail_return(curve: Sequence[Row]) -> float | None:
    start = (1 - _TAIL) * curve[-1]["step"]
    parts = [row for row in curve if row["train_episodes"] and row["step"] > start]
    if not parts:
        return None
    returns = [row["train_return"] for row in parts]
    return fmean(returns, weights=[row["train_episodes"] for row in parts])


def _identity(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in ("task", "algorithm", "settings_hash", "seed", "steps"))


def _finished_curves(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows of each finished run; of a run done twice, the first."""
    finished: dict[tuple[object, ...], list[Row]] = {}
    curve: list[Row] = []
    for row in rows:
        if row.get("error"):
            curve = []
            continue
        if curve and (_identity(curve[-1]) != _identity(row) or row["step"] <= curve[-1]["step"]):
            curve = []  # what came before was cut short
        curve.append(row)
        if row["final"]:
            finished.setdefault(_identity(row), curve)
            curve = []
    return list(finished.values())


def _failures(rows: Sequence[Row]) -> list[str]:
    finished = {_identity(row) for row in rows if row.get("final")}
    errors = {_identity(row): row for row in rows if row.get("error")}
    return sorted(
        f"{row['task']} {_label(row)} seed {row['seed']}: {row['error']}"
        for run, row in errors.items()
        if run not in finished
    )


def _commit(row: Row) -> str:
    commit: str = row["commit"]
    return commit[:10] + ("+" if row.get("dirty") else "")
