"""`imel resume`: go on with a run from its last checkpoint, as if it had never stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console

from imel.algorithm import IMeL
from imel.cli import run_directory
from imel.cli.arguments import parse
from imel.cli.plan import Plan, plan_from_arguments
from imel.cli.running import carry_out, finish, make_model
from imel.errors import CheckpointError, ImelError
from imel.resume import differences, latest_checkpoint, version_differences

_DESCRIPTION = """\
Go on with a run that was stopped or killed, from its last checkpoint. It ends bit for bit as it
would have ended without the interruption: weights, memory and logged metrics.

examples:
  imel resume runs/cheetah
  imel resume runs/cheetah --fall-back      use the checkpoint before, if the last is damaged"""

_NOT_OF_THE_OUTCOME = (
    *("checkpoints_kept", "eval_episodes", "go_on_if_full"),
    *("progress_json", "track", "track_project"),
)


@dataclass(frozen=True)
class ResumeArguments:
    """Which run, and what is tolerated."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run directory."""
    allow_differences: tyro.conf.FlagCreatePairsOff[bool] = False
    """Go on although library versions differ. The end is then another one."""
    fall_back: tyro.conf.FlagCreatePairsOff[bool] = False
    """If the newest checkpoint is damaged, use the newest that is whole."""


def run(argv: Sequence[str]) -> int:
    """The command; its exit code."""
    arguments: ResumeArguments = parse(ResumeArguments, argv, "imel resume", _DESCRIPTION)
    config = arguments.run / run_directory.CONFIG
    if not config.is_file():
        raise ImelError(f"{arguments.run} holds no run to resume (no {run_directory.CONFIG})")
    plan, _ = plan_from_arguments(["--config", str(config)])
    torch.set_num_threads(plan.run.threads)
    return resume_run(arguments.run, plan, arguments.allow_differences, arguments.fall_back)


def resume_run(folder: Path, plan: Plan, allow_differences: bool, fall_back: bool) -> int:
    """Continue the run in a folder by a plan, which ought to be its own; the exit code."""
    with run_directory.reopened(folder):
        stored = run_directory.read_json(folder / run_directory.CONFIG)
        found = differences(stored, plan.as_json(), ignored=_NOT_OF_THE_OUTCOME)
        path = latest_checkpoint(folder / run_directory.CHECKPOINTS, fall_back)
        if path is not None:
            found += version_differences(path)
        if found and not allow_differences:
            raise ImelError(
                f"{folder} was made otherwise ({'; '.join(found)}); --allow-differences goes on"
            )
        run_directory.write_json(folder / run_directory.CONFIG, plan.as_json())
        finished = _finished_model(folder, plan)
        if finished is not None:
            finish(finished, plan, folder, Console())
            return 0
        return carry_out(_model_at(path, plan), plan, folder)


def _model_at(path: Path | None, plan: Plan) -> IMeL:
    """The model as a checkpoint has it, or a new one where none was taken yet."""
    if path is None:
        return make_model(plan)
    return IMeL.resume(path, plan.env, plan.run.device, **plan.settings.as_json())


def _finished_model(folder: Path, plan: Plan) -> IMeL | None:
    """The model of a run that has no steps left to take."""
    try:
        model = IMeL.load(folder / run_directory.MODEL, device=plan.run.device)
    except CheckpointError:
        return None  # none yet, or damaged: the checkpoints decide
    return model if model.learned_timesteps >= plan.run.total_timesteps else None
