"""A pool of SLURM jobs by submitit, one core and one run a job; one that is lost is run again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from imel.bench.pool import Failure, Finished, Job, Message, Pool, carry_out
from imel.bench.run import Run
from imel.bench.store import Store
from imel.errors import ImelError
from imel.extras import require

_MOST = 1000  # jobs at a time unless told otherwise; as many as SLURM's arrays may have
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


class SlurmPool(Pool):
    """A job for each run; jobs that are started together are one job array.

    Jobs put results into the store themselves, on a file system that all machines share.
    """

    def __init__(
        self,
        store: Store,
        request: Request,
        options: Mapping[str, Any],
        jobs: int | None,
        cluster: str = "slurm",
    ) -> None:
        super().__init__(jobs or _MOST)
        self._submitit = require("submitit", "slurm")
        if cluster == "slurm" and shutil.which("srun") is None:
            raise ImelError("SLURM's srun is not on this machine: run on a login node of a cluster")
        self._store, self.logs = store, store.folder / "slurm"
        self._executor = self._submitit.AutoExecutor(self.logs, cluster)
        self._executor.update_parameters(
            name="imel",
            cpus_per_task=1,
            timeout_min=request.time,
            mem_gb=request.memory,
            slurm_partition=request.partition,
            slurm_additional_parameters=dict(options),
            slurm_setup=[_ONE_THREAD],
        )

    def _begin(self, job: Job) -> None:
        job.handle = None  # submitted with the others of this round

    def _end(self, job: Job) -> None:
        if job.handle is not None:
            job.handle.cancel(check=False)

    def _hear(self, seconds: float) -> list[tuple[Job, Message]]:
        if new := [job for job in self.under_way.values() if job.handle is None]:
            self._submit(new)
        ended = [job for job in self.under_way.values() if job.handle.done()]
        if not ended:
            time.sleep(seconds)
        return [(job, self._outcome(job)) for job in ended]

    def _submit(self, jobs: list[Job]) -> None:
        runs = [job.run for job in jobs]
        try:
            submitted = self._executor.map_array(_work, runs, [self._store.folder] * len(runs))
        except RuntimeError as error:  # of submitit: what sbatch has said
            raise ImelError(f"SLURM refused the jobs: {error}") from None
        for job, own in zip(jobs, submitted, strict=True):
            job.handle = own

    def _outcome(self, job: Job) -> Finished | Failure:
        try:
            outcome: Finished | Failure = job.handle.result()
        except self._submitit.core.utils.UncompletedJobError as error:
            printed = f"its job has printed into {job.handle.paths.stderr}"
            return Failure(printed, str(error), lost=True)
        return outcome


def _work(run: Run, folder: Path) -> Finished | Failure:
    """One run, in a job."""
    store = Store(folder)
    done = store.final_row(run.identity())
    if done is not None:  # by a job of an earlier command, which was killed
        return Finished([done], stored=True)
    outcome = carry_out(run, tell=lambda row: None)
    if isinstance(outcome, Finished):
        store.add(outcome.rows)
        return Finished(outcome.rows[-1:], stored=True)
    return outcome
