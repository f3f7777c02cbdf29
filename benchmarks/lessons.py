"""Measure lessons: what taking them back costs, whether bad ones are found, how fast they answer.

    python benchmarks/lessons.py deletion      # the largest, the most similar, random ones
    python benchmarks/lessons.py planted       # a fifth of the episodes with inverted improvements
    python benchmarks/lessons.py answers       # time and memory with 4,096 lessons

Every run is trained anew with the settings in force; rows are printed as they come, and written as
JSON lines with --store.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu

from imel import IMeL
from imel.bench.tasks import find_task
from imel.explain import explain
from imel.explain.worth import lesson_worth
from imel.policies import RidgePolicy
from imel.runs.lessons import delete_lessons, play_sampled

TASKS = ("hopper", "walker2d", "halfcheetah", "ant")
_EVERY = 5
"""Of so many episodes one is planted."""
_FRESH = 1_000_000
"""Seed of the policy gradient's first episode."""


class InvertedImprovements:
    """Makes every fifth episode ask for the opposite while policies are trained."""

    def __enter__(self) -> None:
        self._step = step = RidgePolicy.step

        def inverted(
            policy: RidgePolicy, improvements: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            signs = torch.where(policy.memory.column("episodes") % _EVERY == 0, -1.0, 1.0)
            return step(policy, signs[:, None] * improvements)

        RidgePolicy.step = inverted  # type: ignore[method-assign,assignment]

    def __exit__(self, *_: object) -> None:
        RidgePolicy.step = self._step  # type: ignore[method-assign]


def trained(task: str, seed: int, steps: int) -> IMeL:
    """Train the default policy on a task."""
    return IMeL("RidgePolicy", environment(task), seed=seed).learn(steps)


def environment(task: str) -> str:
    """Return an id under which Gymnasium makes the benchmark's environment, wrappers included."""
    name = f"imel-benchmark/{task}-v0"
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point=lambda **_: find_task(task).make())
    return name


def policy_of(model: IMeL) -> RidgePolicy:
    """Return the policy of a model."""
    assert isinstance(model.policy, RidgePolicy)
    return model.policy


# --- deletion ---


