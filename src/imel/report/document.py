"""A whole report from the results of a store: its text, and the figures the text shows."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from imel.errors import ImelError
from imel.report.aggregate import ablation_figure, profile_figure, scores_figure
from imel.report.learning_curves import COST, EVALUATION, PAPER, TRAINING, curves_figure
from imel.report.markdown import (
    ablation_table,
    comparison_table,
    published_table,
    scores_table,
    task_table,
)
from imel.report.names import algorithm_name, short_steps
from imel.report.results import Results, panel_title
from imel.report.scores import scales

PAPER_FIGURES: Mapping[str, tuple[str, ...]] = {
    # Walker2d and HalfCheetah both have the dimensions of Figure 2's second panel (Paper note 14)
    "figure2": ("mountaincar", "walker2d", "halfcheetah"),
    "figure3": ("double-pendulum", "hopper", "ant", "humanoid"),
}
PAPER_POLICIES = ("np", "mki")
PAPER_ALGORITHMS = (*PAPER_POLICIES, "trpo-plain", "trpo")
"""The paper ran TRPO without normalisation; the zoo's is today's."""

_CURVES = {
    "curves-paper.png": PAPER,
    "curves-training.png": TRAINING,
    "curves-evaluation.png": EVALUATION,
    "curves-time.png": COST,
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
_PUBLISHED = """\
Means over seeds, beside means of ten seeds in the [recorded results of
Tianshou](https://github.com/thu-ml/tianshou/tree/master/examples/mujoco) after as many steps. Those
are of older versions of the tasks, of other settings and another evaluation: read the order of
magnitude. SAC is off-policy, and takes many times the processor time."""


@dataclass(frozen=True)
class Report:
    """Text in Markdown, and figures by the file names the text shows them under."""

    body: str
    figures: Mapping[str, Figure]
    notes: tuple[str, ...]
    """What a reader must know of gaps in the results; also part of the text."""


def make_report(results: Results, baseline: str, against: Sequence[str], images: str) -> Report:
    """Everything there is to say of a store; `images` is the figures' folder as seen by the text.

    Comparisons are made with the baseline, and with the others named, as far as they were run.
    """
    if not results.labels:
        failed = f"; failed: {'; '.join(results.failures)}" if results.failures else ""
        raise ImelError(f"the store has no finished run{failed}")
    others = [name for name in against if name != baseline and name in results.labels]
    figures: dict[str, Figure] = {
        name: curves_figure(results, results.algorithms, kind) for name, kind in _CURVES.items()
    }
    curves = (f"![{kind.caption}]({images}{name})" for name, kind in _CURVES.items())
    sections = ["\n\n".join(["## Learning curves", *curves])]
    sections.append(_tasks_section(results, baseline, others))
    notes = _notes(results, baseline)
    if baseline in results.labels:
        text, drawn, reasons = _scores_section(results, baseline, others, images)
        figures |= drawn
        notes += [f"not in the scores over all tasks: {reason}" for reason in reasons]
        sections.append(text)
    if published := published_table(results, results.algorithms):
        sections.append("\n\n".join(["## Published results", _PUBLISHED, "\n".join(published)]))
    if results.variants:
        text, drawn = _ablation_section(results, images)
        figures |= drawn
        sections.append(text)
    sections.append(_provenance_section(results, notes))
    return Report("\n\n".join(sections) + "\n", figures, tuple(notes))


def paper_figure(results: Results, name: str) -> Figure:
    """One of the paper's two figures of learning curves, in its style: NP, MKI and both TRPOs."""
    tasks = [
        task
        for task in results.tasks
        if task.task in PAPER_FIGURES[name] and any(p in task.groups for p in PAPER_POLICIES)
    ]
    if not tasks:
        raise ImelError(
            f"no finished run of {', '.join(PAPER_POLICIES)} on any of "
            f"{', '.join(PAPER_FIGURES[name])}"
        )
    return curves_figure(replace(results, tasks=tuple(tasks)), PAPER_ALGORITHMS, PAPER)


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
        f"{algorithm_name(label)} on {panel_title(results, task)}"
        for task in results.tasks
        for label, group in task.groups.items()
        if len(group.runs) == 1
    ]
    if single:
        notes.append(f"no interval where there is one seed, it takes two: {', '.join(single)}")
    fewest = min(len(group.runs) for task in results.tasks for group in task.groups.values())
    if fewest < _ENOUGH:
        notes.append(
            f"some results rest on {fewest} of the {_ENOUGH} seeds an interval should have"
        )
    return notes


