"""Searching for settings: a declared space, a study on disk, and a confirmation on new seeds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from imel.runs.plan import Steps


@dataclass(frozen=True)
class TuneArguments:
    """What is searched, for how long, and where the study is."""

    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")]
    """A task of `imel bench` by name, or an environment by its Gymnasium id."""
    policy: Annotated[str, tyro.conf.arg(metavar="{ridge,mki,np,anp,nearest,regressor}")] = "ridge"
    """What learns: `ridge`, or one of the paper's policies."""
    trials: int = 30
    """Trials of the study, those of before included. The first one has the default settings."""
    steps: Steps = 30_000
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
