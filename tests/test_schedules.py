"""Schedules: how they are written, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imel.errors import SettingsError
from imel.settings import Linear, parse_schedule


@given(st.floats(-5.0, 5.0), st.floats(0.01, 9.0), st.floats(0.01, 9.0))
def test_a_line_joins_its_ends_and_never_leaves_them(x: float, start: float, end: float) -> None:
    line, (low, high) = Linear(start, end), sorted((start, end))
    assert [line(p) for p in (1.0, 0.5, 0.0)] == pytest.approx([start, (start + end) / 2, end])
    assert low - 1e-12 <= line(x) <= high + 1e-12


def test_a_number_is_constant_two_are_a_line_and_a_function_is_used_as_it_is() -> None:
    for value in (0.3, "0.3", 3, "3e-1"):
        assert parse_schedule("std", value) == Linear(float(value), float(value))
    assert parse_schedule("std", "0.5:0.1") == Linear(0.5, 0.1)
    assert parse_schedule("std", abs) is abs


@pytest.mark.parametrize(
    "value", ["", ":", "fast", "0.4:slow", "1:2:3", "0", "-1", "0.4:0", "nan", "inf", "1:inf", True]
)
def test_what_is_no_positive_schedule_is_refused_by_name(value: str) -> None:
    with pytest.raises(SettingsError, match="kl_budget"):
        parse_schedule("kl_budget", value)
