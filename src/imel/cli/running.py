"""Carrying out a plan: learn, save, evaluate, draw; a new run and a resumed one alike."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from stable_baselines3.common.logger import KVWriter, Logger, TensorBoardOutputFormat

from imel.algorithm import IMeL
from imel.cli import run_directory
from imel.cli.evaluation import EVALUATION_SEED, evaluate
from imel.cli.logs import EpisodeLog, progress_file
from imel.cli.pictures import draw_run
from imel.cli.plan import Plan
from imel.cli.progress import progress_writer
from imel.cli.signals import StopOnSignal
from imel.cli.tracking import tracker_output
from imel.errors import ImelError, SettingsError
from imel.resume import RunCheckpoints


def make_model(plan: Plan) -> IMeL:
    """The algorithm a plan describes, on its environments."""
    try:
        torch.empty(0, device=plan.run.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(f"device '{plan.run.device}' cannot be used: {reason}") from None
    settings: dict[str, Any] = plan.settings.as_json()
    model = IMeL(
        plan.policy_class,
        plan.env,
        policy_kwargs=dict(plan.policy_kwargs),
        seed=plan.run.seed,
        device=plan.run.device,
        **settings,
    )
    return model if plan.run.warm_start is None else model.warm_start(plan.run.warm_start)


def carry_out(model: IMeL, plan: Plan, folder: Path) -> int:
    """Train what is left to train, save, evaluate and draw; the exit code."""
    console = Console()
    signal_received = _learn(model, plan, folder, console)
    if signal_received is not None:
        print(
            f"imel: interrupted; the model as of step {model.num_timesteps} is in "
            f"{folder / run_directory.MODEL}; go on with: imel resume {folder}",
            file=sys.stderr,
        )
        return 128 + signal_received
    finish(model, plan, folder, console)
    return 0


def finish(model: IMeL, plan: Plan, folder: Path, console: Console) -> None:
    """Evaluate and draw a trained model."""
    _evaluate(model, plan, folder, console)
    draw_run(folder, model, plan.as_json())
    _say_where(folder, console)


def _log_files(plan: Plan, folder: Path, resumed_at: int | None) -> list[KVWriter]:
    names = [run_directory.PROGRESS]
    if plan.run.progress_json:
        names.append(run_directory.PROGRESS_JSON)
    return [progress_file(folder / name, resumed_at) for name in names]


def _learn(model: IMeL, plan: Plan, folder: Path, console: Console) -> int | None:
    """Train and save the model, come what may; the number of the signal that ended it, if any."""
    resumed_at = model.num_timesteps if model.iteration else None
    tracked = tracker_output(plan, folder)  # before anything is changed, should it be refused
    title = (
        f"{plan.env}, {plan.policy_class.__name__}, seed {plan.run.seed}, "
        f"{plan.settings.n_envs} environments"
    )
    episodes = EpisodeLog(folder / run_directory.MONITOR, plan.env, resumed_at)
    outputs = [
        *_log_files(plan, folder, resumed_at),
        *([] if tracked is None else [tracked]),
        TensorBoardOutputFormat(str(folder)),
        progress_writer(title, plan.run.total_timesteps, console),
    ]
    checkpoints = RunCheckpoints(
        folder / run_directory.CHECKPOINTS,
        plan.run.checkpoint_every,
        plan.run.checkpoints_kept,
        plan.run.go_on_if_full,
    )
    model.set_logger(Logger(str(folder), outputs))
    stop = StopOnSignal()
    try:
        with stop.listening():
            model.learn(
                plan.run.total_timesteps - model.num_timesteps,
                [checkpoints, episodes, stop],
                reset_num_timesteps=resumed_at is None,
            )
    except ImelError as error:
        where = f" ({_traceback(folder)})" if error.__cause__ else ""
        raise ImelError(f"{error}{where}; {_saved(model, folder)}") from None
    except Exception as error:  # a callback, a full disk, a defect of ours
        reason = f"{type(error).__name__}: {error}"
        raise ImelError(
            f"training failed with {reason} ({_traceback(folder)}); {_saved(model, folder)}"
        ) from None
    finally:
        model.logger.close()
        episodes.close()
        assert model.env is not None
        model.env.close()
    _saved(model, folder)
    return stop.received


def _traceback(folder: Path) -> Path:
    """The file in which the exception under way is written down."""
    report = folder / run_directory.TRACEBACK
    report.write_text(traceback.format_exc(), encoding="utf-8")
    return report


def _saved(model: IMeL, folder: Path) -> str:
    """Save the model and say so."""
    path = folder / run_directory.MODEL
    model.save(path)
    return f"the model as of step {model.num_timesteps} is in {path}"


def _evaluate(model: IMeL, plan: Plan, folder: Path, console: Console) -> None:
    episodes = plan.run.eval_episodes
    if episodes == 0:
        return
    played = evaluate(model, plan.env, episodes, EVALUATION_SEED, deterministic=True)
    document = {
        "env": plan.env,
        "timesteps": model.num_timesteps,
        "seed": EVALUATION_SEED,
        "episodes": episodes,
        "deterministic": played.as_json(),
    }
    run_directory.write_json(folder / run_directory.EVALUATION, document)
    console.out(f"deterministic return over {episodes} episodes: {played}", highlight=False)


def _say_where(folder: Path, console: Console) -> None:
    console.out("written:", highlight=False)
    for file in run_directory.files_of_a_run(folder):
        console.out(f"  {file}", highlight=False)
