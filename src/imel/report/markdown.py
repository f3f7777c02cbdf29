"""Tables of a report, as Markdown."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources

import numpy as np

from imel.report.labels import algorithm_name, escaped, task_title
from imel.report.results import Group, Results, TaskResults, cost_ratio, panel_title
from imel.report.scores import (
    MEASURES,
    Measure,
    Scores,
    failed,
    overall,
    overall_probability,
)
from imel.report.statistics import (
    Array,
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


def name_cell(label: str) -> str:
    """What a table calls an algorithm."""
    return escaped(algorithm_name(label))


def task_table(task: TaskResults, labels: Sequence[str], baseline: str) -> list[str]:
    """Every algorithm on one task, beside the baseline where that was run."""
    reference = task.groups.get(baseline)
    header = ["algorithm", "seeds", "deterministic return", "training return"]
    header += [] if reference is None else _headings(baseline)
    rows = []
    for group in [*task.of(labels), *([task.random] if task.random else [])]:
        row = [name_cell(group.label), str(len(group.runs)), mean_cell(group.evaluated)]
        row.append(mean_cell(group.explored))
        if reference is not None and group is not task.random:
            row += _comparison(group, reference)
        rows.append(row + [_NONE] * (len(header) - len(row)))
    return table(header, rows)


def comparison_table(task: TaskResults, labels: Sequence[str], other: str) -> list[str]:
    """Every algorithm on one task beside one more algorithm."""
    groups = task.of(label for label in labels if label != other)
    rows = [[name_cell(each.label), *_comparison(each, task.groups[other])] for each in groups]
    return table(["algorithm", *_headings(other)], rows)


def scores_table(
    results: Results,
    measures: Sequence[Scores],
    labels: Sequence[str],
    against: Sequence[str],
) -> list[str]:
    """Normalised scores over all tasks, failed runs, and each algorithm beside the others named.

    Against each of them: how often its runs win, and on how many tasks it is above, level, below.
    """
    header = ["algorithm", "score, deterministic", "score, training", "failed runs"]
    for other in map(name_cell, against):
        header += [f"P(> {other})", f"above / level / below {other}"]
    most = max(map(len, measures))
    rows = []
    for label in labels:
        row = [name_cell(label)]
        for scores in measures:
            score, tasks = overall(scores, label) or (None, most)
            row.append(
                _interval(score, 2) + ("" if tasks == most else f" ({tasks} of {most} tasks)")
            )
        row.append("{} of {}".format(*failed(measures[0], label)))
        for other in against:
            better = None if other == label else overall_probability(results, label, other)
            tally = _NONE if better is None else _tally(results, label, other, "evaluated")
            row += [_interval(better, 2), tally]
        rows.append(row)
    return table(header, rows)


def against_table(results: Results, label: str, other: str) -> list[str]:
    """The difference of one algorithm to another on every task, and what it says.

    Of the deterministic return, and of the training return that the paper's figures show.
    """
    header = ["task (state, action)", "deterministic return", "is", "training return", "is"]
    rows = []
    for task in results.tasks_of(label, other):
        row = [escaped(task_title(task.task))]
        for measure in MEASURES:
            difference = difference_to(task.groups[label], task.groups[other], measure)
            row += [_difference(difference, 1), _verdict(difference)]
        rows.append(row)
    tallies = [_tally(results, label, other, measure) for measure in MEASURES]
    return table(header, [*rows, ["above / level / below", "", tallies[0], "", tallies[1]]])


def published_table(results: Results, labels: Sequence[str]) -> list[str]:
    """Mean returns beside published ones of as many steps; no lines where none is published."""
    rows = []
    for task in results.tasks:
        published = _PUBLISHED.get(str(task.steps), {}).get(task.task)
        if published is None:
            continue
        returns = [task.returns(label, "evaluated") for label in labels]
        ours = [_number(float(each.mean()), 1) if len(each) else _NONE for each in returns]
        theirs = [f"{published[name]:.0f}" for name in _PUBLISHED_ALGORITHMS]
        rows.append([panel_title(results, task), *ours, *theirs])
    names = [f"{name.upper()}, published" for name in _PUBLISHED_ALGORITHMS]
    return table(["task", *map(name_cell, labels), *names], rows) if rows else []


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table whose first column is text and whose others are numbers."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def difference_to(group: Group, reference: Group, measure: Measure = "evaluated") -> Estimate:
    """By how much one's returns are above the other's; in pairs if both have the same seeds."""
    strata = [getattr(group, measure), getattr(reference, measure)]
    seeds, others = (
        [run.seed for run in one.runs if getattr(run, measure) is not None]
        for one in (group, reference)
    )
    if seeds == others:
        return estimate(difference_of_pairs, [np.stack(strata)])
    return estimate(difference_of_means, strata)


def mean_cell(values: Array) -> str:
    """Return the interquartile mean of returns with its interval."""
    return _interval(estimate(interquartile_mean, [values]), 1) if len(values) else _NONE


def _headings(other: str) -> list[str]:
    name = name_cell(other)
    return [f"P(> {name})", f"difference to {name}", f"cpu / {name}"]


def _comparison(group: Group, reference: Group) -> list[str]:
    """What stands under these headings."""
    ratio = cost_ratio(group, reference)
    cost = _NONE if ratio is None else _number(ratio, 2)
    if group is reference:
        return [_NONE, _NONE, cost]
    better = estimate(probability_of_improvement, [group.evaluated, reference.evaluated])
    return [_interval(better, 2), _difference(difference_to(group, reference), 1), cost]


def _verdict(difference: Estimate) -> str:
    """Level where the interval of the difference holds zero; nothing is said without one."""
    if math.isnan(difference.low):
        return _NONE
    if not difference.excludes(0.0):
        return "level"
    return "above" if difference.value > 0.0 else "below"


def _tally(results: Results, label: str, other: str, measure: Measure) -> str:
    """On how many tasks of both one is above, level with and below the other."""
    verdicts = [
        _verdict(difference_to(task.groups[label], task.groups[other], measure))
        for task in results.tasks_of(label, other)
    ]
    return " / ".join(str(verdicts.count(verdict)) for verdict in ("above", "level", "below"))


def _interval(value: Estimate | None, digits: int) -> str:
    if value is None:
        return _NONE
    largest = np.nanmax(np.abs([value.value, value.low, value.high]))
    digits = 0 if largest >= _WHOLE else digits  # the same for all three
    text = _number(value.value, digits)
    if math.isnan(value.low):
        return text
    return f"{text} [{_number(value.low, digits)}, {_number(value.high, digits)}]"


def _difference(value: Estimate | None, digits: int) -> str:
    """With its sign; bold where zero is outside the interval."""
    if value is None:
        return _NONE
    text = ("+" if value.value > 0 else "") + _interval(value, digits)
    return f"**{text}**" if value.excludes(0.0) else text


def _number(value: float, digits: int) -> str:
    digits = 0 if abs(value) >= _WHOLE else digits
    return f"{round(value, digits) + 0.0:.{digits}f}"  # no minus before a zero
