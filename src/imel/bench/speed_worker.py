"""One measurement of `imel.bench.speed`, alone in its process; its figures as JSON on stdout.

Seconds are of the processor, not of the wall: what else the core does meanwhile is not counted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

import imel.algorithm
from imel.algorithm import IMeL
from imel.bench.algorithms import find_algorithm
from imel.bench.speed_kernels import acting, floor, leaving_out, peak_mb
from imel.bench.tasks import find_task
from imel.memory import Memory
from imel.updates import anchored, plain

_N_ENVS = 8
_WARM_UP = 2048
"""Steps with a full memory before the clock starts: what is to be compiled is by then."""
_RANDOM_ACTIONS = 256

Figures = dict[str, float]


def environments(task: str, steps: int) -> Figures:
    """Stable-Baselines3's vector environment with random actions: what nothing can undercut."""
    env = find_task(task).make_vector(_N_ENVS, seed=0)
    env.reset()
    env.action_space.seed(0)
    draws = [[env.action_space.sample() for _ in range(_N_ENVS)] for _ in range(_RANDOM_ACTIONS)]
    actions = np.array(draws)
    turns = max(1, steps // _N_ENVS)
    for turn in range(max(1, turns // 10)):
        env.step(actions[turn % _RANDOM_ACTIONS])
    before = time.process_time()
    for turn in range(turns):
        env.step(actions[turn % _RANDOM_ACTIONS])
    return {
        "seconds": _per_10k(time.process_time() - before, turns * _N_ENVS),
        "peak_mb": peak_mb(),
    }


def learning(task: str, algorithm: str, steps: int) -> Figures:
    """An algorithm once its memory, if any, is full; IMeL's seconds by what they are spent on."""
    found, overrides = find_task(task), {}
    if algorithm == "trpo-8":
        algorithm, published = "trpo", find_algorithm("trpo").settings(found, {})
        batch = published["n_envs"] * published.get("n_steps", 2048)
        overrides = {"n_envs": _N_ENVS, "n_steps": batch // _N_ENVS}
    kind = find_algorithm(algorithm)
    settings = kind.settings(found, overrides)
    model = kind.make(found, settings, seed=0)
    model.learn(min(settings.get("memory_size", 0) + _WARM_UP, 2 * steps))
    done = model.num_timesteps
    clock = Clock()
    with clock.attached(model) if isinstance(model, IMeL) else _nothing():
        before = time.process_time()
        model.learn(steps, reset_num_timesteps=False)
        seconds = time.process_time() - before
    taken = model.num_timesteps - done
    parts = {name: _per_10k(spent, taken) for name, spent in clock.parts(seconds).items()}
    return {"seconds": _per_10k(seconds, taken), **parts, "peak_mb": peak_mb()}


class Clock:
    """What IMeL spends its time on, told by the functions that do it."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    @contextmanager
    def attached(self, model: IMeL) -> Iterator[None]:
        """Time the model's parts while it learns."""
        places: list[tuple[Any, str, str]] = [
            (model.env, "step", "environments"),
            (imel.algorithm, "collect", "sampling"),
            (plain, "fit_interpolator", "fitting"),
            (anchored, "fit_interpolator", "fitting"),  # the trends, too
            (plain, "fit_critic", "critic"),
            (anchored, "fit_critic", "critic"),
        ]
        originals = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
        for (owner, name, label), (_, _, function) in zip(places, originals, strict=True):
            setattr(owner, name, self._timed(label, function))
        try:
            yield
        finally:
            for owner, name, function in originals:
                setattr(owner, name, function)

    def _timed(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        self.spent[label] = 0.0

        def timed(*arguments: Any, **named: Any) -> Any:
            before = time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                self.spent[label] += time.process_time() - before

        return timed

    def parts(self, total: float) -> dict[str, float]:
        """Seconds of each part; nothing where nothing was attached."""
        if not self.spent:
            return {}
        spent = self.spent
        known = spent["sampling"] + spent["fitting"] + spent["critic"]
        return {
            "environments": spent["environments"],
            "acting": spent["sampling"] - spent["environments"],
            "fitting": spent["fitting"],
            "critic": spent["critic"],
            "rest": total - known,
        }


def memory(size: int) -> Figures:
    """Bytes that a memory of this size takes in a HalfCheetah, as allocated."""
    before = peak_mb()
    columns = Memory(size, state_dim=17, action_dim=6)
    for name in columns.column_names:
        columns.get_buffer(name).fill_(1)  # pages are given when they are written
    taken = sum(columns.get_buffer(name).nbytes for name in columns.column_names)
    return {"bytes_per_transition": taken / size, "grown_mb": peak_mb() - before}


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _per_10k(seconds: float, steps: int) -> float:
    return seconds * 10_000 / steps


MEASUREMENTS: dict[str, Callable[..., Figures]] = {
    "environments": environments,
    "learning": learning,
    "memory": memory,
    "acting": acting,
    "leaving_out": leaving_out,
    "floor": floor,
}


def main() -> None:
    """Measure what the first argument says."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    order = json.loads(sys.argv[1])
    print(json.dumps(MEASUREMENTS[order["what"]](**order["arguments"])))


if __name__ == "__main__":
    main()
