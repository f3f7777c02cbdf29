"""Measure lessons: what taking them back costs, whether bad ones are found, how fast they answer.

    python -m benchmarks.lessons deletion    # the largest, the most similar, random ones
    python -m benchmarks.lessons planted     # a fifth of the episodes with inverted improvements
    python -m benchmarks.lessons answers     # time and memory with 4,096 lessons

Every run is trained anew with the settings in force; rows are printed as they come, and written as
JSON lines with --into.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu
from torch import Tensor

from benchmarks.common import Row, add_runs, append, fill_memory, flags, milliseconds, run
from imel import IMeL
from imel.bench.tasks import find_task
from imel.explain import explain
from imel.explain.worth import lesson_worth
from imel.policies import RidgePolicy
from imel.report.markdown import table
from imel.runs.evaluation import delete_lessons, play_sampled

TASKS = ("hopper", "walker2d", "halfcheetah", "ant")
_EVERY = 5
"""Of so many episodes one is planted."""
_FRESH = 1_000_000
"""Seed of the policy gradient's first episode."""


class MisledPolicy(RidgePolicy):
    """Every fifth episode asks for the opposite of its improvement."""

    def step(self, improvements: Tensor) -> tuple[Tensor, Tensor]:
        """Return each episode's part of the step."""
        signs = torch.where(self.memory.column("episodes") % _EVERY == 0, -1.0, 1.0)
        return super().step(signs[:, None] * improvements)


def trained(task: str, seed: int, steps: int, policy: type[RidgePolicy] = RidgePolicy) -> IMeL:
    """Train a policy on a task."""
    return IMeL(policy, environment(task), seed=seed).learn(steps)


def environment(task: str) -> str:
    """Return an id under which Gymnasium makes the benchmark's environment, wrappers included."""
    name = f"imel-benchmark/{task}-v0"
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point=lambda **_: find_task(task).make())
    return name


# --- deletion ---


def measure_deletion(task: str, seed: int, arguments: argparse.Namespace) -> Row:
    """Return the returns of one run's policy without some of its lessons."""
    policy: Any = trained(task, seed, arguments.steps).policy
    env, first = environment(task), _FRESH // 2 + seed
    whole, deletions = delete_lessons(policy, env, arguments.episodes, arguments.draws, first)
    row: Row = {
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


def deletion_table(rows: Sequence[Row]) -> list[str]:
    """Return means over seeds, and how often what the largest lessons cost random ones cost."""
    kinds, shares = ("largest", "similar", "random"), ("1%", "5%", "20%")
    columns = ["whole", *(f"{kind} {share}" for share in shares for kind in kinds)]
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        means = {name: float(np.mean([row[name] for row in mine])) for name in columns}
        costs = [means["whole"] - means[f"{kind} 5%"] for kind in ("largest", "random")]
        ratio = f"{costs[0] / costs[1]:.1f}" if costs[1] > 0 else "random ones cost nothing"
        lines.append([task, *(f"{value:,.0f}" for value in means.values()), ratio])
    return table(["task", *columns, "cost at 5 %, × random"], lines)


# --- planted bad episodes ---


def measure_planted(task: str, seed: int, arguments: argparse.Namespace) -> Row:
    """Return how well the worth of lessons tells planted episodes from the others."""
    model = trained(task, seed, arguments.steps, MisledPolicy)
    policy: Any = model.policy
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


def planted_table(rows: Sequence[Row]) -> list[str]:
    """Return the area under the curve for every seed."""
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["task"], []).append(f"{row['auc']:.2f}")
    header = ["task", "area under the curve, by seed"]
    return table(header, [[task, " ".join(areas)] for task, areas in found.items()])


# --- answers ---


def made_up_policy(state_dim: int, action_dim: int, lessons: int) -> RidgePolicy:
    """Return a policy with so many lessons of random coefficients, and a memory to compare with."""
    draws = torch.Generator().manual_seed(0)
    observations = spaces.Box(-np.inf, np.inf, (state_dim,), np.float32)
    actions = spaces.Box(-1.0, 1.0, (action_dim,), np.float32)
    policy = RidgePolicy(observations, actions, memory_size=8192)
    number = torch.arange(policy.memory.capacity)
    states = torch.randn(len(number), state_dim, generator=draws)
    fill_memory(policy, states=states, episodes=number // 64, steps=number % 64)
    for start in range(0, lessons, 64):
        chosen = torch.arange(start, min(lessons, start + 64))
        states = torch.randn(len(chosen), state_dim, generator=draws)
        policy.lessons.record_episodes(chosen, torch.ones(len(chosen)), states, start, start + 64)
        parts = torch.randn(len(chosen), policy.features.width, action_dim, generator=draws)
        policy.move(chosen, parts, 1e-3)
    return policy


def measure_answers(state_dim: int, action_dim: int, count: int) -> Row:
    """Return how long an explanation takes, and what the ledger needs."""
    policy = made_up_policy(state_dim, action_dim, count)
    states = np.random.default_rng(0).standard_normal((50, state_dim)).astype(np.float32)

    def answer(state: NDArray[Any]) -> str:
        return str(explain(policy, state))

    answer(states[0])  # computes what all answers share
    taken = [milliseconds(answer, state) for state in states]
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
    if arguments.what == "answers":
        for state_dim, action_dim in ((11, 3), (17, 6), (27, 8), (257, 17)):
            append(measure_answers(state_dim, action_dim, arguments.lessons), arguments.into)
        return
    deletion, rows = arguments.what == "deletion", []
    for task in arguments.tasks:
        for seed in arguments.seeds:
            rows.append((measure_deletion if deletion else measure_planted)(task, seed, arguments))
            append(rows[-1], arguments.into)
    print("\n".join((deletion_table if deletion else planted_table)(rows)))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = flags(__doc__)
    parser.add_argument("what", choices=("deletion", "planted", "answers"))
    add_runs(parser, TASKS, (0, 1, 2))
    parser.add_argument("--episodes", type=int, default=10, help="of each evaluation")
    parser.add_argument("--draws", type=int, default=5, help="of random lessons")
    parser.add_argument("--gradient-episodes", type=int, default=32)
    parser.add_argument("--lessons", type=int, default=4096, help="of the made-up policies")
    parser.add_argument("--into", type=Path, help="file to append rows to, as JSON lines")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main)
