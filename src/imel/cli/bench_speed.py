"""`imel bench speed`: what everything costs on one core, as a table and pictures."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from imel.bench.speed import LEARNERS, Cell, Figures, Plan, measure
from imel.bench.tasks import TASKS
from imel.cli.arguments import parse
from imel.cli.report import around_marks
from imel.errors import SettingsError
from imel.persistence.files import write_atomically
from imel.report.document import png
from imel.report.speed import markdown, scaling_figure, tasks_figure

_DESCRIPTION = """\
Measure what learning, acting and remembering cost on one core: seconds for 10,000 steps of the
bare environments, of IMeL with each interpolator and by what it does, of TRPO and PPO; peak memory;
acting on 1,000 to a million memories; leaving every episode out.

Each measurement is a process of its own on one core. Repetitions take turns and medians are taken,
so ratios hold on a machine that does other things as well; seconds are of the processor.

examples:
  imel bench speed                              all tasks: about an hour
  imel bench speed --tasks halfcheetah hopper
  imel bench speed --algorithms mki trpo --out runs/speed
  imel bench speed --out docs/images/speed --into docs/performance.md"""


@dataclass(frozen=True)
class SpeedArguments:
    """What is measured, and where the figures go."""

    tasks: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TASK ...")] = tuple(TASKS)
    """Tasks by name, or other environments by their Gymnasium id."""
    algorithms: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = LEARNERS
    """What is timed beside the bare environments; trpo-8 is TRPO with as many of them as IMeL."""
    steps: Annotated[int, tyro.conf.arg(metavar="N")] = 10_000
    """Environment steps that are timed, after a warm-up."""
    repetitions: Annotated[int, tyro.conf.arg(metavar="N")] = 3
    """Of every measurement."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/speed")
    """Folder of speed.json, speed.md and the pictures."""
    into: Annotated[Path | None, tyro.conf.arg(metavar="PAGE")] = None
    """Put the text into this page, between its two marks, instead of into DIR/speed.md."""
    quick: tyro.conf.FlagCreatePairsOff[bool] = False
    """Only see that it runs: one repetition of a few small measurements."""


def run(argv: Sequence[str]) -> int:
    """The command; its exit code."""
    arguments: SpeedArguments = parse(SpeedArguments, argv, "imel bench speed", _DESCRIPTION)
    for name in ("steps", "repetitions"):
        if getattr(arguments, name) < 1:
            raise SettingsError(f"{name}={getattr(arguments, name)} must be at least 1")
    for name in ("tasks", "algorithms"):
        if not getattr(arguments, name):
            raise SettingsError(f"--{name} names none")
    page = arguments.into or arguments.out / "speed.md"
    # First, so that a page without marks is refused before anything is measured
    before, after = around_marks(page, "speed") if arguments.into else ("# Speed\n\n", "")
    results = measure(_plan(arguments), _show)
    images = Path(os.path.relpath(arguments.out, page.parent)).as_posix()
    text = markdown(results, "" if images == "." else f"{images}/")
    files = {
        arguments.out / "speed.json": json.dumps(results, indent=1).encode(),
        arguments.out / "speed-tasks.png": png(tasks_figure(results)),
        arguments.out / "speed-scaling.png": png(scaling_figure(results)),
        page: (before + text + after).encode(),
    }
    for path, content in files.items():
        write_atomically(path, content)
        print(path)
    return 0


def _plan(arguments: SpeedArguments) -> Plan:
    plan = Plan(
        arguments.tasks,
        arguments.algorithms,
        steps=arguments.steps,
        repetitions=arguments.repetitions,
    )
    if not arguments.quick:
        return plan
    return replace(
        plan,
        tasks=arguments.tasks[:1],
        learners=arguments.algorithms[:1],
        steps=min(arguments.steps, 1024),
        repetitions=1,
        sizes=(1_000,),
        left_out=(1_000,),
    )


def _show(number: int, total: int, cell: Cell, figures: Figures) -> None:
    shown = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
    print(f"[{number}/{total}] {cell.label}: {shown}", flush=True)
