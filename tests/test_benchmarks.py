"""The timing measurements of `benchmarks/`: what they print, and what they refuse."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import explorer, speed
from benchmarks.dynamics import left_out


def test_speed_puts_tables_of_measurements_into_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(speed, "alone", lambda function, *arguments: function(*arguments))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- speed: begin -->\nold\n<!-- speed: end -->\nafter\n")
    sizes = ["--steps", "64", "--memories", "8192", "--features", "32", "--into", str(page)]
    speed.main(["--tasks", "Pendulum-v1", "--algorithms", "ridge", *sizes])
    text = page.read_text()
    assert text.startswith("before\n<!-- speed: begin -->\n\nOne core of")
    assert text.endswith("<!-- speed: end -->\nafter\n")
    number = r"\d+\.\d+"
    assert re.search(rf"\| Pendulum-v1 \| environments alone \| {number} \| 1\.00 \|  \|  \|", text)
    ridge = rf"\| Pendulum-v1 \| IMeL, ridge \| {number} \| ({number}) \| ({number}) \|  \|"
    found = re.search(ridge, text)
    assert found is not None
    assert 0.0 < float(found[2]) < float(found[1])  # a part of the run is spent in step
    cost = r"\d+ \| [\d,]+ \|"
    assert re.search(rf"\| 8,192 \| 256 \| {cost}\n\| 8,192 \| 32 \| {cost}", text)
    assert "One core of" in capsys.readouterr().out


def test_speed_takes_medians_of_turns_and_their_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []

    def invented(task: str, algorithm: str, steps: int) -> speed.Seconds:
        turns.append(algorithm)
        by_turn = {"environments": [9.0, 1.0, 2.0], "mki": [4.0, 5.0, 6.0], "trpo": [8.0] * 3}
        return speed.Seconds(by_turn[algorithm][turns.count(algorithm) - 1], 1.0)

    monkeypatch.setattr(speed, "time_alone", invented)
    measured = speed.measure(["hopper"], ["mki", "trpo"], steps=8, repetitions=3)
    assert turns == ["environments", "mki", "trpo"] * 3
    assert "| Hopper (11, 3) | IMeL, MKI | 5.000 | 2.50 | 2.00 | 1.60 |\n" in speed.table(measured)


def test_an_envpool_run_is_measured_on_one_thread() -> None:
    settings = speed.settings_of("ridge-envpool", "hopper")
    assert (settings["backend"], settings["env_threads"]) == ("envpool", 1)


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
        (["--memories", "100"], "must be at least 8192"),
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


def test_dynamics_are_predicted_without_the_episode_they_are_of() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 4, generator=generator).double()
    features[:, 0] = 1.0
    targets = torch.randn(30, 2, generator=generator).double()
    episodes = torch.arange(30) // 6

    errors, spread = left_out(features, targets, episodes)

    gram = features.T @ features
    damping = torch.diag(torch.tensor([0.0, 1.0, 1.0, 1.0])).double()
    damping *= 1e-3 * gram.diagonal().mean()
    for episode in range(5):
        mine = episodes == episode
        kept = features[~mine]
        inverse = torch.linalg.inv(kept.T @ kept + damping)
        predicted = features[mine] @ inverse @ kept.T @ targets[~mine]
        torch.testing.assert_close(errors[mine], targets[mine] - predicted)
        variances = (features[mine] @ inverse @ features[mine].T).diagonal()
        torch.testing.assert_close(spread[mine], variances)
