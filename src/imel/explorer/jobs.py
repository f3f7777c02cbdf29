"""Work that takes longer than a request: started, watched, stopped."""

from __future__ import annotations

import itertools
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from imel.errors import ImelError

_KEPT = 64
"""Jobs that can still be asked about."""


class _StoppedError(Exception):
    """Raised in a job that was asked to stop."""


@dataclass
class Job:
    """Something under way."""

    state: str = "waiting"  # then running, and done, failed or stopped
    progress: float = 0.0
    result: Any = None
    error: str | None = None
    stopping: threading.Event = field(default_factory=threading.Event)

    def advance(self, share: float) -> None:
        """Called by the work itself, which ends here if it was asked to."""
        self.progress = min(1.0, share)
        if self.stopping.is_set():
            raise _StoppedError

    def as_json(self) -> dict[str, Any]:
        """What the page is told."""
        names = ("state", "progress", "result", "error")
        return {name: getattr(self, name) for name in names}


class Jobs:
    """A few threads and what they are doing."""

    def __init__(self, threads: int = 2) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="explorer")
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def start(self, work: Callable[[Job], Any]) -> str:
        """Begin some work; the name to ask about it by."""
        job = Job()
        with self._lock:
            if sum(other.state in ("waiting", "running") for other in self._jobs.values()) >= 8:
                raise ImelError("eight jobs are under way; wait for one, or stop one")
            name = f"j{next(self._numbers)}"
            self._jobs[name] = job
            while len(self._jobs) > _KEPT:
                self._jobs.popitem(last=False)
        self._pool.submit(self._run, job, work)
        return name

    def get(self, name: str) -> Job:
        """A job by its name."""
        with self._lock:
            if name not in self._jobs:
                raise ImelError(f"there is no job {name}")
            return self._jobs[name]

    def close(self) -> None:
        """Stop everything."""
        with self._lock:
            for job in self._jobs.values():
                job.stopping.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    @staticmethod
    def _run(job: Job, work: Callable[[Job], Any]) -> None:
        job.state = "running"
        try:
            job.advance(0.0)
            job.result = work(job)
            job.progress, job.state = 1.0, "done"
        except _StoppedError:
            job.state = "stopped"
        except ImelError as error:
            job.error, job.state = str(error), "failed"
        except Exception as error:  # the environment's own code, or a defect of ours
            traceback.print_exc()
            job.error, job.state = f"{type(error).__name__}: {error}", "failed"
