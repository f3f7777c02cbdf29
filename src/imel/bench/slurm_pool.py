"""A pool of SLURM jobs by submitit, one core and one run a job; one that is lost is run again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from imel.bench.pool import ITS_SYSTEM, RETRIES, Failure, Finished, Message, carry_out
from imel.bench.run import Run
from imel.bench.store import Store
from imel.errors import ImelError
from imel.extras import require

_MOST = 1000
"""Jobs at a time unless told otherwise, which is also how many elements SLURM's arrays may have."""
_ONE_THREAD = "export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1"


@dataclass(frozen=True)
class Request:
    """What each job of a SLURM cluster asks for beside one core."""

    partition: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Partition; by default the cluster's own."""
    time: Annotated[int, tyro.conf.arg(metavar="MINUTES")] = 240
    """Time limit of a job in minutes."""
    memory: Annotated[float, tyro.conf.arg(metavar="GB")] = 4.0
    """Memory of a job in gigabytes."""
    sbatch: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE ...")] = ()
    """Other options of sbatch by their long names, such as account=NAME or qos=NAME."""

    def __str__(self) -> str:
        words = [f"partition {self.partition}"] if self.partition else []
        words += ["1 core", f"{self.memory:g} GB", f"{self.time} minutes"]
        return ", ".join([*words, *self.sbatch])


@dataclass
class _Job:
    key: Hashable
    run: Run
    attempts: int = 0
    submitted: Any = None
    """submitit's job, once it has been submitted."""


class SlurmPool:
    """A job for each run; jobs that are started together are one job array.

    Jobs put their results into the store themselves, so that these outlive the command. The store
    has to be on a file system that all machines share.
    """

    def __init__(
        self,
        store: Store,
        request: Request,
        options: Mapping[str, Any],
        jobs: int | None,
        cluster: str = "slurm",
    ) -> None:
        self._submitit = require("submitit", "slurm")
        if cluster == "slurm" and shutil.which("srun") is None:
            raise ImelError("SLURM's srun is not on this machine: run on a login node of a cluster")
        self._store, self._jobs = store, jobs or _MOST
        self._executor = self._submitit.AutoExecutor(logs(store), cluster)
        self._executor.update_parameters(
            name="imel",
            cpus_per_task=1,
            timeout_min=request.time,
            mem_gb=request.memory,
            slurm_partition=request.partition,
            slurm_additional_parameters=dict(options),
            slurm_setup=[_ONE_THREAD],
        )
        self._running: dict[Hashable, _Job] = {}

    def has_room(self) -> bool:
        """Whether another run would be submitted at once."""
        return len(self._running) < self._jobs

    def start(self, key: Hashable, run: Run) -> None:
        """Let a run be submitted with the others of this round."""
        self._running[key] = _Job(key, run)

    def stop(self, key: Hashable) -> None:
        """Give up a run: nothing more is heard of it."""
        job = self._running.pop(key)
        if job.submitted is not None:
            job.submitted.cancel(check=False)

    def messages(self, seconds: float) -> list[tuple[Hashable, Message]]:
        """What has happened, after waiting so long at most; a run that has ended is forgotten."""
        self._submit([job for job in self._running.values() if job.submitted is None])
        ended = [job for job in self._running.values() if job.submitted.done()]
        if not ended:
            time.sleep(seconds)
        heard: list[tuple[Hashable, Message]] = []
        for job in ended:
            outcome = self._outcome(job)
            if outcome is not None:
                del self._running[job.key]
                heard.append((job.key, outcome))
        return heard

    def close(self) -> None:
        """Cancel what is still under way."""
        for key in list(self._running):
            self.stop(key)

    def _submit(self, jobs: list[_Job]) -> None:
        if not jobs:
            return
        runs = [job.run for job in jobs]
        try:
            submitted = self._executor.map_array(_work, runs, [self._store.folder] * len(runs))
        except RuntimeError as error:  # of submitit: what sbatch has said
            raise ImelError(f"SLURM refused the jobs: {error}") from None
        for job, own in zip(jobs, submitted, strict=True):
            job.submitted = own

    def _outcome(self, job: _Job) -> Finished | Failure | None:
        """How a run ended, or None if it is to be submitted once more."""
        try:
            outcome: Finished | Failure = job.submitted.result()
        except self._submitit.core.utils.UncompletedJobError as error:
            if job.attempts < RETRIES:
                job.attempts, job.submitted = job.attempts + 1, None
                return None
            printed = f"it has printed into {job.submitted.paths.stderr}"
            return Failure(f"its job was lost {RETRIES + 1} times; {printed}", str(error))
        return outcome


def logs(store: Store) -> Path:
    """The folder of what jobs print."""
    return store.folder / "slurm"


def _work(run: Run, folder: Path) -> Finished | Failure:
    """One run, in a job."""
    store = Store(folder)
    done = store.final_row(run.identity())
    if done is not None:  # by a job of an earlier command, which was killed
        return Finished([done])
    outcome = carry_out(run, tell=lambda row: None, raised=ITS_SYSTEM)
    if isinstance(outcome, Finished):
        store.add(outcome.rows)
    return outcome
