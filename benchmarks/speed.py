"""Time learning on one core: what a run costs beside its environments, and against TRPO.

    python -m benchmarks.speed --tasks halfcheetah --memories 8192 65536 --features

Each measurement is a process of its own with one thread. Repetitions take turns and medians are
taken, so whatever else the machine does falls on all of them alike: compare the ratios of one run,
never the seconds of two.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from stable_baselines3.common.vec_env import VecEnv

from benchmarks.common import flags, run
from benchmarks.scaling import Cost, iteration_cost
from imel.bench.algorithms import find_algorithm
from imel.bench.tasks import TASKS, find_task
from imel.cli.report import around_marks
from imel.errors import ImelError
from imel.files import write_atomically
from imel.report.labels import algorithm_name, task_title
from imel.report.markdown import table
from imel.runs.stored import provenance

ENVIRONMENTS = "environments"
"""Stable-Baselines3's vector environment with random actions."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ridge-envpool": ("ridge", {"backend": "envpool", "env_threads": 1}),
    "trpo-8": ("trpo", {}),  # with as many environments as IMeL, which the zoo's settings have not
}
NAMES = {
    ENVIRONMENTS: "environments alone",
    "ridge-envpool": "IMeL, ridge, EnvPool",
    "trpo-8": "TRPO, 8 environments",
}
N_ENVS = 8
WARM_UP = 2048
"""Steps with a full memory before the clock starts."""


class Seconds(NamedTuple):
    """Processor seconds of 1,000 steps."""

    whole: float
    in_step: float
    """Of these, those the vector environment's `step` took."""


Measured = dict[tuple[str, str], Seconds]
"""By task and algorithm."""


