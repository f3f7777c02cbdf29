"""Returns of different tasks on one scale: 0 is acting at random, 1 a reference algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from imel.pictures.style import Array
from imel.report.results import Results, TaskResults, panel_title
from imel.report.statistics import (
    Estimate,
    balanced_mean,
    bootstrap,
    difference_of_balanced_means,
    estimate,
    interquartile_mean,
    probability_of_improvement,
)

Measure = Literal["evaluated", "explored"]
"""Final deterministic return, or the stochastic one of the last tenth of the steps."""
MEASURES: tuple[Measure, ...] = ("evaluated", "explored")


@dataclass(frozen=True)
class Scale:
    """The scale of one task."""

    task: TaskResults
    measure: Measure
    random: float
    reference: float

    def scores(self, label: str) -> Array | None:
        """The score of each seed, or None where there is none of this algorithm."""
        group = self.task.groups.get(label)
        returns = np.empty(0) if group is None else getattr(group, self.measure)
        if not len(returns):
            return None
        scores: Array = (returns - self.random) / (self.reference - self.random)
        return scores


def scales(results: Results, reference: str, measure: Measure) -> tuple[list[Scale], list[str]]:
    """A scale for each task that has one; and one line for each that has none, with the reason.

    A reference that does no better than chance makes no unit: scores would be noise, divided by it.
    """
    found, reasons = [], []
    for task in results.tasks:
        title, group = panel_title(results, task), task.groups.get(reference)
        if not task.groups:
            continue
        if group is None or not len(getattr(group, measure)):
            reasons.append(f"{title}: no result of {reference}")
            continue
        if task.random is None:
            reasons.append(f"{title}: no result of acting at random (`imel bench random`)")
            continue
        level = estimate(interquartile_mean, [getattr(group, measure)])
        random = float(task.random.evaluated.mean())
        if np.nanmin([level.value, level.low]) <= random:
            reasons.append(f"{title}: {reference} cannot be told from acting at random there")
            continue
        found.append(Scale(task, measure, random, level.value))
    return found, reasons


def overall(chosen: Sequence[Scale], label: str) -> tuple[Estimate, int] | None:
    """Interquartile mean of an algorithm's scores, tasks counted alike, and over how many tasks."""
    found = strata(chosen, label)
    return (estimate(balanced_mean, found), len(found)) if found else None


def failed(chosen: Sequence[Scale], label: str) -> tuple[int, int]:
    """How many of an algorithm's runs failed, and how many there are.

    A run has failed where its score is below half of the median of the algorithm on that task.
    """
    found = strata(chosen, label)
    below = sum(int((scores < np.median(scores) / 2.0).sum()) for scores in found)
    return below, sum(map(len, found))


def overall_difference(chosen: Sequence[Scale], label: str, other: str) -> Estimate | None:
    """By how much one's interquartile mean is above the other's, over the tasks of both."""
    shared = [
        scale
        for scale in chosen
        if scale.scores(label) is not None and scale.scores(other) is not None
    ]
    found = strata(shared, label) + strata(shared, other)
    return estimate(difference_of_balanced_means, found) if found else None


def overall_probability(results: Results, label: str, other: str) -> Estimate | None:
    """How often one beats the other's deterministic return, over the tasks of both."""
    shared = [task for task in results.tasks if {label, other} <= set(task.groups)]
    returns = [task.groups[name].evaluated for name in (label, other) for task in shared]
    return estimate(probability_of_improvement, returns) if returns else None


def profile(chosen: Sequence[Scale], label: str, thresholds: Array) -> Array:
    """Share of runs above each threshold, tasks counted alike, and its band: [3, T]."""
    above = [(scores > thresholds[:, None]).astype(np.float64) for scores in strata(chosen, label)]
    return bootstrap(_mean_over_tasks, above)


def _mean_over_tasks(samples: Sequence[Array]) -> Array:
    mean: Array = np.mean([stratum.mean(axis=-1) for stratum in samples], axis=0)
    return mean


def strata(chosen: Sequence[Scale], label: str) -> list[Array]:
    """The scores of an algorithm on each task on which it was run."""
    return [scores for scale in chosen if (scores := scale.scores(label)) is not None]
