"""The timing measurements of `benchmarks/`: what they print, and what they refuse."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from benchmarks import explorer, speed


def test_speed_puts_a_table_of_measurements_into_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- speed: begin -->\nold\n<!-- speed: end -->\nafter\n")
    sizes = ["--steps", "64", "--repetitions", "1", "--into", str(page)]
    speed.main(["--tasks", "Pendulum-v1", "--algorithms", "ridge", *sizes])
    text = page.read_text()
    assert text.startswith("before\n<!-- speed: begin -->\n\nOne core of")
    assert text.endswith("<!-- speed: end -->\nafter\n")
    assert re.search(r"\| Pendulum-v1 \| environments alone \| \d\.\d{3} \| 1\.0 \|  \|", text)
    assert re.search(r"\| Pendulum-v1 \| IMeL, ridge \| \d+\.\d{3} \| \d+\.\d \|  \|", text)
    assert "One core of" in capsys.readouterr().out


def test_speed_takes_medians_of_turns_and_their_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []

    def invented(task: str, algorithm: str, steps: int) -> float:
        turns.append(algorithm)
        by_turn = {"environments": [9.0, 1.0, 2.0], "mki": [4.0, 5.0, 6.0], "trpo": [8.0] * 3}
        return by_turn[algorithm][turns.count(algorithm) - 1]

    monkeypatch.setattr(speed, "time_alone", invented)
    seconds = speed.measure(["hopper"], ["mki", "trpo"], steps=8, repetitions=3)
    assert turns == ["environments", "mki", "trpo"] * 3
    assert "| Hopper (11, 3) | IMeL, MKI | 5.000 | 2.5 | 0.62 |\n" in speed.table(seconds)


def test_trpo_with_eight_environments_keeps_its_batch() -> None:
    published, settings = (speed.settings_of(name, "hopper") for name in ("trpo", "trpo-8"))
    assert settings["n_envs"] == speed.N_ENVS
    for each in (published, settings):
        assert each["n_envs"] * each["n_steps"] == 2048


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--tasks", "hoper"], "did you mean 'hopper'?"),
        (["--algorithms", "rigde"], "did you mean 'ridge'?"),
        (["--steps", "0"], "must be at least 1"),
    ],
)
def test_speed_refuses_what_it_cannot_measure(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        speed.main(arguments)
    assert complaint in capsys.readouterr().err


def test_explorer_times_what_the_page_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["explorer.py", "--memories", "6000"])
    explorer.main()
    said = capsys.readouterr().out
    for measured in ("first paint", "one step: median", "forgetting 5,000 memories"):
        assert measured in said
