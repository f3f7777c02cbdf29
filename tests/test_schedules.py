"""Schedules: how they are written, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imel.errors import SettingsError
from imel.settings import Linear, parse_schedule


@pytest.mark.parametrize("value", [0.3, "0.3", 3, "3e-1"])
def test_a_number_is_constant(value: float | str) -> None:
    schedule = parse_schedule("std", value)
    assert schedule(1.0) == schedule(0.4) == schedule(0.0) == float(value)


def test_start_and_end_are_joined_by_a_line() -> None:
    schedule = parse_schedule("std", "0.5:0.1")
    assert [schedule(p) for p in (1.0, 0.75, 0.5, 0.0)] == pytest.approx([0.5, 0.4, 0.3, 0.1])


@given(st.floats(-5.0, 5.0), st.floats(0.01, 9.0), st.floats(0.01, 9.0))
def test_a_line_never_leaves_its_ends(progress: float, start: float, end: float) -> None:
    low, high = sorted((start, end))
    assert low - 1e-12 <= Linear(start, end)(progress) <= high + 1e-12


def test_a_function_is_used_as_it_is() -> None:
    def square(progress: float) -> float:
        return progress**2

    assert parse_schedule("std", square) is square


@pytest.mark.parametrize(
    "value", ["", ":", "fast", "0.4:slow", "1:2:3", "0", "-1", "0.4:0", "nan", "inf", "1:inf", True]
)
def test_what_is_no_positive_schedule_is_refused_by_name(value: str) -> None:
    with pytest.raises(SettingsError, match="kl_budget"):
        parse_schedule("kl_budget", value)
