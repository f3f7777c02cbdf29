"""A pool of a Ray cluster's cores, one run a task; one that is lost is done again elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable
from typing import Any

from imel.bench.pool import ITS_SYSTEM, RETRIES, Failure, Finished, Message, carry_out
from imel.bench.run import Run
from imel.bench.store import Row
from imel.distributed.connection import connect, cores


class RayPool:
    """As many runs at a time as the cluster has cores, or fewer if told so.

    Tasks send their rows through a queue and return all of them, so that machines need not share
    a file system.
    """

    def __init__(self, address: str, jobs: int | None = None) -> None:
        self._ray = connect(address)
        self._jobs = jobs
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(
            self._ray.get_runtime_context().get_node_id(), soft=True
        )
        options = {"num_cpus": 0, "scheduling_strategy": here, "max_restarts": -1}
        self._queue = Queue(actor_options=options)
        self._work = self._ray.remote(
            num_cpus=1, max_retries=RETRIES, retry_exceptions=list(ITS_SYSTEM)
        )(_work)
        self._running: dict[Any, tuple[int, Hashable]] = {}
        self._started = 0

    def has_room(self) -> bool:
        """Whether another run would start at once."""
        return len(self._running) < (self._jobs or max(1, cores(self._ray)))

    def start(self, key: Hashable, run: Run) -> None:
        """Begin a run."""
        task = self._work.remote(run, self._started, self._queue)
        self._running[task] = (self._started, key)
        self._started += 1

    def stop(self, key: Hashable) -> None:
        """Give up a run: nothing more is heard of it."""
        for task, (_, own) in list(self._running.items()):
            if own == key:
                self._ray.cancel(task)
                del self._running[task]

    def messages(self, seconds: float) -> list[tuple[Hashable, Message]]:
        """What has happened, after waiting so long at most; a run that has ended is forgotten."""
        if not self._running:
            return []
        ended, _ = self._ray.wait(list(self._running), timeout=seconds)
        # Rows after the wait: those of a run that has ended are then all there, and come first
        keys = dict(self._running.values())
        heard: list[tuple[Hashable, Message]] = [
            (keys[number], row) for number, row in self._rows() if number in keys
        ]
        for task in ended:
            _, key = self._running.pop(task)
            heard.append((key, self._outcome(task)))
        return heard

    def close(self) -> None:
        """Give up what is still under way."""
        for _, key in list(self._running.values()):
            self.stop(key)
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._queue.shutdown(force=True)

    def _rows(self) -> list[tuple[int, Row]]:
        with contextlib.suppress(self._ray.exceptions.RayError):  # progress, which can be missed
            rows: list[tuple[int, Row]] = self._queue.get_nowait_batch(self._queue.qsize())
            return rows
        return []

    def _outcome(self, task: Any) -> Finished | Failure:
        try:
            outcome: Finished | Failure = self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return Failure(f"{type(error).__name__}: {lines[-1] if lines else ''}", str(error))
        return outcome


def _work(run: Run, number: int, queue: Any) -> Finished | Failure:
    """One run, in a worker of the cluster."""
    from ray.exceptions import RayError

    def tell(row: Row) -> None:
        with contextlib.suppress(RayError):
            queue.put((number, row))

    return carry_out(run, tell, raised=ITS_SYSTEM)
