"""Runs what is missing of a grid on a pool: what fails or is killed takes no other with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Protocol

from imel.bench.algorithms import find_algorithm
from imel.bench.pool import Failure, Finished, Pool, Processes
from imel.bench.run import Run
from imel.bench.store import Store, identity
from imel.bench.tasks import find_task
from imel.environments.envpool import usable_cores
from imel.errors import ImelError


class Listener(Protocol):
    """Who is told how far a run has come; and its end, with its final row or why there is none."""

    def advanced(self, run: Run, step: int) -> None: ...  # noqa: D102
    def ended(self, run: Run, outcome: Mapping[str, Any] | Failure) -> None: ...  # noqa: D102


def grid(
    tasks: Sequence[str],
    algorithms: Sequence[str],
    seeds: Sequence[int],
    steps: int | None,
    overrides: Mapping[str, Any],
) -> list[Run]:
    """Every combination, one seed of everything first; refuses what cannot be run."""
    found = {each.name: each for each in map(find_algorithm, algorithms)}
    if overrides and not any(each.adjustable for each in found.values()):
        raise ImelError(f"{', '.join(overrides)}: only IMeL's own algorithms take settings")
    runs = []
    every = product(dict.fromkeys(seeds), dict.fromkeys(tasks), found.values())
    for seed, task, algorithm in every:
        length = (steps or find_task(task).steps) if algorithm.learns else 0
        changes = overrides if algorithm.adjustable else {}
        runs.append(Run(task, algorithm.name, seed, length, changes))
        runs[-1].settings()
    return runs


def unfinished(runs: Iterable[Run], store: Store) -> list[Run]:
    """The runs without a result in the store; failed ones are to be tried again."""
    finished = store.finished()
    return [run for run in runs if identity(run.identity()) not in finished]


def launch(runs: Iterable[Run], store: Store, pool: Pool, listener: Listener) -> list[Failure]:
    """Carry out the runs and close the pool; failures are stored, told and returned."""
    waiting = deque(enumerate(runs))
    running: dict[Any, Run] = {}
    failures = []
    try:
        while waiting or running:
            while waiting and pool.has_room():
                number, run = waiting.popleft()
                pool.start(number, run)
                running[number] = run
            # Not for ever: a signal that another thread has taken is noticed between two waits
            for key, message in pool.messages(1.0):
                if isinstance(message, Finished):
                    if not message.stored:
                        store.add(message.rows)
                    listener.ended(running.pop(key), message.rows[-1])
                elif isinstance(message, Failure):
                    failures.append(message)
                    run = running.pop(key)
                    failed = {"overrides": dict(run.overrides), "final": False}
                    failed |= {"error": message.error, "traceback": message.traceback}
                    store.add([run.identity() | failed])
                    listener.ended(run, message)
                else:
                    listener.advanced(running[key], message["step"])
    finally:
        pool.close()
    return failures


def choose_pool(ray: str | None, jobs: int | None) -> Pool:
    """Processes of this machine, or the Ray cluster at an address; a core each, all by default."""
    if ray is None:
        return Processes(jobs or usable_cores())
    from imel.bench.ray_pool import RayPool

    return RayPool(ray, jobs)
