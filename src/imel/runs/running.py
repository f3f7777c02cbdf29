"""Carrying out a plan: train, save, evaluate; a new run and a resumed one alike."""

from __future__ import annotations

import contextlib
import errno
import signal
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger, TensorBoardOutputFormat

from imel.algorithm import IMeL
from imel.checkpoints.run_checkpoints import RunCheckpoints
from imel.environments.envpool import threads_for
from imel.errors import ImelError, SettingsError
from imel.runs import layout
from imel.runs.best import Evaluations
from imel.runs.evaluation import EVALUATION_SEED, evaluate
from imel.runs.logs import EpisodeLog, progress_file
from imel.runs.plan import Plan
from imel.runs.progress import progress_writer
from imel.runs.stored import outcome_of
from imel.runs.trackers import track_folder


def make_model(plan: Plan) -> IMeL:
    """Make the algorithm a plan describes, on its environments."""
    try:
        torch.empty(0, device=plan.run.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(f"device '{plan.run.device}' cannot be used: {reason}") from None
    settings: dict[str, Any] = plan.settings.as_json()
    model = IMeL(
        plan.policy_class,
        plan.env,
        seed=plan.run.seed,
        device=plan.run.device,
        **settings,
    )
    return model if plan.run.warm_start is None else model.warm_start(plan.run.warm_start)


def _logger(plan: Plan, folder: Path, resumed_at: int | None, console: Console) -> Logger:
    """Make the logger of a run: files, a tracker, TensorBoard, and the terminal."""
    run, outputs = plan.run, list[KVWriter]()
    if run.track is not None:  # before anything is changed, should it be refused
        outputs.append(track_folder(run.track, run.track_project, folder, plan.as_json()))
    names = [layout.PROGRESS, *([layout.PROGRESS_JSON] if run.progress_json else [])]
    outputs += [progress_file(folder / name, resumed_at) for name in names]
    policy = plan.policy_class.__name__
    title = f"{plan.env}, {policy}, seed {run.seed}, {plan.settings.n_envs} environments"
    if plan.settings.backend == "envpool":
        threads = threads_for(plan.settings.n_envs, plan.settings.env_threads)
        title += f" of EnvPool, threads: {threads}"
    outputs.append(TensorBoardOutputFormat(str(folder)))
    outputs.append(progress_writer(title, run.total_timesteps, console))
    return Logger(str(folder), outputs)


def learn(model: IMeL, plan: Plan, folder: Path, console: Console) -> int | None:
    """Train the model; return the signal that ended training, or None."""
    model.plan = outcome_of(plan.as_json())
    resumed_at = model.num_timesteps if model.iteration else None
    model.set_logger(_logger(plan, folder, resumed_at, console))
    episodes = EpisodeLog(folder / layout.MONITOR, plan.env, resumed_at)
    checkpoints = RunCheckpoints(
        folder / layout.CHECKPOINTS,
        plan.run.checkpoint_every,
        plan.run.checkpoints_kept,
        plan.run.go_on_if_full,
    )
    evaluations = Evaluations(folder, plan, resumed_at)
    stop = StopOnSignal()
    assert model.env is not None
    try:
        with stop.listening():
            model.learn(
                plan.run.total_timesteps - model.num_timesteps,
                [checkpoints, episodes, evaluations, stop],
                reset_num_timesteps=resumed_at is None,
            )
    except ImelError as error:
        where = f" ({_traceback(folder)})" if error.__cause__ else ""
        raise ImelError(f"{error}{where}; {_tried_to_save(model, folder)}") from None
    except Exception as error:  # a callback, a full disk, a defect of ours
        reason = f"{type(error).__name__}: {error}"
        raise ImelError(
            f"training failed with {reason} ({_traceback(folder)}); {_tried_to_save(model, folder)}"
        ) from None
    finally:
        for close in (checkpoints.wait, model.logger.close, episodes.close, model.env.close):
            with contextlib.suppress(OSError):  # a full disk, a folder that is gone: said already
                close()
    return stop.received


def _traceback(folder: Path) -> str:
    """Write the current exception to a file and return its path, or why there is none."""
    report = folder / layout.TRACEBACK
    try:
        report.write_text(traceback.format_exc(), encoding="utf-8")
    except OSError as error:
        return f"no {layout.TRACEBACK}: {error.strerror}"
    return str(report)


def _tried_to_save(model: IMeL, folder: Path) -> str:
    """Save the model after a failure; return a sentence that says where, or why not."""
    path = folder / layout.MODEL
    try:
        if not folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the run's folder is gone")
        model.save(path)
    except (OSError, ImelError) as error:
        return f"the model could not be saved: {getattr(error, 'strerror', None) or error}"
    return f"the model as of step {model.num_timesteps} is in {path}"


def evaluate_run(model: IMeL, plan: Plan, folder: Path, console: Console) -> None:
    """Play the deterministic evaluation of a trained model and write `evaluation.json`."""
    episodes = plan.run.eval_episodes
    if episodes == 0:
        return
    played = evaluate(model.policy, plan.env, episodes)
    document = {
        "env": plan.env,
        "timesteps": model.num_timesteps,
        "seed": EVALUATION_SEED,
        "episodes": episodes,
        "deterministic": played.as_json(),
    }
    console.out(f"deterministic return over {episodes} episodes: {played}", highlight=False)
    layout.write_json(folder / layout.EVALUATION, document)


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

        def handle(number: int, frame: FrameType | None) -> None:
            del frame
            self.received = number
            restore()

        def restore() -> None:
            for number, handler in usual.items():
                signal.signal(number, handler)

        for number in usual:
            signal.signal(number, handle)
        try:
            yield
        finally:
            restore()