def time_environments(task: str, steps: int) -> Seconds:
    """Return the seconds of steps with random actions."""
    env = find_task(task).make_vector(N_ENVS, seed=0)
    env.reset()
    env.action_space.seed(0)
    turns = max(1, steps // N_ENVS)
    actions = [np.array([env.action_space.sample() for _ in range(N_ENVS)]) for _ in range(turns)]
    before = time.process_time()
    for action in actions:
        env.step(action)
    seconds = 1000.0 * (time.process_time() - before) / (turns * N_ENVS)
    return Seconds(seconds, seconds)


def settings_of(algorithm: str, task: str) -> dict[str, Any]:
    """Return the settings an algorithm has in the benchmark."""
    base, changes = VARIANTS.get(algorithm, (algorithm, {}))
    settings = find_algorithm(base).settings(find_task(task), changes)
    if algorithm == "trpo-8":
        batch = settings["n_envs"] * settings.get("n_steps", 2048)
        settings |= {"n_envs": N_ENVS, "n_steps": batch // N_ENVS}
    return settings


def time_learning(task: str, algorithm: str, steps: int) -> Seconds:
    """Return the seconds of learning once the memory, if any, is full."""
    settings = settings_of(algorithm, task)
    base = VARIANTS.get(algorithm, (algorithm,))[0]
    model = find_algorithm(base).make(find_task(task), settings, 0)
    model.learn(settings.get("memory_size", 0) + WARM_UP)
    env = model.get_env()
    assert env is not None
    in_step = _clocked(env.unwrapped)
    done, before = model.num_timesteps, time.process_time()
    model.learn(steps, reset_num_timesteps=False)
    whole, count = time.process_time() - before, model.num_timesteps - done
    return Seconds(1000.0 * whole / count, 1000.0 * in_step() / count)


def _clocked(env: VecEnv) -> Callable[[], float]:
    """Clock a vector environment's steps from now on; return what reads the clock."""
    spent = 0.0

    def clocked(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal spent
            before = time.process_time()
            try:
                return method(*arguments)
            finally:
                spent += time.process_time() - before

        return call

    for name in ("step_async", "step_wait"):
        setattr(env, name, clocked(getattr(env, name)))
    return lambda: spent


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process with one thread."""
    # A process of a pool of one, started anew: it inherits neither threads nor caches
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=_use_one_thread) as pool:
        return pool.submit(function, *arguments).result()


def time_alone(task: str, algorithm: str, steps: int) -> Seconds:
    """Time one of them in a new process."""
    if algorithm == ENVIRONMENTS:
        seconds: Seconds = alone(time_environments, task, steps)
    else:
        seconds = alone(time_learning, task, algorithm, steps)
    return seconds


def measure(
    tasks: Sequence[str], algorithms: Sequence[str], steps: int, repetitions: int
) -> Measured:
    """Time everything in turns; the medians."""
    cells = [(task, name) for task in tasks for name in (ENVIRONMENTS, *algorithms)]
    seen: dict[tuple[str, str], list[Seconds]] = {cell: [] for cell in cells}
    for repetition in range(repetitions):
        for task, name in cells:
            taken = time_alone(task, name, steps)
            seen[task, name].append(taken)
            print(
                f"[{repetition + 1}/{repetitions}] {task} {name}: {taken.whole:.3f} s", flush=True
            )
    return {
        cell: Seconds(*(median(column) for column in zip(*taken, strict=True)))
        for cell, taken in seen.items()
    }


def ratios(measured: Measured) -> list[str]:
    """Return one row for each measurement, with its ratios to the others of its task."""
    rows = []
    for (task, name), taken in measured.items():
        bare, trpo = measured[task, ENVIRONMENTS].whole, measured.get((task, "trpo"))
        cells = [f"{taken.whole:.3f}", f"{taken.whole / bare:.2f}", "", ""]
        if name != ENVIRONMENTS:
            cells[2] = f"{(taken.whole - taken.in_step) / bare:.2f}"
            cells[3] = "" if trpo is None else f"{trpo.whole / taken.whole:.2f}"
        rows.append([task_title(task), NAMES.get(name) or algorithm_name(name), *cells])
    head = ["task", "", "s per 1,000 steps", "run / environments", "overhead", "TRPO / run"]
    return table(head, rows)


def curve(costs: Iterable[Cost]) -> list[str]:
    """Return what an iteration costs by the size of the memory and the number of features."""
    rows = []
    for cost in costs:
        size, features = f"{cost.memory_size:,}", f"{cost.features:,}"
        rows.append([size, features, f"{1000.0 * cost.seconds:.0f}", f"{cost.peak_megabytes:,.0f}"])
    return table(["memories", "features", "ms per iteration", "peak memory, MB"], rows)


def caption(steps: int, repetitions: int) -> str:
    """Say what the figures rest on."""
    origin = provenance()
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
    times = "one measurement" if repetitions == 1 else f"median of {repetitions} measurements"
    processor = origin["processor"].rpartition(", ")[0]
    return (
        f"One core of {processor}, {times} of {steps:,} steps each. "
        f"Commit {origin['commit'][:10]}{'+' if origin['dirty'] else ''}; {versions}.\n\n"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the tables, and put them into a page if one is given."""
    arguments = _parse(argv)
    if arguments.into:
        around_marks(arguments.into, "speed")  # refuses a page without marks
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"
    measured = measure(
        arguments.tasks, arguments.algorithms, arguments.steps, arguments.repetitions
    )
    sizes = [(size, 256) for size in arguments.memories]
    sizes += [(8192, features) for features in arguments.features]
    costs = [alone(iteration_cost, *size) for size in sizes]
    lines = [*ratios(measured), *(["", *curve(costs)] if costs else []), ""]
    text = caption(arguments.steps, arguments.repetitions) + "\n".join(lines)
    print(f"\n{text}", end="")
    if arguments.into:
        page = text.join(around_marks(arguments.into, "speed"))
        write_atomically(arguments.into, page.encode())


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = flags(__doc__)
    tasks = ["hopper", "walker2d", "halfcheetah", "ant", "humanoid"]
    learners = ["ridge", "ridge-envpool", "trpo", "trpo-8"]
    memories, features = [8192, 65_536, 262_144, 1_048_576], [1024, 4096]
    parser.add_argument("--tasks", nargs="+", default=tasks, metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--algorithms", nargs="+", default=learners, metavar="NAME")
    parser.add_argument("--steps", type=int, default=60_000, help="that are timed, after a warm-up")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--memories", nargs="*", type=int, default=memories, help="of the curve")
    parser.add_argument("--features", nargs="*", type=int, default=features, help="of the curve")
    parser.add_argument("--into", type=Path, help="page to put the tables into, between its marks")
    arguments = parser.parse_args(argv)
    if min(arguments.steps, arguments.repetitions) < 1:
        parser.error("--steps and --repetitions must be at least 1")
    if min([*arguments.memories, 8192]) < 8192:
        parser.error("--memories must be at least 8192")
    try:  # before anything is measured
        for task in arguments.tasks:
            for name in arguments.algorithms:
                settings_of(name, task)
    except ImelError as error:
        parser.error(str(error))
    return arguments


def _use_one_thread() -> None:
    torch.set_num_threads(1)


if __name__ == "__main__":
    run(main)
