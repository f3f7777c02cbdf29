"""`imel plot`: draw a run's learning curve and policy again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro

from imel.cli.arguments import parse
from imel.cli.pictures import draw_run
from imel.cli.stored_run import find_run

_DESCRIPTION = """\
Draw a run's learning curve (curve.png) and its policy with the memories (policy.png) again.

examples:
  imel plot runs/mountaincar
  imel plot runs/cheetah --action 3"""


@dataclass(frozen=True)
class PlotArguments:
    """What is drawn."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory, or a model file in one."""
    action: Annotated[int | None, tyro.conf.arg(metavar="K")] = None
    """The action dimension to show, from 0. By default the one that varies most in memory."""


def run(argv: Sequence[str]) -> int:
    """The command; its exit code."""
    arguments: PlotArguments = parse(PlotArguments, argv, "imel plot", _DESCRIPTION)
    torch.set_num_threads(1)
    stored = find_run(arguments.run)
    for path in draw_run(stored.folder, stored.load(), stored.config, arguments.action):
        print(path)
    return 0
