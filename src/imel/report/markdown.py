"""A whole report from the results of a store: its tables, its text, the figures the text shows."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from matplotlib.figure import Figure

from imel.errors import ImelError
from imel.report import figures, statistics
from imel.report.labels import algorithm_name, escaped, short_steps, task_title
from imel.report.results import (
    MEASURES,
    Group,
    Measure,
    Results,
    Scores,
    TaskResults,
    cost_ratio,
    failed,
    overall,
    overall_probability,
    panel_title,
    scores_of,
)
from imel.report.statistics import Array, Estimate, estimate

PAPER_FIGURES: Mapping[str, tuple[str, ...]] = {
    # Walker2d and HalfCheetah both have the dimensions of Figure 2's second panel (Paper note 14)
    "figure2": ("mountaincar", "walker2d", "halfcheetah"),
    "figure3": ("double-pendulum", "hopper", "ant", "humanoid"),
}
PAPER_POLICIES = ("np", "mki")
PAPER_ALGORITHMS = (*PAPER_POLICIES, "trpo-plain", "trpo")  # the paper's, and today's
_CURVES = {
    "curves-paper.png": figures.PAPER,
    "curves-training.png": figures.TRAINING,
    "curves-evaluation.png": figures.EVALUATION,
    "curves-time.png": figures.COST,
}
_DOTS_PER_INCH = 130
_ENOUGH = 5  # seeds; below, a bootstrap says little
_READING = """\
Numbers are interquartile means over seeds with 95 % bootstrap intervals in brackets. *Deterministic
return* is that of the trained policy without noise, over 20 episodes; *training return* that of the
exploring policy over the last 10 % of the steps. A difference is one of deterministic returns, in
bold where its interval excludes zero. Where both have the same seeds they are drawn in pairs. A
ratio of processor times, evaluations not counted, is the median over the seeds that both have on
processors of one kind."""
_SCORES = """\
Scores are (return - random) / ({0} - random): 0 is acting at random, 1 the interquartile mean of \
{0}. Over all tasks: the interquartile mean of all runs, in which every task weighs the same; \
intervals by a bootstrap within tasks. P is the probability that a run has the higher \
deterministic return. A score over fewer of the tasks says so and does not compare with one over \
all. A run has failed if its score is below half of the median that the algorithm reaches \
on its task."""
_NONE = "–"
_WHOLE = 1000.0  # returns as large as this are given without decimals


@dataclass(frozen=True)
class Report:
    """Text in Markdown, and figures by the file names the text shows them under."""

    images: str  # the figures' folder as seen by the text
    parts: list[str] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # of gaps in the results; also in the text

    @property
    def body(self) -> str:
        """The text."""
        return "\n\n".join(self.parts) + "\n"

    def say(self, *parts: str | Sequence[str]) -> None:
        """Add paragraphs, and tables by their lines."""
        self.parts.extend(part if isinstance(part, str) else "\n".join(part) for part in parts)

    def show(self, name: str, caption: str, figure: Figure) -> None:
        """Add a figure."""
        self.figures[name] = figure
        self.say(f"![{caption}]({self.images}{name})")


def make_report(results: Results, baseline: str, against: Sequence[str], images: str) -> Report:
    """Everything there is to say of a store, in comparison with the baseline and the others."""
    if not results.labels:
        failed = f"; failed: {'; '.join(results.failures)}" if results.failures else ""
        raise ImelError(f"the store has no finished run{failed}")
    others = [name for name in against if name != baseline and name in results.labels]
    report = Report(images, notes=_notes(results, baseline))
    report.say("## Learning curves")
    for name, kind in _CURVES.items():
        report.show(name, kind.caption, figures.curves_figure(results, results.labels, kind))
    _add_tasks(report, results, baseline, others)
    if baseline in results.labels:
        _add_scores(report, results, baseline, others)
    _add_provenance(report, results)
    return report


def paper_figure(results: Results, name: str) -> Figure:
    """One of the paper's two figures of learning curves, in its style: NP, MKI and both TRPOs."""
    named = [task for task in results.tasks if task.task in PAPER_FIGURES[name]]
    tasks = tuple(task for task in named if task.of(PAPER_POLICIES))
    if not tasks:
        words = (", ".join(each) for each in (PAPER_POLICIES, PAPER_FIGURES[name]))
        raise ImelError("no finished run of {} on any of {}".format(*words))
    return figures.curves_figure(replace(results, tasks=tasks), PAPER_ALGORITHMS, figures.PAPER)


