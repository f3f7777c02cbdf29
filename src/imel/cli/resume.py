"""`imel resume`: go on with a run from its last checkpoint, as if it had never stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from imel.cli.arguments import Flag, OwnPolicy, RunPath, parse
from imel.cli.train import resume_run
from imel.errors import ImelError
from imel.runs import layout
from imel.runs.plan import read_plan


@dataclass(frozen=True)
class ResumeArguments:
    """Go on with a run that was stopped or killed, from its last checkpoint.

    It ends bit for bit as it would have ended without the interruption: weights, memory and logged
    metrics. Episodes under way go on where they were.

    examples:
      imel resume runs/cheetah
      imel resume runs/cheetah --fall-back      use the checkpoint before, if the last is damaged
    """

    run: RunPath
    """The run directory."""
    policy: OwnPolicy = None
    """The run's policy, if it is a class of your own: no file is a reason to run code."""
    allow_differences: Flag = False
    """Go on although settings, library versions, threads or device differ from those of the
    checkpoint. The end is then another one."""
    fall_back: Flag = False
    """If the newest checkpoint is damaged, use the newest that is whole."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    given: ResumeArguments = parse(ResumeArguments, argv, "imel resume")
    config = given.run / layout.CONFIG
    if not config.is_file():
        raise ImelError(f"{given.run} holds no run to resume (no {layout.CONFIG})")
    plan = read_plan(config, given.policy)
    return resume_run(given.run, plan, given.allow_differences, given.fall_back)
