"""The rows of a store put in order: tasks, on each the algorithms, of each the seeds.

And returns of different tasks on one scale: 0 is acting at random, 1 a reference algorithm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

import numpy as np

from imel.bench.store import Row, identity
from imel.report import statistics
from imel.report.labels import algorithm_order, escaped, short_steps, task_order, task_title
from imel.report.statistics import Array, Estimate, estimate

Measure = Literal["evaluated", "explored"]
"""Final deterministic return, or the stochastic one of the last tenth of the steps."""
MEASURES: tuple[Measure, ...] = ("evaluated", "explored")
Scores = Mapping[tuple[str, int], Mapping[str, Array]]
"""By task and number of steps, then by label: the score of each seed."""

RANDOM = "random"  # the algorithm that only acts at random: the zero of normalised scores
_TAIL = 0.1  # the end of a learning curve that stands for the final stochastic return
_LONGEST = 500  # letters of a label or an error that are shown


@dataclass(frozen=True)
class FinishedRun:
    """One seed from beginning to end."""

    seed: int
    evaluated: float  # final deterministic return
    explored: float | None  # mean of training episodes that ended in the last tenth of the steps
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
    random: Group | None  # the returns of acting at random, where they were measured

    def of(self, labels: Iterable[str]) -> list[Group]:
        """The groups with these labels, as far as they were run."""
        return [self.groups[label] for label in labels if label in self.groups]


@dataclass(frozen=True)
class Results:
    """A whole store."""

    tasks: tuple[TaskResults, ...]
    failures: tuple[str, ...]  # a line for each run that failed the last time and has no result
    commits: tuple[str, ...]  # of the code that ran; with a `+` where it differed from the commit

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
    found = [run for run in group.runs if (run.seed, run.processor) in others]
    return [(run, others[run.seed, run.processor]) for run in found]


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
    last = {identity(row): row for row in rows if row.get("error")}
    failures = {
        _plain(f"{row['task']} {_label(row)} seed {row['seed']}: {row['error']}")
        for run, row in last.items()
        if run not in curves
    }
    named = [row for row in rows if row.get("commit")]
    commits = {_plain(row["commit"][:10]) + "+" * bool(row.get("dirty")) for row in named}
    return Results(tuple(tasks), tuple(sorted(failures)), tuple(sorted(commits)))


def _finished_curves(rows: Iterable[Row]) -> dict[tuple[object, ...], list[Row]]:
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
    return finished


def _groups(curves: Sequence[Sequence[Row]]) -> dict[str, Group]:
    """By label; the hash is added where one label stands for several settings."""
    alike: dict[tuple[str, str], list[FinishedRun]] = defaultdict(list)
    for curve in curves:
        alike[_label(curve[-1]), curve[-1]["settings_hash"]].append(_finished_run(curve))
    names, groups = [name for name, _ in alike], {}
    for (name, digest), runs in alike.items():
        label = name if names.count(name) == 1 else f"{name} #{digest}"
        groups[label] = Group(label, tuple(sorted(runs, key=lambda run: run.seed)))
    return {label: groups[label] for label in sorted(groups, key=algorithm_order)}


def _label(row: Row) -> str:
    changes = [f"{name}={value}" for name, value in row["overrides"].items()]
    return _plain(" ".join([row["algorithm"], *changes]))


def _plain(text: str) -> str:
    """Text from a row without what terminals obey, and figures set as mathematics."""
    return "".join(c if c.isprintable() and c != "$" else " " for c in text[:_LONGEST])


def _finished_run(curve: Sequence[Row]) -> FinishedRun:
    last = curve[-1]
    trained = [row for row in curve if row["train_episodes"] and row["train_return"] is not None]
    tail = [row for row in trained if row["step"] > (1 - _TAIL) * last["step"]]
    returns, episodes = ([row[f"train_{of}"] for row in tail] for of in ("return", "episodes"))
    training = [(row["step"], row["train_return"]) for row in trained]
    evaluated = [(r["step"], r["eval_return"]) for r in curve if r["eval_return"] is not None]
    return FinishedRun(
        seed=last["seed"],
        evaluated=last["eval_return"],
        explored=fmean(returns, weights=episodes) if tail else None,
        seconds=last["seconds"],
        cpu_seconds=last.get("cpu_seconds"),
        processor=last.get("processor"),
        training=np.array(training, dtype=float).reshape(-1, 2),
        evaluations=np.array(evaluated, dtype=float),
    )


# --- scores ---


def scores_of(results: Results, reference: str, measure: Measure) -> tuple[Scores, list[str]]:
    """Scores on each task that has a scale; one line for each that has none, with the reason."""
    found, reasons = {}, []
    for task in results.tasks:
        returns = {label: getattr(group, measure) for label, group in task.groups.items()}
        if not returns:
            continue
        if not len(returns.get(reference, ())):
            reason = f"no result of {reference}"
        elif task.random is None:
            reason = "no result of acting at random (`imel bench random`)"
        else:
            level = estimate(statistics.interquartile_mean, [returns[reference]])
            random = float(task.random.evaluated.mean())
            if np.nanmin([level.value, level.low]) > random:
                unit = level.value - random
                scaled = {n: (each - random) / unit for n, each in returns.items() if len(each)}
                found[task.task, task.steps] = scaled
                continue
            reason = f"{reference} cannot be told from acting at random there"
        reasons.append(f"{escaped(panel_title(results, task))}: {reason}")
    return found, reasons


def _strata(scores: Scores, label: str) -> list[Array]:
    """The scores of an algorithm on each task on which it was run."""
    return [groups[label] for groups in scores.values() if label in groups]


def overall(scores: Scores, label: str) -> tuple[Estimate, int] | None:
    """Interquartile mean of an algorithm's scores, tasks counted alike, and over how many tasks."""
    found = _strata(scores, label)
    return (estimate(statistics.balanced_mean, found), len(found)) if found else None


def failed(scores: Scores, label: str) -> tuple[int, int]:
    """How many of an algorithm's runs score below half of their median on a task, and all."""
    found = _strata(scores, label)
    below = sum(int((each < np.median(each) / 2.0).sum()) for each in found)
    return below, sum(map(len, found))


def overall_probability(results: Results, label: str, other: str) -> Estimate | None:
    """How often one beats the other's deterministic return, over the tasks of both."""
    shared = results.tasks_of(label, other)
    returns = [task.groups[name].evaluated for name in (label, other) for task in shared]
    return estimate(statistics.probability_of_improvement, returns) if returns else None
