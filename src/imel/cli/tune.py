"""`imel tune`: search settings for a task, confirm them on new seeds, write them as a config."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from imel.bench.launch import choose_pool
from imel.cli.arguments import Number, parse, refuse_repeated_flags, require_at_least, settings_from
from imel.errors import SettingsError
from imel.extras import require


@dataclass(frozen=True)
class TuneArguments:
    """Search for settings of IMeL that learn a task better than the default ones.

    examples:
      imel tune Pendulum-v1
      imel tune hopper --policy np --steps 100000 --trials 100 --jobs 8
      imel tune Pendulum-v1 --set n_envs=4 gamma=0.95      # not searched
      imel train --config runs/tune/Pendulum-v1-ridge/best.json

    The study is kept on disk. The same command again goes on with it, after a kill too, until there
    are --trials of them. Given several times at once, also on several machines, it shares the work.
    """

    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")]
    """A task of `imel bench` by name, or an environment by its Gymnasium id."""
    policy: Annotated[str, tyro.conf.arg(metavar="{ridge,mki,np,anp,nearest,regressor}")] = "ridge"
    """What learns: `ridge`, or one of the paper's policies."""
    trials: int = 30
    """Trials of the study, those of before included. The first one has the default settings."""
    steps: int = 30_000
    """Environment steps of every run."""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N ...")] = (0, 1)
    """A trial is a run with each of them; its value is the mean of their final returns."""
    confirm_seeds: int = 5
    """Other seeds on which the best settings are compared with the default ones; 0 for none."""
    jobs: Number = None
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
    """Run the command and return its exit code."""
    refuse_repeated_flags(argv)
    given: TuneArguments = parse(TuneArguments, argv, "imel tune")
    require_at_least(given, trials=1, steps=1, confirm_seeds=0, jobs=1, seed=0)
    if len(set(given.seeds)) < max(1, len(given.seeds)) or min(given.seeds) < 0:
        raise SettingsError("--seeds takes different numbers, at least one and none negative")
    require("optuna", "tune")
    from imel.tune.study import Problem
    from imel.tune.tuning import tune

    fixed = settings_from(given.set)
    problem = Problem(given.task, given.policy, given.steps, given.seeds, fixed)
    name = re.sub(r"[^\w.-]+", "_", f"{given.task}-{given.policy}")
    folder = given.study or Path("runs/tune", name)
    pool = functools.partial(choose_pool, given.ray, given.jobs)
    return tune(problem, folder, pool, given.trials, given.confirm_seeds, given.seed)