def png(figure: Figure) -> bytes:
    """The figure as a file that is the same every time."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()


def _notes(results: Results, baseline: str) -> list[str]:
    notes = []
    if baseline not in results.labels:
        notes.append(f"no run of {baseline}: there are no comparisons, no scores over all tasks")
    fewest = min(len(group.runs) for group in results.groups)
    if fewest == 1:
        notes.append("no interval where there is one seed, it takes two")
    if fewest < _ENOUGH:
        notes.append(f"some results rest on {fewest} of the {_ENOUGH} seeds an interval needs")
    return notes


def _add_tasks(report: Report, results: Results, baseline: str, others: Sequence[str]) -> None:
    report.say("## Task by task", _READING)
    for task in (each for each in results.tasks if each.groups):
        steps = f"{escaped(task.task)}, {short_steps(task.steps)} steps"
        report.say(f"### {escaped(panel_title(results, task))}", steps)
        report.say(task_table(task, results.labels, baseline))
        for other in others:
            if other in task.groups and len(task.groups) > 1:
                report.say(comparison_table(task, results.labels, other))


def _add_scores(report: Report, results: Results, baseline: str, others: Sequence[str]) -> None:
    evaluated, reasons = scores_of(results, baseline, "evaluated")
    explored, more = scores_of(results, baseline, "explored")
    reasons += [f"training return on {reason}" for reason in more if reason not in reasons]
    report.notes.extend(f"not in the scores over all tasks: {each}" for each in reasons)
    report.say("## All tasks")
    if not evaluated:
        report.say("No task has a scale; the notes below say why.")
        return
    labels, measures = results.labels, [evaluated, explored]
    table_of_scores = scores_table(results, measures, labels, [baseline, *others])
    report.say(_SCORES.format(name_cell(baseline)), table_of_scores)
    drawn = figures.scores_figure(results, measures, labels, baseline)
    report.show("scores.png", "Normalised scores over all tasks", drawn)


def _add_provenance(report: Report, results: Results) -> None:
    seeds = [run.seed for group in results.groups for run in group.runs]
    lines = [f"- {len(seeds)} finished runs, seeds {', '.join(map(str, sorted(set(seeds))))}"]
    if commits := escaped(", ".join(results.commits)):
        lines.append(f"- code of commit {commits} (`+`: with local changes)")
    lines += [f"- {note}" for note in report.notes]
    lines += [f"- failed: {escaped(line)}" for line in results.failures]
    report.say("## What this rests on", lines)


# --- tables ---


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
    results: Results, measures: Sequence[Scores], labels: Sequence[str], against: Sequence[str]
) -> list[str]:
    """Normalised scores over all tasks, failed runs, and each algorithm beside the others named."""
    header = ["algorithm", "score, deterministic", "score, training", "failed runs"]
    for other in map(name_cell, against):
        header += [f"P(> {other})", f"above / level / below {other}"]
    most = max(map(len, measures))
    rows = []
    for label in labels:
        row = [name_cell(label)]
        for scores in measures:
            score, tasks = overall(scores, label) or (None, most)
            fewer = "" if tasks == most else f" ({tasks} of {most} tasks)"
            row.append(f"{_interval(score, 2)}{fewer}")
        row.append("{} of {}".format(*failed(measures[0], label)))
        for other in against:
            better = None if other == label else overall_probability(results, label, other)
            tally = _NONE if better is None else _tally(results, label, other, "evaluated")
            row += [_interval(better, 2), tally]
        rows.append(row)
    return table(header, rows)


def against_table(results: Results, label: str, other: str) -> list[str]:
    """The difference of one algorithm to another on every task, of either return, and its sense."""
    header = ["task (state, action)", "deterministic return", "is", "training return", "is"]
    rows = []
    for task in results.tasks_of(label, other):
        row = [escaped(task_title(task.task))]
        for measure in MEASURES:
            difference = difference_to(task.groups[label], task.groups[other], measure)
            row += [_difference(difference), _verdict(difference)]
        rows.append(row)
    tallies = [_tally(results, label, other, measure) for measure in MEASURES]
    return table(header, [*rows, ["above / level / below", "", tallies[0], "", tallies[1]]])


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
        return estimate(statistics.difference_of_pairs, [np.stack(strata)])
    return estimate(statistics.difference_of_means, strata)


def mean_cell(values: Array) -> str:
    """Return the interquartile mean of returns with its interval."""
    return _interval(estimate(statistics.interquartile_mean, [values]), 1) if len(values) else _NONE


def _headings(other: str) -> list[str]:
    name = name_cell(other)
    return [f"difference to {name}", f"cpu / {name}"]


def _comparison(group: Group, reference: Group) -> list[str]:
    """What stands under these headings."""
    ratio = cost_ratio(group, reference)
    cost = _NONE if ratio is None else _number(ratio, 2)
    if group is reference:
        return [_NONE, cost]
    return [_difference(difference_to(group, reference)), cost]


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
    numbers = [value.value, value.low, value.high]
    digits = 0 if np.nanmax(np.abs(numbers)) >= _WHOLE else digits  # the same for all three
    middle, low, high = (_number(each, digits) for each in numbers)
    return middle if math.isnan(value.low) else f"{middle} [{low}, {high}]"


def _difference(value: Estimate) -> str:
    """With its sign; bold where zero is outside the interval."""
    text = ("+" if value.value > 0 else "") + _interval(value, 1)
    return f"**{text}**" if value.excludes(0.0) else text


def _number(value: float, digits: int) -> str:
    digits = 0 if abs(value) >= _WHOLE else digits
    return f"{round(value, digits) + 0.0:.{digits}f}"  # no minus before a zero
