"""`imel resume`: go on with a run from its last checkpoint, as if it had never stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from imel.cli.arguments import Flag, RunPath, parse
from imel.cli.train import plan_from_arguments, resume_run
from imel.errors import ImelError
from imel.runs import layout

_DESCRIPTION = """\
Go on with a run that was stopped or killed, from its last checkpoint. It ends bit for bit as it
would have ended without the interruption: weights, memory and logged metrics. Episodes under way
go on where they were.

examples:
  imel resume runs/cheetah
  imel resume runs/cheetah --fall-back      use the checkpoint before, if the last is damaged"""


@dataclass(frozen=True)
class ResumeArguments:
    """Which run, and what is tolerated."""

    run: RunPath
    """The run directory."""
    allow_differences: Flag = False
    """Go on although settings, library versions, threads or device differ from those of the
    checkpoint. The end is then another one."""
    fall_back: Flag = False
    """If the newest checkpoint is damaged, use the newest that is whole."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments: ResumeArguments = parse(ResumeArguments, argv, "imel resume", _DESCRIPTION)
    config = arguments.run / layout.CONFIG
    if not config.is_file():
        raise ImelError(f"{arguments.run} holds no run to resume (no {layout.CONFIG})")
    plan, _ = plan_from_arguments(["--config", str(config)])
    torch.set_num_threads(plan.run.threads)
    return resume_run(arguments.run, plan, arguments.allow_differences, arguments.fall_back)
