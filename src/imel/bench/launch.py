"""Runs a grid over processes, one run a process: what fails or is killed takes no other with it.

Workers write their own results to the store. Whoever launches again gets on with what is missing.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from imel.bench.algorithms import Algorithm, find_algorithm
from imel.bench.run import Run, train
from imel.bench.store import Store
from imel.bench.tasks import find_task
from imel.errors import ImelError

_SECONDS_TO_STOP = 5.0


@dataclass(frozen=True)
class Failure:
    """Why a run has no result."""

    error: str
    """One line."""
    traceback: str | None = None
    """Where it was raised, if it was raised at all."""


class Listener(Protocol):
    """Who is told how a grid gets on."""

    def advanced(self, run: Run, step: int) -> None:
        """A run has come this far."""

    def ended(self, run: Run, outcome: Mapping[str, Any] | Failure) -> None:
        """A run has finished, with its final row, or failed."""


def grid(
    tasks: Sequence[str],
    algorithms: Sequence[str],
    seeds: Sequence[int],
    steps: int | None,
    overrides: Mapping[str, Any],
) -> list[Run]:
    """Every combination, one seed of everything first; refuses what cannot be run."""
    found = {name: find_algorithm(name) for name in algorithms}
    changes = {name: overrides if found[name].adjustable else {} for name in found}
    if overrides and not any(changes.values()):
        raise ImelError(f"{', '.join(overrides)}: only IMeL's own algorithms take settings")
    runs = [
        Run(task, name, seed, _steps(algorithm, task, steps), changes[name])
        for seed in dict.fromkeys(seeds)
        for task in dict.fromkeys(tasks)
        for name, algorithm in found.items()
    ]
    for run in runs:
        run.settings()
    return runs


def _steps(algorithm: Algorithm, task: str, steps: int | None) -> int:
    return (steps or find_task(task).steps) if algorithm.learns else 0


def unfinished(runs: Iterable[Run], store: Store) -> list[Run]:
    """The runs without a result in the store; failed ones are to be tried again."""
    return [run for run in runs if not store.finished(**run.identity())]


@dataclass
class _Worker:
    run: Run
    process: BaseProcess
    connection: Connection
    failure: Failure | None = None


def launch(runs: Iterable[Run], store: Store, jobs: int, listener: Listener) -> list[Failure]:
    """Carry out the runs, `jobs` at a time; failures are stored, told and returned."""
    waiting = deque(runs)
    workers: dict[Connection, _Worker] = {}
    failures = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                worker = _start(waiting.popleft(), store)
                workers[worker.connection] = worker
            # Not for ever: a signal that another thread has taken is noticed between two waits
            for ready in wait(list(workers), timeout=1.0):
                assert isinstance(ready, Connection)
                worker = workers[ready]
                if _receive(worker, listener):
                    continue
                del workers[ready]
                outcome = _outcome(worker, store)
                if isinstance(outcome, Failure):
                    failures.append(outcome)
                listener.ended(worker.run, outcome)
    finally:
        _stop(list(workers.values()))
    return failures


def _start(run: Run, store: Store) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(run, store, theirs), daemon=True)
    with _interrupt_held_back():
        process.start()
    theirs.close()  # so that the worker's death, of whatever kind, closes the pipe
    return _Worker(run, process, ours)


@contextmanager
def _interrupt_held_back() -> Iterator[None]:
    """A terminal sends Ctrl-C to every process; one started in here leaves it to the launcher."""
    resource_tracker.ensure_running()  # which unblocks signals when it is first started
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _receive(worker: _Worker, listener: Listener) -> bool:
    """Take one message; False when there will be no more."""
    try:
        message = worker.connection.recv()
    except (EOFError, OSError):
        return False
    if isinstance(message, Failure):
        worker.failure = message
    else:
        listener.advanced(worker.run, message)
    return True


def _outcome(worker: _Worker, store: Store) -> Mapping[str, Any] | Failure:
    """What became of a worker that has ended; a failure is stored."""
    worker.process.join()
    worker.connection.close()
    identity = worker.run.identity()
    final = store.final_row(**identity)
    if final is not None:
        return final
    failure = worker.failure or Failure(_how_it_ended(worker.process.exitcode))
    overrides = dict(worker.run.overrides)
    store.add([identity | {"overrides": overrides, "final": False} | vars(failure)])
    return failure


def _how_it_ended(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"its process was killed by signal {-exitcode} ({signal.Signals(-exitcode).name})"
    return f"its process ended with exit code {exitcode} and no result"


def _stop(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(_SECONDS_TO_STOP)
        worker.process.kill()
        worker.process.join()
        worker.connection.close()


# --- in the worker ---


def _work(run: Run, store: Store, connection: Connection) -> None:
    """One run: rows to the store; steps, and what went wrong, to the launcher."""
    _end_with_launcher()
    warnings.simplefilter("ignore")  # what libraries say of the published settings helps nobody
    try:
        store.add(train(run, on_row=lambda row: connection.send(row["step"])))
    except Exception as error:
        line = " ".join(str(error).split())
        kind = type(error).__name__
        text = line if isinstance(error, ImelError) else f"{kind}: {line}" if line else kind
        connection.send(Failure(text, traceback.format_exc()))


def _end_with_launcher() -> None:
    """No run goes on without a launcher: the next one would do it a second time."""
    launcher = multiprocessing.parent_process()
    assert launcher is not None

    def watch() -> None:
        wait([launcher.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