def measure_deletion(task: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the returns of one run's policy without some of its lessons."""
    policy = policy_of(trained(task, seed, arguments.steps))
    env, first = environment(task), _FRESH // 2 + seed
    whole, deletions = delete_lessons(policy, env, arguments.episodes, arguments.draws, first)
    row: dict[str, Any] = {
        "task": task,
        "seed": seed,
        "lessons": len(policy.lessons),
        "whole": float(whole.mean()),
    }
    for each in deletions:
        for kind in ("largest", "similar", "random"):
            removal = getattr(each, kind)
            row[f"{kind} {each.share:.0%}"] = float(removal.returns.mean())
            row[f"{kind} {each.share:.0%} shift"] = removal.shift
    return row


def deletion_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return means over seeds, and how often what the largest lessons cost random ones cost."""
    head = [
        "task",
        "whole",
        *(
            f"{kind} {share}"
            for share in ("1%", "5%", "20%")
            for kind in ("largest", "similar", "random")
        ),
        "cost at 5 %, × random",
    ]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        means = {name: float(np.mean([row[name] for row in mine])) for name in head[1:-1]}
        costs = [means["whole"] - means[f"{kind} 5%"] for kind in ("largest", "random")]
        ratio = f"{costs[0] / costs[1]:.1f}" if costs[1] > 0 else "random ones cost nothing"
        lines.append([task, *(f"{value:,.0f}" for value in means.values()), ratio])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


# --- planted bad episodes ---


def measure_planted(task: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return how well the worth of lessons tells planted episodes from the others."""
    with InvertedImprovements():
        model = trained(task, seed, arguments.steps)
    policy = policy_of(model)
    seeds = range(_FRESH + seed, _FRESH + seed + arguments.gradient_episodes)
    played = play_sampled(policy, environment(task), seeds)
    worth = lesson_worth(policy, played, model.gamma)
    single = policy.lessons.column("counts").numpy() == 1  # of a period nobody knows
    episodes = policy.lessons.column("episodes").numpy()[single]
    scores, bad = worth.values[single], episodes % _EVERY == 0
    return {
        "task": task,
        "seed": seed,
        "lessons": len(scores),
        "planted": int(bad.sum()),
        "auc": area_under_curve(scores[bad], scores[~bad]),
    }


def area_under_curve(bad: NDArray[Any], good: NDArray[Any]) -> float:
    """Return the chance that a bad lesson is worth less than a good one."""
    return float(mannwhitneyu(good, bad).statistic / (len(good) * len(bad)))


def planted_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the area under the curve for every seed."""
    lines = [["task", "area under the curve, by seed"], ["---", "---"]]
    for task in dict.fromkeys(row["task"] for row in rows):
        found = (f"{row['auc']:.2f}" for row in rows if row["task"] == task)
        lines.append([task, " ".join(found)])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


# --- answers ---


def made_up_policy(state_dim: int, action_dim: int, lessons: int) -> RidgePolicy:
    """Return a policy with so many lessons of random coefficients, and a memory to compare with."""
    draws = torch.Generator().manual_seed(0)
    observations = spaces.Box(-np.inf, np.inf, (state_dim,), np.float32)
    actions = spaces.Box(-1.0, 1.0, (action_dim,), np.float32)
    policy = RidgePolicy(observations, actions, memory_size=8192)
    count = policy.memory.capacity
    rows = {
        name: torch.zeros(count, *policy.memory.get_buffer(name).shape[1:])
        for name in policy.memory.column_names
        if name != "iterations"
    }
    rows["states"] = torch.randn(count, state_dim, generator=draws)
    rows["episodes"], rows["steps"] = torch.arange(count) // 64, torch.arange(count) % 64
    policy.memory.add(rows, iteration=0)
    for start in range(0, lessons, 64):
        chosen = torch.arange(start, min(lessons, start + 64))
        states = torch.randn(len(chosen), state_dim, generator=draws)
        policy.lessons.record_episodes(chosen, torch.ones(len(chosen)), states, start, start + 64)
        parts = torch.randn(len(chosen), policy.features.width, action_dim, generator=draws)
        policy.move(chosen, parts, 1e-3)
    return policy


def measure_answers(state_dim: int, action_dim: int, count: int) -> dict[str, Any]:
    """Return how long an explanation takes, and what the ledger needs."""
    policy = made_up_policy(state_dim, action_dim, count)
    states = np.random.default_rng(0).standard_normal((50, state_dim)).astype(np.float32)
    explain(policy, states[0])  # computes what all answers share
    taken = []
    for state in states:
        begun = time.perf_counter()
        str(explain(policy, state))
        taken.append(1e3 * (time.perf_counter() - begun))
    size = sum(buffer.nbytes for buffer in policy.lessons.buffers())
    return {
        "state": state_dim,
        "action": action_dim,
        "lessons": len(policy.lessons),
        "median ms": round(statistics.median(taken), 1),
        "slowest ms": round(max(taken), 1),
        "MB": round(size / 1e6, 1),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is asked for, and print it."""
    arguments = _parse(argv)
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)
        if arguments.store:
            with arguments.store.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    if arguments.what == "answers":
        for state_dim, action_dim in ((11, 3), (17, 6), (27, 8), (257, 17)):
            keep(measure_answers(state_dim, action_dim, arguments.lessons))
        return
    measure = measure_deletion if arguments.what == "deletion" else measure_planted
    for task in arguments.tasks:
        for seed in arguments.seeds:
            keep(measure(task, seed, arguments))
    print("\n" + (deletion_table if arguments.what == "deletion" else planted_table)(rows), end="")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("deletion", "planted", "answers"))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), metavar="TASK")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--episodes", type=int, default=10, help="of each evaluation")
    parser.add_argument("--draws", type=int, default=5, help="of random lessons")
    parser.add_argument("--gradient-episodes", type=int, default=32)
    parser.add_argument("--lessons", type=int, default=4096, help="of the made-up policies")
    parser.add_argument("--store", type=Path, help="file to append rows to, as JSON lines")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
