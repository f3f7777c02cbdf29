"""A whole report from the results of a store: its text, and the figures the text shows."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from matplotlib.figure import Figure

from imel.errors import ImelError
from imel.report import figures, markdown
from imel.report.labels import escaped, short_steps
from imel.report.results import Results, panel_title
from imel.report.scores import scores_of

PAPER_FIGURES: Mapping[str, tuple[str, ...]] = {
    # Walker2d and HalfCheetah both have the dimensions of Figure 2's second panel (Paper note 14)
    "figure2": ("mountaincar", "walker2d", "halfcheetah"),
    "figure3": ("double-pendulum", "hopper", "ant", "humanoid"),
}
PAPER_POLICIES = ("np", "mki")
PAPER_ALGORITHMS = (*PAPER_POLICIES, "trpo-plain", "trpo")
"""The paper ran TRPO without normalisation; the zoo's is today's."""

_CURVES = {
    "curves-paper.png": figures.PAPER,
    "curves-training.png": figures.TRAINING,
    "curves-evaluation.png": figures.EVALUATION,
    "curves-time.png": figures.COST,
}
_DOTS_PER_INCH = 130
_ENOUGH = 5
"""Seeds below which a bootstrap says little."""
_READING = """\
Numbers are interquartile means over seeds with 95 % bootstrap intervals in brackets. *Deterministic
return* is that of the trained policy without noise, over 20 episodes; *training return* that of the
exploring policy over the last 10 % of the steps. P is the probability that a run has the higher
deterministic return; a difference is one of deterministic returns, in bold where its interval
excludes zero. Where both have the same seeds they are drawn in pairs. A ratio of processor times,
evaluations not counted, is the median over the seeds that both have on processors of one kind."""
_SCORES = """\
Scores are (return - random) / ({0} - random): 0 is acting at random, 1 the interquartile mean of \
{0}. Over all tasks: the interquartile mean of all runs, in which every task weighs the same; \
intervals by a bootstrap within tasks. A score over fewer of the tasks says so and does not \
compare with one over all. A run has failed if its score is below half of the median that the \
algorithm reaches on its task."""
_PUBLISHED = """\
Means over seeds, beside means of ten seeds in the [recorded results of
Tianshou](https://github.com/thu-ml/tianshou/tree/master/examples/mujoco) after as many steps. Those
are of older versions of the tasks, of other settings and another evaluation: read the order of
magnitude. SAC is off-policy, and takes many times the processor time."""


@dataclass(frozen=True)
class Report:
    """Text in Markdown, and figures by the file names the text shows them under."""

    images: str
    """The figures' folder as seen by the text."""
    parts: list[str] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What a reader must know of gaps in the results; also part of the text."""

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
    """Everything there is to say of a store; `images` is the figures' folder as seen by the text.

    Comparisons are made with the baseline, and with the others named, as far as they were run.
    """
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
    if published := markdown.published_table(results, results.labels):
        report.say("## Published results", _PUBLISHED, published)
    _add_provenance(report, results)
    return report


def paper_figure(results: Results, name: str) -> Figure:
    """One of the paper's two figures of learning curves, in its style: NP, MKI and both TRPOs."""
    named = [task for task in results.tasks if task.task in PAPER_FIGURES[name]]
    tasks = tuple(task for task in named if task.of(PAPER_POLICIES))
    if not tasks:
        policies, wanted = ", ".join(PAPER_POLICIES), ", ".join(PAPER_FIGURES[name])
        raise ImelError(f"no finished run of {policies} on any of {wanted}")
    return figures.curves_figure(replace(results, tasks=tasks), PAPER_ALGORITHMS, figures.PAPER)


def png(figure: Figure) -> bytes:
    """The figure as a file that is the same every time."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()


def _notes(results: Results, baseline: str) -> list[str]:
    notes = []
    if baseline not in results.labels:
        notes.append(
            f"no run of {baseline}: there are no comparisons, and no scores over all tasks"
        )
    single = [
        f"{markdown.name_cell(group.label)} on {escaped(panel_title(results, task))}"
        for task in results.tasks
        for group in task.groups.values()
        if len(group.runs) == 1
    ]
    if single:
        notes.append(f"no interval where there is one seed, it takes two: {', '.join(single)}")
    fewest = min(len(group.runs) for group in results.groups)
    if fewest < _ENOUGH:
        seeds = f"{fewest} of the {_ENOUGH} seeds an interval should have"
        notes.append(f"some results rest on {seeds}")
    return notes


def _add_tasks(report: Report, results: Results, baseline: str, others: Sequence[str]) -> None:
    report.say("## Task by task", _READING)
    for task in results.tasks:
        if not task.groups:
            continue
        report.say(f"### {escaped(panel_title(results, task))}")
        report.say(f"{escaped(task.task)}, {short_steps(task.steps)} steps")
        report.say(markdown.task_table(task, results.labels, baseline))
        for other in others:
            if other in task.groups and len(task.groups) > 1:
                report.say(markdown.comparison_table(task, results.labels, other))


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
    report.say(_SCORES.format(markdown.name_cell(baseline)))
    report.say(markdown.scores_table(results, measures, labels, [baseline, *others]))
    drawn = figures.scores_figure(results, measures, labels, baseline)
    report.show("scores.png", "Normalised scores over all tasks", drawn)
    drawn = figures.profile_figure(results, evaluated, labels, baseline)
    report.show("profile.png", "Performance profile", drawn)


def _add_provenance(report: Report, results: Results) -> None:
    seeds = [run.seed for group in results.groups for run in group.runs]
    lines = [f"- {len(seeds)} finished runs, seeds {', '.join(map(str, sorted(set(seeds))))}"]
    if results.commits:
        commits = escaped(", ".join(results.commits))
        lines.append(f"- code of commit {commits} (`+`: with local changes)")
    lines += [f"- {note}" for note in report.notes]
    lines += [f"- failed: {escaped(line)}" for line in results.failures]
    report.say("## What this rests on", lines)
