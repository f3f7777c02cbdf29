"""Where runs are carried out: what pools share, and the pool of this machine, one run a process.

`imel.bench.ray_pool` and `imel.bench.slurm_pool` are those of clusters.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from imel.bench.run import Run, train
from imel.bench.store import Row
from imel.errors import ImelError, one_line

_ITS_SYSTEM = (OSError, MemoryError)  # need not happen elsewhere; others would come again
_SECONDS_TO_STOP = 5.0


@dataclass(frozen=True)
class Failure:
    """Why a run has no result."""

    error: str  # one line
    traceback: str | None = None  # where it was raised, if it was raised at all
    lost: bool = False  # its machine or process failed it, so that it may succeed elsewhere


@dataclass(frozen=True)
class Finished:
    """All rows of a run that has come to its end."""

    rows: list[Row]
    stored: bool = False  # whether they are in the store already


Message = Row | Finished | Failure
"""A row just recorded, without the columns that are the same in all, or how the run ended."""


@dataclass
class Job:
    """A run under way."""

    key: Hashable
    run: Run
    handle: Any = None  # what the pool knows it by
    losses: int = 0


class Pool:
    """Carries out runs, several at a time; one that is lost starts over.

    What the caller calls a run is its key. A kind of pool has `_begin`, `_end` and `_hear`.
    """

    retries = 3  # how often a run starts over whose machine, process or system failed it

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self.under_way: dict[Hashable, Job] = {}

    def has_room(self) -> bool:
        """Whether another run would start at once."""
        return len(self.under_way) < self._jobs

    def start(self, key: Hashable, run: Run) -> None:
        """Begin a run."""
        self.under_way[key] = Job(key, run)
        self._begin(self.under_way[key])

    def stop(self, key: Hashable) -> None:
        """Give up a run: nothing more is heard of it."""
        self._end(self.under_way.pop(key))

    def messages(self, seconds: float) -> list[tuple[Hashable, Message]]:
        """What has happened, after waiting so long at most; a run that has ended is forgotten."""
        heard: list[tuple[Hashable, Message]] = []
        for job, message in self._hear(seconds):
            if isinstance(message, Failure) and message.lost and self.retries:
                job.losses += 1
                if job.losses <= self.retries:
                    self._begin(job)
                    continue
                message = replace(message, error=f"lost {job.losses} times: {message.error}")
            if isinstance(message, Finished | Failure):
                del self.under_way[job.key]
            heard.append((job.key, message))
        return heard

    def close(self) -> None:
        """Give up what is still under way."""
        for key in list(self.under_way):
            self.stop(key)

    def _begin(self, job: Job) -> None:
        raise NotImplementedError

    def _end(self, job: Job) -> None:
        raise NotImplementedError

    def _hear(self, seconds: float) -> list[tuple[Job, Message]]:
        raise NotImplementedError


def carry_out(run: Run, tell: Callable[[Row], None]) -> Finished | Failure:
    """One run in this process; `tell` sees its rows as they are made."""
    warnings.simplefilter("ignore")  # what libraries say of the published settings helps nobody
    try:
        rows = train(run, on_row=tell)
    except Exception as error:
        text = " ".join(str(error).split()) if isinstance(error, ImelError) else one_line(error)
        return Failure(text, traceback.format_exc(), isinstance(error, _ITS_SYSTEM))
    returns = [row[name] for row in rows for name in ("train_return", "eval_return")]
    if not all(value is None or isfinite(value) for value in returns):
        return Failure("a return of it is no finite number")
    return Finished(rows)


class Processes(Pool):
    """So many runs at a time, each in a new process that ends with this one."""

    retries = 0

    def _begin(self, job: Job) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(job.run, theirs), daemon=True)
        with _interrupt_held_back():
            process.start()
        theirs.close()  # so that the worker's death, of whatever kind, closes the pipe
        job.handle = (process, ours)

    def _end(self, job: Job) -> None:
        process, connection = job.handle
        process.terminate()
        process.join(_SECONDS_TO_STOP)
        process.kill()
        process.join()
        connection.close()

    def _hear(self, seconds: float) -> list[tuple[Job, Message]]:
        jobs = {job.handle[1]: job for job in self.under_way.values()}
        return [(jobs[ready], self._receive(jobs[ready])) for ready in wait(jobs, seconds)]

    def _receive(self, job: Job) -> Message:
        process, connection = job.handle
        try:
            message: Message = connection.recv()
        except (EOFError, OSError):
            process.join()
            code = process.exitcode or 0
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            message = Failure(f"its process left no result: {how}")
        if isinstance(message, Finished | Failure):
            process.join()
            connection.close()
        return message


@contextmanager
def _interrupt_held_back() -> Iterator[None]:
    """A terminal sends Ctrl-C to every process; one started in here leaves it to the launcher."""
    resource_tracker.ensure_running()  # which unblocks signals when it is first started
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _work(run: Run, connection: Connection) -> None:
    """One run: its rows, and how it ended, to the launcher."""
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    connection.send(carry_out(run, tell=connection.send))


def _end_with_launcher() -> None:
    """No run goes on without a launcher: the next one would do it a second time."""
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    wait([launcher.sentinel])
    os._exit(1)
