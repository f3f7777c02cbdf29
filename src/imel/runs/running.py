"""Carrying out a plan: make the model and train it, a new run and a resumed one alike."""

from __future__ import annotations

import contextlib
import errno
import signal
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch
from rich.console import Console
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger, TensorBoardOutputFormat

from imel.algorithm import IMeL
from imel.checkpoints.run_checkpoints import RunCheckpoints
from imel.errors import ImelError, SettingsError
from imel.registry import find_policy
from imel.runs import layout
from imel.runs.evaluation import Evaluations
from imel.runs.logs import EpisodeLog, RunDisplay, progress_file
from imel.runs.plan import Plan, outcome_of
from imel.runs.trackers import track_folder


def make_model(plan: Plan) -> IMeL:
    """Make the algorithm a plan describes, on its environments."""
    run = plan.run
    try:
        torch.empty(0, device=run.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(f"device '{run.device}' cannot be used: {reason}") from None
    policy_class, settings = find_policy(run.policy), plan.settings.as_json()
    model = IMeL(policy_class, plan.env, seed=run.seed, device=run.device, **settings)
    return model if run.warm_start is None else model.warm_start(run.warm_start)


def _logger(plan: Plan, folder: Path, resumed_at: int | None, console: Console) -> Logger:
    """Make the logger of a run: files, a tracker, TensorBoard, and the terminal."""
    run, outputs = plan.run, list[KVWriter]()
    if run.track is not None:  # before anything is changed, should it be refused
        outputs.append(track_folder(run.track, run.track_project, folder, plan.as_json()))
    names = [layout.PROGRESS, *([layout.PROGRESS_JSON] if run.progress_json else [])]
    outputs += [progress_file(folder / name, resumed_at) for name in names]
    outputs.append(TensorBoardOutputFormat(str(folder)))
    policy = find_policy(run.policy).__name__
    title = f"{plan.env}, {policy}, seed {run.seed}, {plan.settings.n_envs} environments"
    outputs.append(RunDisplay(title, run.total_timesteps, console, resumed_at or 0))
    return Logger(str(folder), outputs)


def learn(model: IMeL, plan: Plan, folder: Path, console: Console) -> int | None:
    """Train the model; return the signal that ended training, or None."""
    run = plan.run
    model.plan = outcome_of(plan.as_json())
    resumed_at = model.num_timesteps if model.iteration else None
    model.set_logger(_logger(plan, folder, resumed_at, console))
    checkpoints = RunCheckpoints(
        folder / layout.CHECKPOINTS, run.checkpoint_every, run.checkpoints_kept, run.go_on_if_full
    )
    episodes = EpisodeLog(folder / layout.MONITOR, plan.env, resumed_at)
    stop = StopOnSignal()
    assert model.env is not None
    try:
        with stop.listening():
            model.learn(
                run.total_timesteps - model.num_timesteps,
                [checkpoints, episodes, Evaluations(folder, plan, resumed_at), stop],
                reset_num_timesteps=resumed_at is None,
            )
    except Exception as error:  # an environment, a callback, a full disk, a defect of ours
        raise ImelError(_rescued(model, folder, error)) from None
    finally:
        for close in (checkpoints.wait, model.logger.close, episodes.close, model.env.close):
            with contextlib.suppress(OSError):  # a full disk, a folder that is gone: said already
                close()
    return stop.received


def _rescued(model: IMeL, folder: Path, error: Exception) -> str:
    """Save the model after a failure; say what has failed, where it is told, and what is saved."""
    report, path = folder / layout.TRACEBACK, folder / layout.MODEL
    said = str(error)
    if not isinstance(error, ImelError):
        said = f"training failed with {type(error).__name__}: {error}"
    if not isinstance(error, ImelError) or error.__cause__:
        try:
            report.write_text(traceback.format_exc(), encoding="utf-8")
            said += f" ({report})"
        except OSError as full:
            said += f" (no {layout.TRACEBACK}: {full.strerror})"
    try:
        if not folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the run's folder is gone")
        model.save(path)
    except (OSError, ImelError) as reason:
        why = getattr(reason, "strerror", None) or reason
        return f"{said}; the model could not be saved: {why}"
    return f"{said}; the model as of step {model.num_timesteps} is in {path}"


class StopOnSignal(BaseCallback):
    """Ends training between two iterations on SIGINT or SIGTERM.

    The rollout under way is dropped, so that the model is whole. A second signal has its usual
    effect, at once.
    """

    received: int | None = None

    def _on_step(self) -> bool:
        return self.received is None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle both signals inside this block."""
        usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def restore() -> None:
            for number, handler in usual.items():
                signal.signal(number, handler)

        def handle(number: int, _: FrameType | None) -> None:
            self.received = number
            restore()

        for number in usual:
            signal.signal(number, handle)
        try:
            yield
        finally:
            restore()
