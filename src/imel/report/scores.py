"""Returns of different tasks on one scale: 0 is acting at random, 1 a reference algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from imel.report import statistics
from imel.report.labels import escaped
from imel.report.results import Results, panel_title
from imel.report.statistics import Array, Estimate, estimate

Measure = Literal["evaluated", "explored"]
"""Final deterministic return, or the stochastic one of the last tenth of the steps."""
MEASURES: tuple[Measure, ...] = ("evaluated", "explored")

Scores = Mapping[tuple[str, int], Mapping[str, Array]]
"""By task and number of steps, then by label: the score of each seed."""


def scores_of(results: Results, reference: str, measure: Measure) -> tuple[Scores, list[str]]:
    """Scores on each task that has a scale; and one line for each that has none, with the reason.

    A reference that does no better than chance makes no unit: scores would be noise, divided by it.
    """
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
                scaled = {
                    n: (each - random) / (level.value - random) for n, each in returns.items()
                }
                found[task.task, task.steps] = {n: each for n, each in scaled.items() if len(each)}
                continue
            reason = f"{reference} cannot be told from acting at random there"
        reasons.append(f"{escaped(panel_title(results, task))}: {reason}")
    return found, reasons


def strata(scores: Scores, label: str) -> list[Array]:
    """The scores of an algorithm on each task on which it was run."""
    return [groups[label] for groups in scores.values() if label in groups]


def overall(scores: Scores, label: str) -> tuple[Estimate, int] | None:
    """Interquartile mean of an algorithm's scores, tasks counted alike, and over how many tasks."""
    found = strata(scores, label)
    return (estimate(statistics.balanced_mean, found), len(found)) if found else None


def failed(scores: Scores, label: str) -> tuple[int, int]:
    """How many of an algorithm's runs failed, and how many there are.

    A run has failed where its score is below half of the median of the algorithm on that task.
    """
    found = strata(scores, label)
    below = sum(int((each < np.median(each) / 2.0).sum()) for each in found)
    return below, sum(map(len, found))


def overall_probability(results: Results, label: str, other: str) -> Estimate | None:
    """How often one beats the other's deterministic return, over the tasks of both."""
    shared = results.tasks_of(label, other)
    returns = [task.groups[name].evaluated for name in (label, other) for task in shared]
    return estimate(statistics.probability_of_improvement, returns) if returns else None


def profile(scores: Scores, label: str, thresholds: Array) -> Array:
    """Share of runs above each threshold, tasks counted alike, and its band: [3, T]."""
    above = [(each > thresholds[:, None]).astype(np.float64) for each in strata(scores, label)]
    return statistics.bootstrap(_mean_over_tasks, above)


def _mean_over_tasks(samples: Sequence[Array]) -> Array:
    mean: Array = np.mean([stratum.mean(axis=-1) for stratum in samples], axis=0)
    return mean
