"""Whether the best settings are better: they and the default ones, on seeds nobody has searched on.

The best of many noisy trials looks better than it is, so its own value proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy as np

from imel.bench.run import Run
from imel.bench.store import Store
from imel.report.statistics import (
    Estimate,
    difference_of_means,
    estimate,
    probability_of_improvement,
)
from imel.tune.study import Problem

_FIRST_SEED = 1000


@dataclass(frozen=True)
class Comparison:
    """Final deterministic returns of two settings, seed by seed."""

    seeds: list[int]
    best: list[float]
    default: list[float]

    def difference(self) -> Estimate:
        """By how much the best settings are better: of interquartile means, with its interval."""
        return estimate(difference_of_means, [np.array(self.best), np.array(self.default)])

    def probability(self) -> float:
        """How often a run of the best settings beats one of the default ones."""
        pair = [np.array(self.best), np.array(self.default)]
        return float(probability_of_improvement(pair))


def new_seeds(problem: Problem, number: int) -> list[int]:
    """Seeds that no trial has seen."""
    return list(islice((seed for seed in count(_FIRST_SEED) if seed not in problem.seeds), number))


def runs_to_compare(
    problem: Problem, best: Mapping[str, Any], seeds: Sequence[int]
) -> tuple[list[Run], list[Run]]:
    """The runs of the best settings, and those of the default ones."""
    ours = [problem.run(best, seed) for seed in seeds]
    theirs = [problem.run(problem.fixed, seed) for seed in seeds]
    return ours, theirs


def compare(store: Store, ours: Sequence[Run], theirs: Sequence[Run]) -> Comparison | None:
    """What the runs came to, or None where some of them failed."""
    returns = []
    for run in (*ours, *theirs):
        row = store.final_row(**run.identity())
        if row is None:
            return None
        returns.append(float(row["eval_return"]))
    half = len(ours)
    return Comparison([run.seed for run in ours], returns[:half], returns[half:])
