"""`imel bench`: a grid of tasks, algorithms and seeds into a store, and the table of a store."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from imel.bench.launch import grid, launch, unfinished
from imel.bench.progress import GridProgress
from imel.bench.store import Row, Store, identity
from imel.bench.table import failures, summarise, tables
from imel.bench.tasks import TASKS
from imel.cli.arguments import parse
from imel.errors import SettingsError

_DESCRIPTION = """\
Run algorithms on tasks, several seeds of each, side by side; print what came of them.

examples:
  imel bench --quick
  imel bench --tasks hopper walker2d --algorithms mki np trpo --seeds 0 1 2 3 4
  imel bench --tasks Pendulum-v1 --algorithms mki --set std=0.5:0.1 memory_size=4096
  imel bench --table --store runs/bench

Results are kept in the store. The same command again does only what is missing or has failed; a
run counts as done when task, settings, seed and steps agree. So take a new store for new code."""

_QUICK_STEPS = 4096
_PIPE_WIDTH = 160
_SOME_FAILED = 1


@dataclass(frozen=True)
class BenchArguments:
    """What to run, and where the results are."""

    tasks: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TASK ...")] = tuple(TASKS)
    """Tasks by name, or other environments by their Gymnasium id."""
    algorithms: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = (
        "mki",
        "np",
        "trpo",
    )
    """Of mki, np, anp, regressor, nearest (IMeL), trpo and ppo."""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N ...")] = (0, 1, 2)
    """One run for each."""
    steps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Environment steps of every run; by default the task's own."""
    n_envs: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Environments IMeL steps together; the same as --set n_envs=N."""
    jobs: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Runs at a time, each on one core; by default as many as there are cores."""
    store: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/bench")
    """Folder of the results."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE ...")] = ()
    """Settings of IMeL, options of its policy, or a preset. The baselines are not changed."""
    quick: tyro.conf.FlagCreatePairsOff[bool] = False
    """Only see that everything runs: one seed, 4096 steps."""
    table: tyro.conf.FlagCreatePairsOff[bool] = False
    """Run nothing; print what is in the store."""


def run(argv: Sequence[str]) -> int:
    """The command; its exit code."""
    _refuse_repeated_flags(argv)
    arguments = parse(BenchArguments, argv, "imel bench", _DESCRIPTION)
    _check(arguments)
    console = Console()
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    store = Store(arguments.store)
    if arguments.table:
        if not store.folder.is_dir():
            raise SettingsError(f"there is no store at {arguments.store}")
        _print_tables(store.rows(), console)
        return 0
    runs = grid(
        arguments.tasks,
        arguments.algorithms,
        arguments.seeds[:1] if arguments.quick else arguments.seeds,
        _QUICK_STEPS if arguments.quick else arguments.steps,
        _overrides(arguments),
    )
    todo = unfinished(runs, store)
    console.print(f"{len(todo)} of {len(runs)} runs to do, results in {arguments.store}")
    with GridProgress(todo, console) as progress:
        failed = launch(todo, store, arguments.jobs or _cores(), progress)
    wanted = {identity(run.identity()) for run in runs}
    rows = [row for row in store.rows() if identity(row) in wanted]
    _print_tables(rows, console)
    return _SOME_FAILED if failed else 0


def _refuse_repeated_flags(argv: Sequence[str]) -> None:
    """The parser would keep the last and drop the others without a word."""
    flags = [word.partition("=")[0] for word in argv if word.startswith("--")]
    for flag in flags:
        if flags.count(flag) > 1:
            raise SettingsError(f"{flag} is given twice; put all its values behind one")


def _check(arguments: BenchArguments) -> None:
    for name in ("steps", "jobs", "n_envs"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise SettingsError(f"{name}={value} must be at least 1")
    for name in ("tasks", "algorithms", "seeds"):
        if not getattr(arguments, name):
            raise SettingsError(f"--{name} names none")
    if min(arguments.seeds) < 0:
        raise SettingsError(f"seeds={min(arguments.seeds)} must not be negative")
    if arguments.quick and arguments.steps is not None:
        raise SettingsError("--quick and --steps both say how long to run; give one of them")


def _overrides(arguments: BenchArguments) -> dict[str, Any]:
    """Settings as typed on the command line: JSON where they are, text (schedules) elsewhere."""
    overrides: dict[str, Any] = {}
    for item in arguments.set:
        key, equals, text = item.partition("=")
        if not equals:
            raise SettingsError(f"--set {item}: not of the form KEY=VALUE")
        try:
            overrides[key] = json.loads(text)
        except json.JSONDecodeError:
            overrides[key] = text
    if arguments.n_envs is not None:
        overrides["n_envs"] = arguments.n_envs
    return overrides


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _print_tables(rows: list[Row], console: Console) -> None:
    for table in tables(summarise(rows)):
        console.print(table)
    for line in failures(rows):
        console.print(f"failed: {line}", markup=False, soft_wrap=True)
