"""Statistics of reports: against numbers worked out by hand, and what must hold for any samples."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import mannwhitneyu

from imel.report.statistics import (
    Array,
    Estimate,
    balanced_mean,
    bootstrap,
    difference_of_means,
    difference_of_pairs,
    estimate,
    interquartile_mean,
    probability_of_improvement,
)

samples = st.lists(st.integers(-50, 50).map(float), min_size=2, max_size=8).map(np.array)


@pytest.mark.parametrize(
    ("strata", "mean"),
    [
        ([[7.0]], 7.0),
        ([[3.0, 1.0]], 2.0),
        ([[800.0, 3.0, 1.0]], 268.0),  # three: nothing is left out
        ([[800.0, 3.0, 1.0, -900.0]], 2.0),
        ([[800.0, 6.0, 2.0, 1.0, -900.0]], 3.0),  # five: the least and the greatest
        ([[90.0, 80.0, 6.0, 3.0, 2.0, 1.0, -8.0, -9.0]], 3.0),
        ([[100.0, 1.0], [-100.0, 3.0, 2.0]], 2.0),  # of all values together
    ],
)
def test_the_interquartile_mean_leaves_out_a_quarter_of_the_values_at_either_end(
    strata: list[list[float]], mean: float
) -> None:
    assert float(interquartile_mean([np.array(each) for each in strata])) == mean


def test_a_difference_is_one_of_interquartile_means_and_of_pairs_draws_seeds_together() -> None:
    ours, theirs = np.array([0.0, 10.0, 11.0, 12.0, 99.0]), np.array([1.0, 2.0, 3.0])
    assert float(difference_of_means([ours, theirs])) == 9.0
    pairs = np.stack([np.array([3.0, 1.0, 5.0]), np.array([2.0, 0.0, 9.0])])
    assert float(difference_of_pairs([pairs])) == 3.0 - 11.0 / 3.0
    returns = np.array([1.0, 100.0, 4000.0, 7.0])
    shifted = estimate(difference_of_pairs, [np.stack([returns + 2.0, returns])])
    assert_allclose([shifted.value, shifted.low, shifted.high], 2.0)
    assert estimate(difference_of_means, [returns + 2.0, returns]).low < -100.0


def test_the_balanced_mean_counts_every_stratum_alike() -> None:
    few, many = np.array([0.0, 10.0]), np.array([2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    # 0 and 10 weigh a quarter each, which is left out; what stays is the other stratum
    assert float(balanced_mean([few, many])) == pytest.approx(many.mean())
    equal = [np.array([5.0, 1.0]), np.array([9.0, 3.0])]
    assert float(balanced_mean(equal)) == float(interquartile_mean(equal)) == 4.0


@given(samples, samples, st.integers(2, 4))
def test_a_balanced_mean_does_not_change_when_a_stratum_has_its_seeds_twice(
    one: Array, other: Array, times: int
) -> None:
    again = balanced_mean([np.tile(one, times), other])
    assert float(again) == pytest.approx(float(balanced_mean([one, other])))


@given(samples, samples)
def test_the_probability_of_improvement_is_the_statistic_of_mann_and_whitney(
    ours: Array, theirs: Array
) -> None:
    probability = float(probability_of_improvement([ours, theirs]))
    u = mannwhitneyu(ours, theirs, method="asymptotic").statistic
    assert probability == pytest.approx(u / (len(ours) * len(theirs)))
    assert probability + float(probability_of_improvement([theirs, ours])) == pytest.approx(1.0)
    with_another_task = [ours, np.array([1.0]), theirs, np.array([0.0])]
    both = float(probability_of_improvement(with_another_task))
    assert both == pytest.approx((probability + 1.0) / 2)


@given(samples)
def test_an_interval_lies_within_the_values_and_moves_and_grows_with_them(values: Array) -> None:
    one = estimate(interquartile_mean, [values])
    assert values.min() <= one.low <= one.high <= values.max()
    other = estimate(interquartile_mean, [3.0 * values + 7.0])
    expected = 3.0 * np.array([one.value, one.low, one.high]) + 7.0
    assert_allclose([other.value, other.low, other.high], expected, atol=1e-9)


def test_the_interval_is_that_of_all_samples_there_can_be() -> None:
    values = np.array([0.0, 1.0, 4.0, 9.0, 25.0])
    every = [np.sort(draw)[1:-1].mean() for draw in itertools.product(values, repeat=5)]
    found = estimate(interquartile_mean, [values])
    # 3125 equally likely samples against 5000 drawn ones: the ends lie between neighbouring means
    assert_allclose([found.low, found.high], np.percentile(every, [2.5, 97.5]), atol=0.7)
    assert found.value == pytest.approx(14 / 3)


def test_strata_are_drawn_from_separately_and_independently_even_where_they_are_equal() -> None:
    # Drawn together, a sample could hold more of one task than of the other
    strata = [np.full(5, 0.0), np.full(5, 10.0)]
    assert estimate(interquartile_mean, strata) == Estimate(5.0, 5.0, 5.0)
    assert estimate(difference_of_means, strata) == Estimate(-10.0, -10.0, -10.0)
    difference = estimate(difference_of_means, [np.arange(5.0), np.arange(5.0)])
    assert difference.value == 0.0
    assert difference.low < -0.5
    assert difference.high > 0.5


def test_one_seed_has_a_value_and_no_interval() -> None:
    value, low, high = bootstrap(interquartile_mean, [np.array([3.0])])
    assert (float(value), np.isnan(low), np.isnan(high)) == (3.0, True, True)
    lonely = estimate(difference_of_means, [np.array([1.0, 2.0]), np.array([9.0])])
    assert lonely.value == -7.5
    assert not lonely.excludes(0.0)
    assert Estimate(2.0, 1.0, 3.0).excludes(0.0)
    assert Estimate(-2.0, -3.0, -1.0).excludes(0.0)
    assert not Estimate(2.0, 0.0, 3.0).excludes(0.0)


def test_axes_before_the_seeds_are_kept_and_bootstrapped_alike() -> None:
    values = np.random.default_rng(0).normal(size=(4, 5))
    whole = bootstrap(interquartile_mean, [values])
    assert whole.shape == (3, 4)
    for place in range(4):
        assert_array_equal(whole[:, place], bootstrap(interquartile_mean, [values[place]]))
