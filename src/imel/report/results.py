"""The rows of a store put in order: tasks, on each the algorithms, of each the seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from imel.report.labels import algorithm_order, short_steps, task_order, task_title
from imel.report.statistics import Array

Row = Mapping[str, Any]

RANDOM = "random"
"""The algorithm that only acts at random: the zero of normalised scores."""
_TAIL = 0.1
"""The part of a learning curve, from its end, that stands for the final stochastic return."""
_LONGEST = 500
"""Letters of a label or an error that are shown."""


@dataclass(frozen=True)
class FinishedRun:
    """One seed from beginning to end."""

    seed: int
    evaluated: float  # final deterministic return
    explored: (
        float | None
    )  # mean of the training episodes that ended in the last tenth of the steps
    seconds: float
    cpu_seconds: float | None
    processor: str | None  # on which it ran; None in rows that do not say
    training: Array  # [k, 2] step, mean return of the training episodes since the row before
    evaluations: Array  # [k, 2] step, deterministic return


@dataclass(frozen=True)
class Group:
    """All finished seeds of one algorithm with one setting on one task."""

    label: str  # its name and what was changed of its settings: what tables and figures call it
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

    def of(self, labels: Iterable[str]) -> list[Group]:
        """The groups with these labels, as far as they were run."""
        return [self.groups[label] for label in labels if label in self.groups]

    def returns(self, label: str, measure: str) -> Array:
        """One of the two returns of a group; empty where it was not run."""
        return getattr(self.groups[label], measure) if label in self.groups else np.empty(0)


@dataclass(frozen=True)
class Results:
    """A whole store."""

    tasks: tuple[TaskResults, ...]
    failures: tuple[str, ...]
    """One line for each run that failed the last time and has no result."""
    commits: tuple[str, ...]
    """Of the code that ran; with a `+` where it differed from the commit."""

    def tasks_of(self, *labels: str) -> list[TaskResults]:
        """The tasks on which all of these were run."""
        return [task for task in self.tasks if set(labels) <= set(task.groups)]

    @property
    def groups(self) -> list[Group]:
        """Those of all tasks."""
        return [group for task in self.tasks for group in task.groups.values()]

    @property
    def labels(self) -> list[str]:
        """Every algorithm and variant, each once, in the order of tables and legends."""
        return sorted({group.label for group in self.groups}, key=algorithm_order)


def run_together(group: Group, beside: Group) -> list[tuple[FinishedRun, FinishedRun]]:
    """Pairs of runs whose times compare: those of one seed, on processors of the same name."""
    others = {(run.seed, run.processor): run for run in beside.runs}
    pairs = ((run, others.get((run.seed, run.processor))) for run in group.runs)
    return [(run, other) for run, other in pairs if other is not None]


def cost_ratio(group: Group, beside: Group) -> float | None:
    """The median ratio of processor times of runs whose times compare, or None if none do."""
    ratios = [
        run.cpu_seconds / other.cpu_seconds
        for run, other in run_together(group, beside)
        if run.cpu_seconds is not None and other.cpu_seconds
    ]
    return median(ratios) if ratios else None


def panel_title(results: Results, task: TaskResults) -> str:
    """The task's title, with the number of steps where it was run for several."""
    budgets = [other.steps for other in results.tasks if other.task == task.task]
    steps = "" if len(budgets) == 1 else f", {short_steps(task.steps)} steps"
    return f"{task_title(task.task)}{steps}"


def gather(rows: Iterable[Row]) -> Results:
    """Everything finished in the rows of a store, independent of the order of its files."""
    rows = list(rows)
    curves = _finished_curves(rows)
    cells: dict[tuple[str, int], list[list[Row]]] = defaultdict(list)
    for curve in curves.values():
        cells[curve[-1]["task"], curve[-1]["steps"]].append(curve)
    groups = {cell: _groups(found) for cell, found in cells.items()}
    random = {task: found[RANDOM] for (task, _), found in groups.items() if RANDOM in found}
    tasks = []
    for (task, steps), found in groups.items():
        learned = {label: group for label, group in found.items() if label != RANDOM}
        if learned or sum(name == task for name, _ in groups) == 1:
            tasks.append(TaskResults(task, steps, learned, random.get(task)))
    tasks.sort(key=lambda each: (*task_order(each.task), each.steps))
    failed = {_identity(row): row for row in rows if row.get("error")}
    failures = {
        _plain(f"{row['task']} {_label(row)} seed {row['seed']}: {row['error']}")
        for run, row in failed.items()
        if run not in curves
    }
    commits = {
        _plain(row["commit"][:10]) + ("+" if row.get("dirty") else "")
        for row in rows
        if row.get("commit")
    }
    return Results(tuple(tasks), tuple(sorted(failures)), tuple(sorted(commits)))


def _finished_curves(rows: Iterable[Row]) -> dict[tuple[object, ...], list[Row]]:
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
    return finished


def _identity(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in ("task", "algorithm", "settings_hash", "seed", "steps"))


def _groups(curves: Sequence[Sequence[Row]]) -> dict[str, Group]:
    """By label; the hash is added where one label stands for several settings."""
    alike: dict[tuple[str, str], list[Sequence[Row]]] = defaultdict(list)
    for curve in curves:
        alike[_label(curve[-1]), curve[-1]["settings_hash"]].append(curve)
    names = [name for name, _ in alike]
    groups = []
    for (name, digest), found in alike.items():
        label = name if names.count(name) == 1 else f"{name} #{digest}"
        runs = sorted(map(_finished_run, found), key=lambda run: run.seed)
        groups.append(Group(label, tuple(runs)))
    return {each.label: each for each in sorted(groups, key=lambda g: algorithm_order(g.label))}


def _label(row: Row) -> str:
    changes = (f"{name}={value}" for name, value in row["overrides"].items())
    return _plain(" ".join([row["algorithm"], *changes]))


def _plain(text: str) -> str:
    """Text from a row without what terminals obey, and figures set as mathematics."""
    return "".join(c if c.isprintable() and c != "$" else " " for c in text[:_LONGEST])


def _finished_run(curve: Sequence[Row]) -> FinishedRun:
    last = curve[-1]
    trained = [row for row in curve if row["train_episodes"] and row["train_return"] is not None]
    tail = [row for row in trained if row["step"] > (1 - _TAIL) * last["step"]]
    returns, episodes = ([row[f"train_{of}"] for row in tail] for of in ("return", "episodes"))
    evaluated = [row for row in curve if row["eval_return"] is not None]
    training = [(row["step"], row["train_return"]) for row in trained]
    return FinishedRun(
        seed=last["seed"],
        evaluated=last["eval_return"],
        explored=fmean(returns, weights=episodes) if tail else None,
        seconds=last["seconds"],
        cpu_seconds=last.get("cpu_seconds"),
        processor=last.get("processor"),
        training=np.array(training, dtype=float).reshape(-1, 2),
        evaluations=np.array([(r["step"], r["eval_return"]) for r in evaluated], dtype=float),
    )
