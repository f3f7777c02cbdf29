"""`imel bench`: a grid of tasks, algorithms and seeds into a store, and the table of a store."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import tyro
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from imel.bench.launch import choose_pool, grid, launch, unfinished
from imel.bench.pool import Pool
from imel.bench.progress import GridProgress
from imel.bench.slurm_pool import Request, SlurmPool
from imel.bench.store import LATEST, Row, Store, identity
from imel.bench.tasks import find_suite
from imel.cli import arguments as flags
from imel.errors import SettingsError
from imel.files import write_atomically
from imel.report.results import TaskResults, cost_ratio, gather

_DESCRIPTION = """\
Run algorithms on tasks, several seeds of each, side by side; print what came of them.

examples:
  imel bench paper                          every task, 5 seeds: the comparison of the paper
  imel bench long --quick                   only see that a million steps of larger tasks would run
  imel bench --tasks Pendulum-v1 --algorithms ridge --set trust_region=0.01 memory_size=4096
  imel bench paper --slurm --partition cpu --time 600 --sbatch account=lab
  imel bench --table --store runs/bench

Results are kept in the store. The same command again does only what is missing or has failed; a
run counts as done when task, settings, seed and steps agree. So take a new store for new code.
`imel report` makes tables and figures of a store."""

_COLUMNS = ("return of each seed", "median", "min", "max", "stochastic", "seconds", "cpu / trpo")


def _of_suite(metavar: str) -> Any:
    """A flag whose default depends on the suite."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="(default: the suite's)")


@dataclass(frozen=True)
class BenchArguments:
    """What to run, and where the results are. A flag that is given replaces the suite's value."""

    suite: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="SUITE")] = None
    """paper, long, untuned, random or spaces; by default the paper's tasks, ridge, mki and trpo,
    seeds 0 to 2."""
    tasks: Annotated[tuple[str, ...] | None, _of_suite("TASK ...")] = None
    """Tasks by name, or other environments by their Gymnasium id."""
    algorithms: Annotated[tuple[str, ...] | None, _of_suite("NAME ...")] = None
    """Of ridge, mki, np, anp, nearest, regressor (IMeL) or a policy of your own, module:Class;
    trpo, trpo-plain, ppo, random."""
    seeds: Annotated[tuple[int, ...] | None, _of_suite("N ...")] = None
    """One run for each."""
    steps: flags.Number = None
    """Environment steps of every run; by default the task's own."""
    n_envs: flags.Number = None
    """Environments IMeL steps together; the same as --set n_envs=N."""
    jobs: flags.Number = None
    """Runs at a time, each on one core; by default as many as there are cores."""
    ray: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Run on a Ray cluster: "local" starts one here, else "auto", HOST:PORT or ray://HOST:PORT."""
    store: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the results; by default results/SUITE (results/paper for random, results/quick for
    a quick one), runs/bench without a suite."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE ...")] = ()
    """Settings of IMeL's policies. The baselines are not changed."""
    slurm: flags.Flag = False
    """Run on the SLURM cluster this machine belongs to: a job for each run."""
    job: Request = field(default_factory=Request)
    quick: flags.Flag = False
    """Only see that it runs: two tasks and seeds for 10k steps of a suite, else a seed for 4096."""
    table: flags.Flag = False
    """Run nothing; print what is in the store."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    flags.refuse_repeated_flags(argv)
    given: BenchArguments = flags.parse(BenchArguments, argv, "imel bench", _DESCRIPTION)
    _check(given)
    options = flags.settings_from(given.job.sbatch, "--sbatch")
    chosen = {name: getattr(given, name) for name in ("tasks", "algorithms", "seeds", "steps")}
    chosen = {name: value for name, value in (chosen | {"store": given.store}).items() if value}
    suite = replace(find_suite(given.suite, given.quick), **chosen)
    console, store = flags.wide_console(), Store(suite.store)
    if given.table:
        if not store.folder.is_dir():
            raise SettingsError(f"there is no store at {suite.store}")
        _print_tables(store.rows(), console)
        return 0
    overrides = flags.settings_from(given.set)
    overrides |= {} if given.n_envs is None else {"n_envs": given.n_envs}
    runs = grid(suite.tasks, suite.algorithms, suite.seeds, suite.steps, overrides)
    todo = unfinished(runs, store)
    console.print(f"{len(todo)} of {len(runs)} runs to do, results in {suite.store}")
    pool: Pool
    if given.slurm:
        pool = SlurmPool(store, given.job, options, given.jobs)
        console.print(f"each is a SLURM job: {given.job}; logs in {pool.logs}", soft_wrap=True)
    else:
        pool = choose_pool(given.ray, given.jobs)
    with GridProgress(todo, console) as progress:
        failed = launch(todo, store, pool, progress)
    wanted = {identity(run.identity()) for run in runs}
    _print_tables([row for row in store.rows() if identity(row) in wanted], console)
    with contextlib.suppress(OSError):
        write_atomically(LATEST, str(store.folder).encode())
    console.print("curves and tables of it: imel report", highlight=False)
    return 1 if failed else 0


def _check(given: BenchArguments) -> None:
    flags.require_at_least(given, steps=1, jobs=1, n_envs=1)
    flags.require_at_least(given.job, time=1, memory=0)
    for name in ("tasks", "algorithms", "seeds"):
        if getattr(given, name) == ():
            raise SettingsError(f"--{name} names none")
    if given.job != Request() and not given.slurm:
        raise SettingsError("--partition, --time, --memory and --sbatch need --slurm")
    if given.ray is not None and given.slurm:
        raise SettingsError("--ray and --slurm: give one of them")
    if given.seeds and min(given.seeds) < 0:
        raise SettingsError(f"seeds={min(given.seeds)} must not be negative")


def _print_tables(rows: list[Row], console: Console) -> None:
    results = gather(rows)
    for task in results.tasks:
        console.print(table(task))
    for line in results.failures:
        console.print(f"failed: {line}", markup=False, soft_wrap=True)


def table(task: TaskResults) -> Table:
    """Every seed of one task and number of steps, medians and ranges, nothing more."""
    title = escape(f"{task.task}, {task.steps:,} steps")
    found = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    found.add_column("algorithm", min_width=9, overflow="fold")
    for name in _COLUMNS:
        # A narrow terminal breaks the list of seeds, not the numbers
        found.add_column(name, justify="right", no_wrap=name != _COLUMNS[0])
    baseline = task.groups.get("trpo")
    for group in [*task.groups.values(), *([task.random] if task.random else [])]:
        returns, numbers = group.evaluated, group.explored
        ratio = cost_ratio(group, baseline) if baseline and group is not task.random else None
        found.add_row(
            escape(group.label),
            " ".join(f"{value:.1f}" for value in returns),
            *(f"{value:.1f}" for value in (median(returns), min(returns), max(returns))),
            f"{median(numbers):.1f}" if len(numbers) else "-",
            f"{median(run.seconds for run in group.runs):.1f}",
            "-" if ratio is None else f"{ratio:.2f}",
        )
    return found
