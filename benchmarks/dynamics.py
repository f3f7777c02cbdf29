"""Ask the memory of a run how well it knows what happens next: the table of docs/questions.md.

    python -m benchmarks.dynamics --tasks hopper halfcheetah --seeds 620 --into FILE

Next state and reward are predicted by regression on remembered transitions, every episode from the
others. A row for each task and seed is appended to FILE.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from benchmarks.common import add_runs, append, flags, read_rows, run
from imel import IMeL
from imel.bench.algorithms import find_algorithm
from imel.bench.tasks import TASKS, find_task
from imel.explain.familiarity import NEIGHBOURS
from imel.policies.ridge.features import RandomFeatures
from imel.report.labels import task_title
from imel.report.markdown import table

_PENALTY = 1e-3
"""Penalty of the regression, in units of the mean eigenvalue."""
_FEATURES = 1024
"""Random features of state and action together."""


def transitions(model: IMeL) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return remembered states, actions as taken, what followed, and episodes.

    What followed is the change of the state in deviations of the change, reward and end.
    """
    policy = model.policy
    column, normaliser = policy.memory.column, policy.normaliser
    states = normaliser(column("states"))
    change = normaliser(column("next_states")) - states
    targets = torch.cat([change, column("rewards")[:, None], column("terminated")[:, None]], dim=1)
    targets = (targets - targets.mean(0)) / targets.std(0).clamp_min(1e-6)
    return states, column("actions").clamp(-1.0, 1.0), targets, column("episodes")


def left_out(features: Tensor, targets: Tensor, episodes: Tensor) -> tuple[Tensor, Tensor]:
    """Return ridge regression's errors at each row without its episode, and its uncertainty.

    With H the hat matrix of an episode's rows, errors are (I - H)^{-1} of the plain ones, and
    H (I - H)^{-1} has the variance of the prediction without the episode on its diagonal.
    """
    features, targets = features.double(), targets.double()
    gram = features.T @ features
    gram.diagonal()[1:] += _PENALTY * gram.diagonal().mean()
    root = torch.linalg.solve_triangular(torch.linalg.cholesky(gram), features.T, upper=False)
    plain = targets - root.T @ (root @ targets)
    errors, spread = torch.empty_like(targets), targets.new_empty(len(targets))
    for episode in torch.unique(episodes):
        rows = torch.nonzero(episodes == episode).flatten()
        hat = root[:, rows].T @ root[:, rows]
        inverse = torch.linalg.inv(torch.eye(len(rows), dtype=hat.dtype) - hat)
        errors[rows] = inverse @ plain[rows]
        spread[rows] = (hat @ inverse).diagonal()
    return errors, spread


def nearest(keys: Tensor, targets: Tensor, episodes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the errors of the mean of the nearest rows of other episodes, and their distance."""
    errors, far = [], []
    for rows in torch.split(torch.arange(len(keys)), 1024):
        distances = torch.cdist(keys[rows], keys)
        distances.masked_fill_(episodes[rows, None] == episodes, torch.inf)
        found = distances.topk(NEIGHBOURS, dim=1, largest=False)
        errors.append(targets[rows] - targets[found.indices].mean(1))
        far.append(found.values.mean(1))
    return torch.cat(errors), torch.cat(far)


def explained(errors: Tensor) -> float:
    """Return R^2 for targets of unit variance."""
    return 1.0 - float(errors.square().mean())


@torch.no_grad()
def measure_dynamics(model: IMeL) -> dict[str, Any]:
    """Return how well the memory predicts what follows, each episode from the others."""
    states, actions, targets, episodes = transitions(model)
    pairs = torch.cat([states.clamp(-5.0, 5.0), actions], dim=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        phi = RandomFeatures(pairs.shape[1], _FEATURES)
    linear = torch.cat([torch.ones(len(pairs), 1), pairs], dim=1)
    errors, spread = left_out(phi(pairs), targets, episodes)
    plain, _ = left_out(linear, targets, episodes)
    near, _ = nearest(pairs, targets, episodes)
    _, far = nearest(states, targets, episodes)
    truth = errors[:, :-2].square().mean(1)
    row: dict[str, Any] = {"episodes": len(torch.unique(episodes))}
    for name, found in (("ridge", errors), ("linear", plain), ("nearest", near)):
        row |= {
            f"{name} state": explained(found[:, :-2]),
            f"{name} reward": explained(found[:, -2]),
        }
    row["uncertainty"] = float(spearmanr(spread, truth).statistic)
    row["distance"] = float(spearmanr(far, truth).statistic)
    return row


def dynamics_table(folder: Path) -> list[str]:
    """Return means over seeds: regression, nearest and linear model; uncertainty and distance."""
    rows = read_rows(sorted(folder.glob("*.jsonl")))
    models = ("ridge", "nearest", "linear")
    groups = [[f"{model} {what}" for model in models] for what in ("state", "reward")]
    groups.append(["uncertainty", "distance"])
    lines = []
    for task in TASKS:
        mine = [row for row in rows if row["task"] == task]
        means = [[f"{np.mean([row[n] for row in mine]):.2f}" for n in g] for g in groups if mine]
        if mine:
            lines.append([task_title(task), str(len(mine)), *(" / ".join(m) for m in means)])
    header = ["state: ridge / nearest / linear", "reward: the same", "uncertainty / distance"]
    return table(["task", "seeds", *header], lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Learn each task with `RidgePolicy`, then look at its memory."""
    parser = flags(__doc__)
    add_runs(parser)
    parser.add_argument("--into", type=Path, required=True, help="file to append the rows to")
    arguments = parser.parse_args(argv)
    ridge = find_algorithm("ridge")
    for name in arguments.tasks:
        task = find_task(name)
        settings = ridge.settings(task, {"backend": "envpool", "env_threads": 1})
        for seed in arguments.seeds:
            model = ridge.make(task, settings, seed).learn(arguments.steps)
            assert isinstance(model, IMeL)
            row = {"task": name, "seed": seed, "steps": arguments.steps, **measure_dynamics(model)}
            append(row, arguments.into)


if __name__ == "__main__":
    run(main)
