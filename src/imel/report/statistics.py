"""Interquartile means, probabilities of improvement, and their stratified bootstrap intervals.

Samples are arrays whose last axis is the seeds. A stratum is one algorithm on one task: seeds are
drawn again, with replacement, within each stratum and never across.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import trim_mean

Array = NDArray[np.float64]

Statistic = Callable[[Sequence[Array]], Array]
"""Reduces the last axis of all strata together; whatever axes are before it stay."""

LEVEL = 95.0  # per cent of the bootstrap distribution between the ends of an interval
_RESAMPLES = 5_000
_TRIMMED = 0.25
_SEED = 20_200_810


@dataclass(frozen=True)
class Estimate:
    """A number and the ends of its interval, which are NaN where a stratum has a single seed."""

    value: float
    low: float
    high: float

    def excludes(self, value: float) -> bool:
        """Whether the interval is known and this value is outside of it."""
        return value < self.low or value > self.high


def interquartile_mean(strata: Sequence[Array]) -> Array:
    """Mean of the middle half of all values together: n // 4 are left out at either end."""
    mean: Array = trim_mean(np.concatenate(strata, axis=-1), _TRIMMED, axis=-1)
    return mean


def balanced_mean(strata: Sequence[Array]) -> Array:
    """Interquartile mean by weight of all values together; every stratum weighs the same."""
    values = np.concatenate(strata, axis=-1)
    counts = np.array([stratum.shape[-1] for stratum in strata])
    weights = np.repeat(1.0 / (len(strata) * counts), counts)
    order = values.argsort(axis=-1, kind="stable")
    ends = weights[order].cumsum(axis=-1)
    inside = np.clip([ends - weights[order], ends], _TRIMMED, 1.0 - _TRIMMED)
    kept = np.take_along_axis(values, order, axis=-1) * (inside[1] - inside[0])
    mean: Array = kept.sum(axis=-1) / (1.0 - 2.0 * _TRIMMED)
    return mean


def difference_of_means(strata: Sequence[Array]) -> Array:
    """Interquartile mean of the first stratum less that of the second."""
    ours, theirs = strata
    return interquartile_mean([ours]) - interquartile_mean([theirs])


def difference_of_pairs(strata: Sequence[Array]) -> Array:
    """The same of one stratum of pairs [..., 2, n]: both have the same seeds."""
    means = interquartile_mean(strata)
    difference: Array = means[0] - means[1]
    return difference


def probability_of_improvement(strata: Sequence[Array]) -> Array:
    """How often a run of the first half of the strata beats one of its task in the second half."""
    half = len(strata) // 2
    tasks = []
    for ours, theirs in zip(strata[:half], strata[half:], strict=True):
        difference = ours[..., :, None] - theirs[..., None, :]
        tasks.append((0.5 + 0.5 * np.sign(difference)).mean(axis=(-2, -1)))  # a tie counts half
    probability: Array = np.mean(tasks, axis=0)
    return probability


def bootstrap(statistic: Statistic, strata: Sequence[Array]) -> Array:
    """The statistic and the ends of its percentile interval: three in front of its own axes.

    Every call draws from a generator of its own: an interval depends on its samples alone.
    """
    value = statistic(strata)
    counts = [stratum.shape[-1] for stratum in strata]
    if min(counts) < 2:
        return np.stack([value, np.full_like(value, np.nan), np.full_like(value, np.nan)])
    generator = np.random.default_rng(_SEED)
    draws = [generator.integers(count, size=(_RESAMPLES, count)) for count in counts]
    drawn = [stratum[..., each] for stratum, each in zip(strata, draws, strict=True)]
    ends = [(100.0 - LEVEL) / 2.0, (100.0 + LEVEL) / 2.0]
    return np.stack([value, *np.percentile(statistic(drawn), ends, axis=-1)])


def estimate(statistic: Statistic, strata: Sequence[Array]) -> Estimate:
    """`bootstrap` of plain samples, one number a seed."""
    return Estimate(*map(float, bootstrap(statistic, strata)))
