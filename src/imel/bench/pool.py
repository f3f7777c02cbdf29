"""Where runs are carried out: what a launcher starts them on and hears of them.

Here is the pool of this machine, one run a process, so that none takes another with it;
`imel.bench.ray_pool` and `imel.bench.slurm_pool` are those of clusters.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Protocol

from imel.bench.run import Run, train
from imel.bench.store import Row
from imel.errors import ImelError

RETRIES = 3
"""How often a run of a cluster starts over: its machine or process dies, or its system fails it."""
ITS_SYSTEM = (OSError, MemoryError)
"""Exceptions that need not happen elsewhere. Others are the run's own, and would come again."""
_SECONDS_TO_STOP = 5.0


@dataclass(frozen=True)
class Failure:
    """Why a run has no result."""

    error: str
    """One line."""
    traceback: str | None = None
    """Where it was raised, if it was raised at all."""


@dataclass(frozen=True)
class Finished:
    """All rows of a run that has come to its end."""

    rows: list[Row]


Message = Row | Finished | Failure
"""A row just recorded, without the columns that are the same in all, or how the run ended."""


class Pool(Protocol):
    """Carries out runs, several at a time. What the caller calls a run is its key."""

    def has_room(self) -> bool:
        """Whether another run would start at once."""

    def start(self, key: Hashable, run: Run) -> None:
        """Begin a run."""

    def stop(self, key: Hashable) -> None:
        """Give up a run: nothing more is heard of it."""

    def messages(self, seconds: float) -> list[tuple[Hashable, Message]]:
        """What has happened, after waiting so long at most; a run that has ended is forgotten."""

    def close(self) -> None:
        """Give up what is still under way."""


def carry_out(
    run: Run, tell: Callable[[Row], None], raised: tuple[type[Exception], ...] = ()
) -> Finished | Failure:
    """One run in this process; `tell` sees its rows as they are made.

    Whatever goes wrong is its outcome, but for exceptions that are to be `raised`.
    """
    warnings.simplefilter("ignore")  # what libraries say of the published settings helps nobody
    try:
        return Finished(train(run, on_row=tell))
    except raised:
        raise
    except Exception as error:
        line = " ".join(str(error).split())
        kind = type(error).__name__
        text = line if isinstance(error, ImelError) else f"{kind}: {line}" if line else kind
        return Failure(text, traceback.format_exc())


@dataclass
class _Worker:
    key: Hashable
    process: BaseProcess
    connection: Connection


class Processes:
    """So many runs at a time, each in a new process that ends with this one."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._workers: dict[Connection, _Worker] = {}

    def has_room(self) -> bool:
        """Whether another run would start at once."""
        return len(self._workers) < self._jobs

    def start(self, key: Hashable, run: Run) -> None:
        """Begin a run."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(run, theirs), daemon=True)
        with _interrupt_held_back():
            process.start()
        theirs.close()  # so that the worker's death, of whatever kind, closes the pipe
        self._workers[ours] = _Worker(key, process, ours)

    def stop(self, key: Hashable) -> None:
        """Give up a run: nothing more is heard of it."""
        self._end([worker for worker in self._workers.values() if worker.key == key])

    def messages(self, seconds: float) -> list[tuple[Hashable, Message]]:
        """What has happened, after waiting so long at most; a run that has ended is forgotten."""
        heard = []
        for ready in wait(list(self._workers), timeout=seconds):
            assert isinstance(ready, Connection)
            worker = self._workers[ready]
            message = self._receive(worker)
            if isinstance(message, Finished | Failure):
                self._end([worker])
            heard.append((worker.key, message))
        return heard

    def close(self) -> None:
        """Give up what is still under way."""
        self._end(list(self._workers.values()))

    def _receive(self, worker: _Worker) -> Message:
        try:
            message: Message = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join()
            return Failure(_how_it_ended(worker.process.exitcode))
        if isinstance(message, Finished | Failure):
            worker.process.join()
        return message

    def _end(self, workers: Sequence[_Worker]) -> None:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join(_SECONDS_TO_STOP)
            worker.process.kill()
            worker.process.join()
            worker.connection.close()
            del self._workers[worker.connection]


@contextmanager
def _interrupt_held_back() -> Iterator[None]:
    """A terminal sends Ctrl-C to every process; one started in here leaves it to the launcher."""
    resource_tracker.ensure_running()  # which unblocks signals when it is first started
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _how_it_ended(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"its process was killed by signal {-exitcode} ({signal.Signals(-exitcode).name})"
    return f"its process ended with exit code {exitcode} and no result"


# --- in the worker ---


def _work(run: Run, connection: Connection) -> None:
    """One run: its rows, and how it ended, to the launcher."""
    _end_with_launcher()
    connection.send(carry_out(run, tell=connection.send))


def _end_with_launcher() -> None:
    """No run goes on without a launcher: the next one would do it a second time."""
    launcher = multiprocessing.parent_process()
    assert launcher is not None

    def watch() -> None:
        wait([launcher.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
