"""The measurements of `benchmarks/`: each runs by its command, and computes what it says."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import speed
from benchmarks.dynamics import left_out
from pages import ROOT

NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
SHORT = "--tasks Pendulum-v1 --seeds 0 --steps 2048"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f"dynamics {SHORT} --into rows.jsonl", f'"ridge state": {NUMBER}'),
        ("explorer --memories 6000", f"first paint +{NUMBER} ms .*forgetting 5,000"),
        ("lessons answers --lessons 128", f'"lessons": 128, "median ms": {NUMBER}'),
        (f"lessons deletion {SHORT} --episodes 1 --draws 1", rf"\| Pendulum-v1 ({NUMBER}|\| )+"),
        (f"lessons planted {SHORT} --gradient-episodes 4", r"\| Pendulum-v1 \| [01]\.\d\d \|"),
        (f"paired {ROOT}/results/former ridge former", r"\| Hopper .*\| all \|"),
        ("probe no-such-run", "error: .*no-such-run"),
        ("speed --tasks hoper", "did you mean 'hopper'?"),
        ("speed --memories 100", "must be at least 8192"),
        (
            "warm_start --tasks pendulum --steps 80 --store . --picture drawn.png",
            rf"\| pendulum, from demonstrations \| 1 \| {NUMBER}.*from scratch \| 1 \|  \|",
        ),
    ],
)
def test_a_benchmark_runs_by_its_command_or_refuses(
    command: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, *arguments = command.split()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    monkeypatch.delitem(sys.modules, f"benchmarks.{name}", raising=False)
    refusal: object = ""
    try:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    except SystemExit as left:
        refusal = left.code
    assert re.search(said, f"{refusal}{''.join(capsys.readouterr())}", re.DOTALL)


def test_speed_puts_tables_of_measurements_into_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "alone", lambda function, *arguments: function(*arguments))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- speed: begin -->\nold\n<!-- speed: end -->\nafter\n")
    sizes = ["--steps", "64", "--memories", "8192", "--features", "32", "--into", str(page)]
    speed.main(["--tasks", "Pendulum-v1", "--algorithms", "ridge", *sizes])
    found = re.fullmatch(
        r"before\n<!-- speed: begin -->\n\nOne core of .*\n"
        rf"\| Pendulum-v1 \| environments alone \| {NUMBER} \| 1\.00 \|  \|  \|\n"
        rf"\| Pendulum-v1 \| IMeL, ridge \| {NUMBER} \| ({NUMBER}) \| ({NUMBER}) \|  \|\n.*"
        rf"\| 8,192 \| 256 \| {NUMBER} \| {NUMBER} \|\n\| 8,192 \| 32 \| {NUMBER} \| .*\n"
        r"\n<!-- speed: end -->\nafter\n",
        page.read_text(),
        re.DOTALL,
    )
    assert found is not None
    assert 0.0 < float(found[2]) < float(found[1])  # a part of the run is spent in step


def test_speed_takes_medians_of_turns_and_their_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []

    def invented(task: str, algorithm: str, steps: int) -> speed.Seconds:
        turns.append(algorithm)
        by_turn = {"environments": [9.0, 1.0, 2.0], "mki": [4.0, 5.0, 6.0], "trpo": [8.0] * 3}
        return speed.Seconds(by_turn[algorithm][turns.count(algorithm) - 1], 1.0)

    monkeypatch.setattr(speed, "time_alone", invented)
    measured = speed.measure(["hopper"], ["mki", "trpo"], steps=8, repetitions=3)
    assert turns == ["environments", "mki", "trpo"] * 3
    row = "| Hopper (11, 3) | IMeL, MKI | 5.000 | 2.50 | 2.00 | 1.60 |"
    assert row in speed.ratios(measured)


def test_speed_compares_on_one_thread_and_with_equal_batches() -> None:
    assert speed.settings_of("ridge-envpool", "hopper")["env_threads"] == 1
    published, ours = (speed.settings_of(name, "hopper") for name in ("trpo", "trpo-8"))
    assert ours["n_envs"] == speed.N_ENVS
    assert [each["n_envs"] * each["n_steps"] for each in (published, ours)] == [2048, 2048]


def test_dynamics_are_predicted_without_the_episode_they_are_of() -> None:
    features = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)).double()
    features[:, 0] = 1.0
    targets = features[:, 1:3].sin()
    episodes = torch.arange(30) // 6

    errors, spread = left_out(features, targets, episodes)

    damping = torch.diag(torch.tensor([0.0, 1.0, 1.0, 1.0])).double()
    damping *= 1e-3 * (features.T @ features).diagonal().mean()
    for episode in range(5):
        mine = episodes == episode
        kept = features[~mine]
        inverse = torch.linalg.inv(kept.T @ kept + damping)
        predicted = features[mine] @ inverse @ kept.T @ targets[~mine]
        torch.testing.assert_close(errors[mine], targets[mine] - predicted)
        variances = (features[mine] @ inverse @ features[mine].T).diagonal()
        torch.testing.assert_close(spread[mine], variances)
