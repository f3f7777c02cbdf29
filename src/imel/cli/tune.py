"""`imel tune`: search settings for a task, confirm them on new seeds, write them as a config."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from imel.cli.arguments import parse
from imel.cli.pools import refuse_repeated_flags
from imel.errors import ImelError, SettingsError
from imel.tune.space import SPACES

_DESCRIPTION = """\
Search for settings of IMeL that learn a task better than the default ones.

examples:
  imel tune Pendulum-v1
  imel tune hopper --policy np --steps 100000 --trials 100 --jobs 8
  imel tune Pendulum-v1 --set n_envs=4 gamma=0.95      # not searched
  imel train --config runs/tune/Pendulum-v1-ridge/best.json

The study is kept on disk. The same command again goes on with it, after a kill too, until there
are --trials of them."""


@dataclass(frozen=True)
class TuneArguments:
    """What is searched, for how long, and where the study is."""

    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")]
    """A task of `imel bench` by name, or an environment by its Gymnasium id."""
    policy: Annotated[str, tyro.conf.arg(metavar="{" + ",".join(SPACES) + "}")] = "ridge"
    """How memories are interpolated."""
    trials: int = 30
    """Trials of the study, those of before included. The first one has the default settings."""
    steps: int = 30_000
    """Environment steps of every run."""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N ...")] = (0, 1)
    """A trial is a run with each of them; its value is the mean of their final returns."""
    confirm_seeds: int = 5
    """Other seeds on which the best settings are compared with the default ones; 0 for none."""
    jobs: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Trials at a time, each on one core; by default as many as there are cores."""
    ray: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Run on a Ray cluster: "local" starts one here, else "auto", HOST:PORT or ray://HOST:PORT."""
    study: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the study; by default runs/tune/TASK-POLICY."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE ...")] = ()
    """Settings of IMeL or options of its policy that are fixed and not searched."""
    seed: int = 0
    """Seed of the search itself."""


def run(argv: Sequence[str]) -> int:
    """The command; its exit code."""
    refuse_repeated_flags(argv)
    arguments: TuneArguments = parse(TuneArguments, argv, "imel tune", _DESCRIPTION)
    _check(arguments)
    if importlib.util.find_spec("optuna") is None:
        raise ImelError("imel tune needs Optuna: pip install 'imel[tune]'")
    from imel.cli.tuning import tune

    return tune(arguments)


def _check(arguments: TuneArguments) -> None:
    for name, least in (("trials", 1), ("steps", 1), ("confirm_seeds", 0), ("jobs", 1)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise SettingsError(f"{name}={value} must be at least {least}")
    if not arguments.seeds:
        raise SettingsError("--seeds names none")
    if min(*arguments.seeds, arguments.seed) < 0:
        raise SettingsError("seeds must not be negative")
    if len(set(arguments.seeds)) < len(arguments.seeds):
        raise SettingsError("--seeds names a seed twice")
