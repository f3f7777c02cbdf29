"""Time learning on one core: processor seconds for 1,000 steps, beside TRPO and bare environments.

Each measurement is a process of its own with one thread. Repetitions take turns and medians are
taken, so whatever else the machine does falls on all of them alike: compare the ratios of one run,
never the seconds of two.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from imel.bench.algorithms import find_algorithm
from imel.bench.tasks import TASKS, find_task
from imel.cli.report import around_marks
from imel.errors import ImelError
from imel.persistence.files import write_atomically
from imel.report.names import algorithm_name, task_title
from imel.runs.provenance import provenance

ENVIRONMENTS = "environments"
"""Stable-Baselines3's vector environment with random actions: what no algorithm can undercut."""
TRPO_8 = "trpo-8"
"""TRPO with as many environments as IMeL, which the published settings do not have."""
NAMES = {ENVIRONMENTS: "environments alone", TRPO_8: "TRPO, 8 environments"}
N_ENVS = 8
WARM_UP = 2048
"""Steps with a full memory before the clock starts."""

Seconds = dict[tuple[str, str], float]
"""Per 1,000 steps, by task and algorithm."""


def time_environments(task: str, steps: int) -> float:
    """Return the seconds of 1,000 steps with random actions."""
    env = find_task(task).make_vector(N_ENVS, seed=0)
    env.reset()
    env.action_space.seed(0)
    turns = max(1, steps // N_ENVS)
    actions = [np.array([env.action_space.sample() for _ in range(N_ENVS)]) for _ in range(turns)]
    before = time.process_time()
    for action in actions:
        env.step(action)
    return 1000.0 * (time.process_time() - before) / (turns * N_ENVS)


def settings_of(algorithm: str, task: str) -> dict[str, Any]:
    """Return the settings an algorithm has in the benchmark."""
    settings = find_algorithm(_base(algorithm)).settings(find_task(task), {})
    if algorithm == TRPO_8:
        batch = settings["n_envs"] * settings.get("n_steps", 2048)
        settings |= {"n_envs": N_ENVS, "n_steps": batch // N_ENVS}
    return settings


def time_learning(task: str, algorithm: str, steps: int) -> float:
    """Return the seconds of 1,000 steps of learning once the memory, if any, is full."""
    settings = settings_of(algorithm, task)
    model = find_algorithm(_base(algorithm)).make(find_task(task), settings, seed=0)
    model.learn(settings.get("memory_size", 0) + WARM_UP)
    done, before = model.num_timesteps, time.process_time()
    model.learn(steps, reset_num_timesteps=False)
    return 1000.0 * (time.process_time() - before) / (model.num_timesteps - done)


def time_alone(task: str, algorithm: str, steps: int) -> float:
    """Time one of them in a new process."""
    # A process of a pool of one, started anew: it inherits neither threads nor caches
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=_use_one_thread) as pool:
        if algorithm == ENVIRONMENTS:
            return pool.submit(time_environments, task, steps).result()
        return pool.submit(time_learning, task, algorithm, steps).result()


def measure(
    tasks: Sequence[str], algorithms: Sequence[str], steps: int, repetitions: int
) -> Seconds:
    """Time everything in turns; the medians."""
    cells = [(task, name) for task in tasks for name in (ENVIRONMENTS, *algorithms)]
    seen: dict[tuple[str, str], list[float]] = {cell: [] for cell in cells}
    for repetition in range(repetitions):
        for task, name in cells:
            seconds = time_alone(task, name, steps)
            seen[task, name].append(seconds)
            print(f"[{repetition + 1}/{repetitions}] {task} {name}: {seconds:.3f} s", flush=True)
    return {cell: median(seconds) for cell, seconds in seen.items()}


def table(seconds: Seconds) -> str:
    """Return one row for each measurement, with its ratios to the others of its task."""
    head = ["task", "algorithm", "s per 1,000 steps", "× environments", "× TRPO"]
    rows = [head, ["---", "---", "---:", "---:", "---:"]]
    for (task, name), taken in seconds.items():
        trpo = seconds.get((task, "trpo"))
        rows.append(
            [
                task_title(task),
                NAMES.get(name) or algorithm_name(name),
                f"{taken:.3f}",
                f"{taken / seconds[task, ENVIRONMENTS]:.1f}",
                f"{taken / trpo:.2f}" if trpo else "",
            ]
        )
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def caption(steps: int, repetitions: int) -> str:
    """Say what the figures rest on."""
    origin = provenance()
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
    times = "one measurement" if repetitions == 1 else f"median of {repetitions} measurements"
    return (
        f"One core of {_processor()}, {times} of {steps:,} steps each. "
        f"Commit {origin['commit'][:10]}{'+' if origin['dirty'] else ''}; {versions}.\n\n"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the table, and put it into a page if one is given."""
    arguments = _parse(argv)
    if arguments.into:
        around_marks(arguments.into, "speed")  # refuses a page without marks
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"
    seconds = measure(arguments.tasks, arguments.algorithms, arguments.steps, arguments.repetitions)
    text = caption(arguments.steps, arguments.repetitions) + table(seconds)
    print(f"\n{text}", end="")
    if arguments.into:
        page = text.join(around_marks(arguments.into, "speed"))
        write_atomically(arguments.into, page.encode())


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    learners = ["ridge", "mki", "trpo", TRPO_8]
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), metavar="TASK")
    parser.add_argument("--algorithms", nargs="+", default=learners, metavar="NAME")
    parser.add_argument("--steps", type=int, default=10_000, help="that are timed, after a warm-up")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--into", type=Path, help="page to put the table into, between its marks")
    arguments = parser.parse_args(argv)
    if min(arguments.steps, arguments.repetitions) < 1:
        parser.error("--steps and --repetitions must be at least 1")
    try:  # before anything is measured
        _find_all(arguments.tasks, arguments.algorithms)
    except ImelError as error:
        parser.error(str(error))
    return arguments


def _find_all(tasks: Iterable[str], algorithms: Iterable[str]) -> None:
    for task in tasks:
        find_task(task)
    for name in algorithms:
        find_algorithm(_base(name))


def _base(algorithm: str) -> str:
    return "trpo" if algorithm == TRPO_8 else algorithm


def _use_one_thread() -> None:
    torch.set_num_threads(1)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
