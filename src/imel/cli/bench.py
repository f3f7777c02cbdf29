"""`imel bench`: a grid of tasks, algorithms and seeds into a store, and the table of a store."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from imel.bench.launch import choose_pool, grid, launch, unfinished
from imel.bench.progress import GridProgress
from imel.bench.slurm_pool import Request, SlurmPool, logs
from imel.bench.store import LATEST, Row, Store, identity
from imel.bench.suites import Suite, find_suite
from imel.cli.arguments import (
    Flag,
    Number,
    parse,
    refuse_repeated_flags,
    require_at_least,
    settings_from,
    wide_console,
)
from imel.errors import SettingsError
from imel.persistence.files import write_atomically
from imel.report.results import gather
from imel.report.table import tables
from imel.runs.plan import Steps

_DESCRIPTION = """\
Run algorithms on tasks, several seeds of each, side by side; print what came of them.

examples:
  imel bench paper --quick
  imel bench paper                          every task, 5 seeds: the comparison of the paper
  imel bench ablation                       variants of the algorithms, in the same store
  imel bench random                         the returns of acting at random
  imel bench spaces                         discrete actions, a Dict, pixels: beside PPO
  imel bench --tasks hopper walker2d --algorithms ridge mki trpo --seeds 0 1 2 3 4
  imel bench --tasks Pendulum-v1 --algorithms ridge --set trust_region=0.01 memory_size=4096
  imel bench paper --slurm --partition cpu --time 600 --sbatch account=lab
  imel bench --table --store runs/bench

Results are kept in the store. The same command again does only what is missing or has failed; a
run counts as done when task, settings, seed and steps agree. So take a new store for new code.
`imel report` makes tables and figures of a store."""

_SOME_FAILED = 1


def _of_suite(metavar: str) -> Any:
    """A flag whose default depends on the suite."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="(default: the suite's)")


@dataclass(frozen=True)
class SlurmArguments:
    """Whether runs are jobs of a SLURM cluster, and what each job asks for beside one core."""

    slurm: Flag = False
    """Run on the SLURM cluster this machine belongs to: a job for each run."""
    partition: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Partition; by default the cluster's own."""
    time: Annotated[int, tyro.conf.arg(metavar="MINUTES")] = Request.time
    """Time limit of a job in minutes."""
    memory: Annotated[float, tyro.conf.arg(metavar="GB")] = Request.memory
    """Memory of a job in gigabytes."""
    sbatch: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE ...")] = ()
    """Other options of sbatch by their long names, such as account=NAME or qos=NAME."""

    def request(self) -> Request | None:
        """What jobs ask for; None where there are none."""
        if self.slurm:
            options = settings_from(self.sbatch, "--sbatch")
            return Request(self.partition, self.time, self.memory, options)
        if self != SlurmArguments():
            raise SettingsError("--partition, --time, --memory and --sbatch need --slurm")
        return None


@dataclass(frozen=True)
class BenchArguments:
    """What to run, and where the results are. A flag that is given replaces the suite's value."""

    suite: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="SUITE")] = None
    """paper, ablation, random or spaces; by default the paper's tasks, ridge, mki and trpo, seeds 0
    to 2."""
    tasks: Annotated[tuple[str, ...] | None, _of_suite("TASK ...")] = None
    """Tasks by name, or other environments by their Gymnasium id."""
    algorithms: Annotated[tuple[str, ...] | None, _of_suite("NAME ...")] = None
    """Of ridge, mki, np, anp, nearest, regressor (IMeL), trpo, ppo, udrl, random; or a
    variant's name."""
    seeds: Annotated[tuple[int, ...] | None, _of_suite("N ...")] = None
    """One run for each."""
    steps: Annotated[Steps | None, tyro.conf.arg(metavar="N")] = None
    """Environment steps of every run; by default the task's own."""
    n_envs: Number = None
    """Environments IMeL steps together; the same as --set n_envs=N."""
    jobs: Number = None
    """Runs at a time, each on one core; by default as many as there are cores."""
    ray: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Run on a Ray cluster: "local" starts one here, else "auto", HOST:PORT or ray://HOST:PORT."""
    store: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the results; by default results/paper for a suite (results/spaces for spaces,
    results/quick for a quick one), runs/bench without one."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE ...")] = ()
    """Settings of IMeL, or options of its policy. The baselines are not changed."""
    cluster: SlurmArguments = SlurmArguments()
    quick: Flag = False
    """Only see that it runs: two tasks and seeds for 10k steps of a suite, else a seed for 4096."""
    table: Flag = False
    """Run nothing; print what is in the store."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    refuse_repeated_flags(argv)
    arguments: BenchArguments = parse(BenchArguments, argv, "imel bench", _DESCRIPTION)
    _check(arguments)
    request = arguments.cluster.request()
    suite = _chosen(arguments)
    console = wide_console()
    store = Store(suite.store)
    if arguments.table:
        if not store.folder.is_dir():
            raise SettingsError(f"there is no store at {suite.store}")
        _print_tables(store.rows(), console)
        return 0
    runs = grid(suite.tasks, suite.algorithms, suite.seeds, suite.steps, _overrides(arguments))
    todo = unfinished(runs, store)
    console.print(f"{len(todo)} of {len(runs)} runs to do, results in {suite.store}")
    if request is None:
        pool = choose_pool(arguments.ray, arguments.jobs)
    else:
        pool = SlurmPool(store, request, arguments.jobs)
        console.print(f"each is a SLURM job: {request}; logs in {logs(store)}", soft_wrap=True)
    with GridProgress(todo, console) as progress:
        failed = launch(todo, store, pool, progress)
    wanted = {identity(run.identity()) for run in runs}
    rows = [row for row in store.rows() if identity(row) in wanted]
    _print_tables(rows, console)
    with contextlib.suppress(OSError):
        write_atomically(LATEST, str(store.folder).encode())
    console.print("curves and tables of it: imel report", highlight=False)
    return _SOME_FAILED if failed else 0


def _chosen(arguments: BenchArguments) -> Suite:
    """The suite, with what was given by flags in place of its own."""
    suite = find_suite(arguments.suite, arguments.quick)
    given = {field.name: getattr(arguments, field.name) for field in fields(suite)}
    return replace(suite, **{name: value for name, value in given.items() if value is not None})


def _check(arguments: BenchArguments) -> None:
    require_at_least(arguments, steps=1, jobs=1, n_envs=1)
    for name in ("tasks", "algorithms", "seeds"):
        if getattr(arguments, name) == ():
            raise SettingsError(f"--{name} names none")
    require_at_least(arguments.cluster, time=1, memory=0)
    if arguments.ray is not None and arguments.cluster.slurm:
        raise SettingsError("--ray and --slurm: give one of them")
    if arguments.seeds and min(arguments.seeds) < 0:
        raise SettingsError(f"seeds={min(arguments.seeds)} must not be negative")


def _overrides(arguments: BenchArguments) -> dict[str, Any]:
    overrides = settings_from(arguments.set)
    if arguments.n_envs is not None:
        overrides["n_envs"] = arguments.n_envs
    return overrides


def _print_tables(rows: list[Row], console: Console) -> None:
    results = gather(rows)
    for table in tables(results):
        console.print(table)
    for line in results.failures:
        console.print(f"failed: {line}", markup=False, soft_wrap=True)
