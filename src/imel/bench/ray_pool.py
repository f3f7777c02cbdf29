"""A pool of a Ray cluster's cores, one run a task; one that is lost is done again elsewhere."""

from __future__ import annotations

import contextlib
from itertools import count
from typing import Any

from imel.bench.pool import Failure, Finished, Job, Message, Pool, carry_out
from imel.bench.run import Run
from imel.bench.store import Row
from imel.distributed.connection import connect, cores


class RayPool(Pool):
    """As many runs at a time as the cluster has cores, or fewer; machines share no file system."""

    def __init__(self, address: str, jobs: int | None = None) -> None:
        super().__init__(jobs or 0)
        self._ray = connect(address)
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = self._ray.get_runtime_context().get_node_id()
        here = NodeAffinitySchedulingStrategy(node, soft=True)
        options = {"num_cpus": 0, "scheduling_strategy": here, "max_restarts": -1}
        self._queue = Queue(actor_options=options)
        self._work = self._ray.remote(num_cpus=1, max_retries=0)(_work)
        self._numbers = count()

    def has_room(self) -> bool:
        """Whether another run would start at once."""
        return len(self.under_way) < (self._jobs or max(1, cores(self._ray)))

    def close(self) -> None:
        """Give up what is still under way."""
        super().close()
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._queue.shutdown(force=True)

    def _begin(self, job: Job) -> None:
        number = next(self._numbers)
        job.handle = (number, self._work.remote(job.run, number, self._queue))

    def _end(self, job: Job) -> None:
        self._ray.cancel(job.handle[1])

    def _hear(self, seconds: float) -> list[tuple[Job, Message]]:
        if not self.under_way:
            return []
        tasks = {job.handle[1]: job for job in self.under_way.values()}
        ended, _ = self._ray.wait(list(tasks), timeout=seconds)
        # Rows after the wait: those of a run that has ended are then all there, and come first
        jobs = {job.handle[0]: job for job in tasks.values()}
        rows = ((jobs[number], row) for number, row in self._rows() if number in jobs)
        return [*rows, *((tasks[task], self._outcome(task)) for task in ended)]

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
            text = f"{type(error).__name__}: {lines[-1] if lines else ''}"
            return Failure(text, str(error), lost=True)
        return outcome


def _work(run: Run, number: int, queue: Any) -> Finished | Failure:
    """One run, in a worker of the cluster."""
    from ray.exceptions import RayError

    def tell(row: Row) -> None:
        with contextlib.suppress(RayError):
            queue.put((number, row))

    return carry_out(run, tell)
