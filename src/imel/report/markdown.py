"""Tables of a report, as Markdown."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources

import numpy as np

from imel.pictures.style import Array
from imel.report.names import algorithm_name, task_title
from imel.report.results import Group, Results, TaskResults, cost_ratio, panel_title
from imel.report.scores import (
    MEASURES,
    Measure,
    Scale,
    failed,
    overall,
    overall_difference,
    overall_probability,
)
from imel.report.statistics import (
    Estimate,
    difference_of_means,
    difference_of_pairs,
    estimate,
    interquartile_mean,
    probability_of_improvement,
)

_NONE = "–"
_WHOLE = 1000.0
"""Returns as large as this are given without decimals."""
_PUBLISHED: Mapping[str, Mapping[str, Mapping[str, float]]] = tomllib.loads(
    (resources.files("imel.report") / "published.toml").read_text(encoding="utf-8")
)
"""Mean returns that others have published, by number of steps, task and algorithm."""
_PUBLISHED_ALGORITHMS = ("trpo", "ppo", "sac")


def task_table(task: TaskResults, labels: Sequence[str], baseline: str) -> list[str]:
    """Every algorithm on one task, beside the baseline where that was run."""
    groups = [task.groups[label] for label in labels if label in task.groups]
    reference = task.groups.get(baseline)
    name = algorithm_name(baseline)
    header = ["algorithm", "seeds", "deterministic return", "training return"]
    if reference is not None:
        header += [f"P(> {name})", f"difference to {name}", f"cpu / {name}"]
    rows = []
    for group in groups:
        row = [algorithm_name(group.label), str(len(group.runs)), mean_cell(group.evaluated)]
        row.append(mean_cell(group.explored))
        if reference is not None:
            row += [*_comparison(group, reference), _cost(group, reference)]
        rows.append(row)
    if task.random is not None:
        row = ["random", str(len(task.random.runs)), mean_cell(task.random.evaluated)]
        rows.append(row + [_NONE] * (len(header) - len(row)))
    return table(header, rows)


def comparison_table(task: TaskResults, labels: Sequence[str], other: str) -> list[str]:
    """Every algorithm on one task beside one more algorithm."""
    name, reference = algorithm_name(other), task.groups[other]
    header = ["algorithm", f"P(> {name})", f"difference to {name}", f"cpu / {name}"]
    rows = [
        [algorithm_name(label), *_comparison(group, reference), _cost(group, reference)]
        for label in labels
        if label != other and (group := task.groups.get(label)) is not None
    ]
    return table(header, rows)


def scores_table(
    results: Results,
    measures: Sequence[Sequence[Scale]],
    labels: Sequence[str],
    against: Sequence[str],
) -> list[str]:
    """Normalised scores over all tasks, failed runs, and each algorithm beside the others named.

    Against each of them: how often its runs win, and on how many tasks it is above, level, below.
    """
    header = ["algorithm", "score, deterministic", "score, training", "failed runs"]
    for other in against:
        name = algorithm_name(other)
        header += [f"P(> {name})", f"above / level / below {name}"]
    most = max(map(len, measures))
    rows = []
    for label in labels:
        row = [algorithm_name(label)]
        for chosen in measures:
            found = overall(chosen, label)
            if found is None:
                row.append(_NONE)
                continue
            score, tasks = found
            of_all = "" if tasks == most else f" ({tasks} of {most} tasks)"
            row.append(_interval(score, 2) + of_all)
        row.append("{} of {}".format(*failed(measures[0], label)))
        for other in against:
            better = None if other == label else overall_probability(results, label, other)
            row.append(_NONE if better is None else _interval(better, 2))
            row.append(_NONE if better is None else _tally(results, label, other))
        rows.append(row)
    return table(header, rows)


def against_table(results: Results, label: str, other: str) -> list[str]:
    """The difference of one algorithm to another on every task, and what it says.

    Of the deterministic return, and of the training return that the paper's figures show.
    """
    header = ["task (state, action)", "deterministic return", "is", "training return", "is"]
    rows = []
    for task in results.tasks:
        if not {label, other} <= set(task.groups):
            continue
        row = [task_title(task.task)]
        for measure in MEASURES:
            difference = difference_to(task.groups[label], task.groups[other], measure)
            row += [_difference(difference, 1), _verdict(difference)]
        rows.append(row)
    tallies = [_tally(results, label, other, measure) for measure in MEASURES]
    rows.append(["above / level / below", "", tallies[0], "", tallies[1]])
    return table(header, rows)


def published_table(results: Results, labels: Sequence[str]) -> list[str]:
    """Mean returns beside published ones of as many steps; no lines where none is published."""
    rows = []
    for task in results.tasks:
        published = _PUBLISHED.get(str(task.steps), {}).get(task.task)
        if published is None:
            continue
        groups = [task.groups.get(label) for label in labels]
        means = [_NONE if group is None else _mean(group.evaluated) for group in groups]
        theirs = [f"{published[name]:.0f}" for name in _PUBLISHED_ALGORITHMS]
        rows.append([panel_title(results, task), *means, *theirs])
    names = [f"{name.upper()}, published" for name in _PUBLISHED_ALGORITHMS]
    return table(["task", *map(algorithm_name, labels), *names], rows) if rows else []


def ablation_table(
    results: Results, chosen: Sequence[Scale], base: str, variants: Sequence[str]
) -> list[str]:
    """Variants of one algorithm: on each task, and over all tasks against their base."""
    tasks = [task for task in results.tasks if any(v in task.groups for v in variants)]
    header = ["variant", *(task.task for task in tasks), "score less the base's", "P(> base)"]
    rows = []
    for label in [base, *variants]:
        found = [task.groups.get(label) for task in tasks]
        row = [algorithm_name(label)]
        row += [_NONE if group is None else mean_cell(group.evaluated) for group in found]
        if label == base:
            rows.append([*row, _NONE, _NONE])
            continue
        difference = overall_difference(chosen, label, base)
        better = overall_probability(results, label, base)
        row.append(_NONE if difference is None else _difference(difference, 2))
        row.append(_NONE if better is None else _interval(better, 2))
        rows.append(row)
    return table(header, rows)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table whose first column is text and whose others are numbers."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return [
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    ]


def _comparison(group: Group, reference: Group) -> list[str]:
    if group is reference:
        return [_NONE, _NONE]
    better = estimate(probability_of_improvement, [group.evaluated, reference.evaluated])
    return [_interval(better, 2), _difference(difference_to(group, reference), 1)]


def difference_to(group: Group, reference: Group, measure: Measure = "evaluated") -> Estimate:
    """By how much one's returns are above the other's; in pairs if both have the same seeds."""
    strata = [getattr(group, measure), getattr(reference, measure)]
    seeds = [
        [run.seed for run in one.runs if getattr(run, measure) is not None]
        for one in (group, reference)
    ]
    if seeds[0] == seeds[1]:
        return estimate(difference_of_pairs, [np.stack(strata)])
    return estimate(difference_of_means, strata)


def _verdict(difference: Estimate) -> str:
    """Level where the interval of the difference holds zero; nothing is said without one."""
    if math.isnan(difference.low):
        return _NONE
    if not difference.excludes(0.0):
        return "level"
    return "above" if difference.value > 0.0 else "below"


def _tally(results: Results, label: str, other: str, measure: Measure = "evaluated") -> str:
    """On how many tasks of both one is above, level with and below the other."""
    verdicts = [
        _verdict(difference_to(task.groups[label], task.groups[other], measure))
        for task in results.tasks
        if {label, other} <= set(task.groups)
    ]
    return " / ".join(str(verdicts.count(verdict)) for verdict in ("above", "level", "below"))


def _cost(group: Group, reference: Group) -> str:
    ratio = cost_ratio(group, reference)
    return _NONE if ratio is None else _number(ratio, 2)


def mean_cell(values: Array) -> str:
    """Return the interquartile mean of returns with its interval."""
    return _interval(estimate(interquartile_mean, [values]), 1) if len(values) else _NONE


def _mean(values: Array) -> str:
    mean = float(values.mean())
    return _number(mean, 0 if abs(mean) >= _WHOLE else 1)


def _interval(value: Estimate, digits: int) -> str:
    largest = np.nanmax(np.abs([value.value, value.low, value.high]))
    digits = 0 if largest >= _WHOLE else digits  # the same for all three
    text = _number(value.value, digits)
    if math.isnan(value.low):
        return text
    return f"{text} [{_number(value.low, digits)}, {_number(value.high, digits)}]"


def _difference(value: Estimate, digits: int) -> str:
    """With its sign; bold where zero is outside the interval."""
    text = ("+" if value.value > 0 else "") + _interval(value, digits)
    return f"**{text}**" if value.excludes(0.0) else text


def _number(value: float, digits: int) -> str:
    if math.isnan(value):
        return _NONE
    return f"{round(value, digits) + 0.0:.{digits}f}"  # no minus before a zero