def _tasks_section(results: Results, baseline: str, others: Sequence[str]) -> str:
    parts = ["## Task by task", _READING]
    for task in results.tasks:
        if not task.groups:
            continue
        title = f"### {panel_title(results, task)}"
        parts.append(f"{title}\n\n{task.task}, {short_steps(task.steps)} steps")
        parts.append("\n".join(task_table(task, results.algorithms, baseline)))
        parts += [
            "\n".join(comparison_table(task, results.algorithms, other))
            for other in others
            if other in task.groups and len(task.groups) > 1
        ]
    return "\n\n".join(parts)


def _scores_section(
    results: Results, baseline: str, others: Sequence[str], images: str
) -> tuple[str, dict[str, Figure], list[str]]:
    evaluated, reasons = scales(results, baseline, "evaluated")
    explored, more = scales(results, baseline, "explored")
    reasons += [f"training return on {reason}" for reason in more if reason not in reasons]
    if not evaluated:
        return "## All tasks\n\nNo task has a scale; the notes below say why.", {}, reasons
    labels = results.algorithms
    figures = {
        "scores.png": scores_figure(results, [evaluated, explored], labels, baseline),
        "profile.png": profile_figure(results, evaluated, labels, baseline),
    }
    parts = [
        "## All tasks",
        f"Scores are (return - random) / ({algorithm_name(baseline)} - random): 0 is acting at "
        f"random, 1 the interquartile mean of {algorithm_name(baseline)}. Over all tasks: the "
        "interquartile mean of all runs, in which every task weighs the same; intervals by a "
        "bootstrap within tasks. A score over fewer of the tasks says so and does not compare "
        "with one over all. A run has failed if its score is below half of the median that the "
        "algorithm reaches on its task.",
        "\n".join(
            scores_table(results, [evaluated, explored], labels, [baseline, *others]),
        ),
        f"![Normalised scores over all tasks]({images}scores.png)",
        f"![Performance profile]({images}profile.png)",
    ]
    return "\n\n".join(parts), figures, reasons


def _ablation_section(results: Results, images: str) -> tuple[str, dict[str, Figure]]:
    parts = [
        "## Ablations",
        "Each variant differs from its base in what its name says. The difference over all tasks "
        "is one of scores in which 0 is acting at random and 1 is the base; it is over the tasks "
        "the variant was run on.",
    ]
    figures: dict[str, Figure] = {}
    for base in dict.fromkeys(results.variants.values()):
        variants = [label for label, of in results.variants.items() if of == base]
        chosen, _ = scales(results, base, "evaluated")
        parts.append("\n".join(ablation_table(results, chosen, base, variants)))
        shared = [s for s in chosen if any(s.scores(label) is not None for label in variants)]
        if shared:
            name = f"ablations-{base}.png"
            figures[name] = ablation_figure(shared, base, variants)
            parts.append(f"![Variants of {algorithm_name(base)} beside it]({images}{name})")
    return "\n\n".join(parts), figures


def _provenance_section(results: Results, notes: Sequence[str]) -> str:
    lines = ["## What this rests on", ""]
    runs = [run for task in results.tasks for g in task.groups.values() for run in g.runs]
    seeds = ", ".join(map(str, sorted({run.seed for run in runs})))
    lines.append(f"- {len(runs)} finished runs, seeds {seeds}")
    if results.commits:
        lines.append(f"- code of commit {', '.join(results.commits)} (`+`: with local changes)")
    lines += [f"- {note}" for note in notes]
    lines += [f"- failed: {line}" for line in results.failures]
    return "\n".join(lines)
