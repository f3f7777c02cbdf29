"""What the README promises about learning and cost, over seeds: half an hour of one core, so slow.

Each test prints its table (`make test-slow`), so that a failure shows by how much.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import pytest
import torch
from rich.console import Console

from imel import IMeL, MkiPolicy
from imel.bench.launch import grid, launch
from imel.bench.pool import Processes
from imel.bench.progress import GridProgress
from imel.bench.store import Row, Store
from imel.cli.bench import table
from imel.policies.paper.interpolator import Weighted, effective_neighbours
from imel.report.results import gather

pytestmark = pytest.mark.slow


def final_rows(
    store: Path,
    task: str,
    algorithms: list[str],
    seeds: range,
    steps: int,
    jobs: int = os.cpu_count() or 1,
    **overrides: int,
) -> dict[str, list[Row]]:
    runs = grid([task], algorithms, seeds, steps, overrides)
    console = Console(width=160)
    with GridProgress(runs, console) as progress:
        failures = launch(runs, Store(store), Processes(jobs), progress)
    assert not failures
    rows = Store(store).rows()
    for found in gather(rows).tasks:
        console.print(table(found))
    final = [row for row in rows if row["final"]]
    return {name: [row for row in final if row["algorithm"] == name] for name in algorithms}


def returns(rows: list[Row]) -> list[float]:
    return [row["eval_return"] for row in rows]


@pytest.mark.parametrize(
    ("task", "algorithm", "steps", "least"),
    [
        ("HalfCheetah-v5", "mki", 200_000, 1500),
        ("InvertedDoublePendulum-v5", "mki", 200_000, 7000),
        ("InvertedPendulum-v5", "mki", 60_000, 950),
        ("HalfCheetah-v5", "np", 200_000, 1000),
    ],
)
def test_median_of_three_seeds(
    tmp_path: Path, task: str, algorithm: str, steps: int, least: float
) -> None:
    rows = final_rows(tmp_path, task, [algorithm], range(3), steps)[algorithm]
    assert statistics.median(returns(rows)) >= least


@pytest.mark.parametrize("algorithm", ["mki", "np"])
def test_four_of_five_seeds_solve_the_mountain_car(tmp_path: Path, algorithm: str) -> None:
    rows = final_rows(tmp_path, "mountaincar", [algorithm], range(5), 60_000)[algorithm]
    assert sum(value >= 90 for value in returns(rows)) >= 4


def test_one_environment_learns_too(tmp_path: Path) -> None:
    rows = final_rows(tmp_path, "HalfCheetah-v5", ["mki"], range(3), 200_000, n_envs=1)["mki"]
    assert statistics.median(returns(rows)) >= 1500


def test_it_costs_less_than_trpo_on_one_core(tmp_path: Path) -> None:
    rows = final_rows(tmp_path, "HalfCheetah-v5", ["mki", "trpo"], range(1), 100_000, jobs=1)
    assert rows["mki"][0]["seconds"] < rows["trpo"][0]["seconds"]


def test_an_action_of_mki_is_the_weighted_mean_of_few_memories() -> None:
    model = IMeL("MkiPolicy", "HalfCheetah-v5", seed=0).learn(60_000)
    policy, column = model.policy, model.policy.memory.column
    assert isinstance(policy, MkiPolicy)
    states = column("states")
    conditioned = policy.conditioned
    assert isinstance(conditioned, Weighted)
    weights = conditioned.weights(policy.normaliser(states))
    error = (policy.act(states)[0] - weights @ column("improved_means")).abs().max()
    share = effective_neighbours(weights).mean() / len(states)
    print(f"error {error:.1e}, effective neighbours {share:.1%} of {len(states)} memories")
    assert error < 1e-5
    assert weights.min() >= 0.0
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(len(states)), atol=1e-5, rtol=0.0)
    assert share < 0.15
