"""Carrying out a plan: make the model, train it, log rows to files, the screen and a tracker."""

from __future__ import annotations

import contextlib
import csv
import errno
import functools
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from numbers import Real
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from stable_baselines3.common import logger
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import ResultsWriter

from imel.algorithm import IMeL
from imel.checkpoints.run_checkpoints import RunCheckpoints
from imel.errors import ImelError, SettingsError, one_line
from imel.registry import find_policy
from imel.runs import layout
from imel.runs.evaluation import Evaluations
from imel.runs.stored import TRACKERS, Plan, check_tracker, outcome_of

W = TypeVar("W")
Row = dict[str, float]
_SHOWN = ("rollout/ep_rew_mean", "rollout/ep_len_mean", "rollout/std", "improve/policy_kl")
"""Metrics of a plain line. One is due after this time, or after this share of the run:"""
_LINE_SECONDS, _LINE_SHARE = 5.0, 0.1


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


def learn(model: IMeL, plan: Plan, folder: Path, console: Console) -> int | None:
    """Train the model; return the signal that ended training, or None."""
    run, document = plan.run, plan.as_json()
    model.plan = outcome_of(document)
    resumed_at = model.num_timesteps if model.iteration else None
    outputs = list[logger.KVWriter]()
    if run.track is not None:  # before anything is changed, should it be refused
        label = f"{folder.name}-{model.run_id[:8]}"
        outputs.append(TrackerOutput(run.track, run.track_project, label, document))
    names = [layout.PROGRESS, *([layout.PROGRESS_JSON] if run.progress_json else [])]
    outputs += [progress_file(folder / name, resumed_at) for name in names]
    policy, n_envs = type(model.policy).__name__, plan.settings.n_envs
    title = f"{plan.env}, {policy}, seed {run.seed}, {n_envs} environments"
    outputs.append(RunDisplay(title, run.total_timesteps, console, resumed_at or 0))
    outputs.append(logger.TensorBoardOutputFormat(str(folder)))
    model.set_logger(logger.Logger(str(folder), outputs))
    schedule = run.checkpoint_every, run.checkpoints_kept, run.go_on_if_full
    checkpoints = RunCheckpoints(folder / layout.CHECKPOINTS, *schedule)
    episodes = EpisodeLog(folder / layout.MONITOR, plan.env, resumed_at)
    stop = StopOnSignal()
    callbacks = [checkpoints, episodes, Evaluations(folder, plan, resumed_at), stop]
    assert model.env is not None
    try:
        with stop.listening():
            left = run.total_timesteps - model.num_timesteps
            model.learn(left, callbacks, reset_num_timesteps=resumed_at is None)
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
    known = isinstance(error, ImelError)
    said = str(error) if known else f"training failed with {one_line(error)}"
    if not known or error.__cause__:
        with contextlib.suppress(OSError):
            report.write_text(traceback.format_exc(), encoding="utf-8")
            said += f" ({report})"
    try:
        if not folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the run's folder is gone")
        model.save(path)
    except (OSError, ImelError) as reason:
        why = getattr(reason, "strerror", None) or reason
        return f"{said}; the model could not be saved: {why}"
    return f"{said}; the model as of step {model.num_timesteps} is in {path}"


class StopOnSignal(BaseCallback):
    """Ends training between two iterations on SIGINT or SIGTERM; a second one acts as usual.

    The rollout under way is dropped, so that the model is whole.
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


# --- rows in files, begun anew or continued ---


def progress_file(path: Path, resumed_at: int | None) -> logger.KVWriter:
    """Return the output for progress.csv or progress.json, with its rows up to a resumed step."""
    kind = logger.JSONOutputFormat if path.suffix == ".json" else logger.CSVOutputFormat
    # What a JSON file held stands in the CSV beside it as well
    rows = _rows_until(path.with_suffix(".csv"), "time/total_timesteps", resumed_at)
    return _continued(path, kind, lambda output, row: output.write(row, {}), rows)


class EpisodeLog(BaseCallback):
    """Writes each finished episode to a file as Stable-Baselines3's monitors do, and the `steps`.

    Of environments side by side that is not the sum of the lengths.
    """

    def __init__(self, path: Path, env_id: str, resumed_at: int | None) -> None:
        super().__init__()
        self._start = time.time()
        header: dict[str, float | str] = {"t_start": self._start, "env_id": env_id}
        make = functools.partial(ResultsWriter, header=header, extra_keys=("steps",))
        rows = _rows_until(path, "steps", resumed_at)
        self._writer = _continued(path, make, ResultsWriter.write_row, rows)
        self.close = self._writer.close

    def _on_step(self) -> bool:
        seconds = round(time.time() - self._start, 6)
        for episode in (info["episode"] for info in self.locals["infos"] if "episode" in info):
            row = {"r": episode["r"], "l": episode["l"], "t": seconds, "steps": self.num_timesteps}
            self._writer.write_row(row)
        return True


def _continued(
    path: Path, make: Callable[[str], W], write: Callable[[W, Row], None], rows: Iterable[Row]
) -> W:
    """Return a writer with rows of before; its file is named when it has them: none is lost."""
    unfinished = str(path.with_name(f".{path.name}.{path.name}"))
    writer = make(unfinished)
    for row in rows:
        write(writer, row)
    os.replace(unfinished, path)
    return writer


def _rows_until(path: Path, column: str, steps: int | None) -> Iterator[Row]:
    """Read the rows up to a step; a line cut short by a kill is not a row."""
    whole = ""
    if steps is not None and path.is_file():
        whole = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")[0]
    for row in csv.DictReader(line for line in whole.splitlines() if line[:1] != "#"):
        cells = {} if None in row else {name: cell for name, cell in row.items() if cell}
        if cells.get(column, "").isdigit() and int(cells[column]) <= (steps or 0):
            yield {
                name: int(cell) if cell.lstrip("-").isdigit() else float(cell)
                for name, cell in cells.items()
            }


# --- the screen, and a tracker ---


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if isinstance(value, Real)}


class RunDisplay(logger.KVWriter):
    """Shows a run: on a terminal a table of the latest values that redraws itself, else lines."""

    def __init__(self, title: str, total: int, console: Console, begun: int = 0) -> None:
        self._title, self._total, self._console, self._begun = title, total, console, begun
        self._start, self._last = time.monotonic(), (float("-inf"), 0.0)
        # No thread of its own: it is redrawn when there is something new
        self._live = Live(Text(title), console=console, auto_refresh=False)
        if console.is_terminal:
            self._live.start(refresh=True)
        else:
            console.out(title, highlight=False)

    def write(self, key_values: dict[str, Any], key_excluded: Any, step: int = 0) -> None:
        """Show the values of an iteration; a plain line only if one is due."""
        now, share, numbers = time.monotonic(), min(step / self._total, 1.0), _numbers(key_values)
        rate = max(step - self._begun, 0) / max(now - self._start, 1e-9)
        left = str(timedelta(seconds=round(max(self._total - step, 0) / rate))) if rate else "-"
        line = f"{share:4.0%}  {step:,} steps  {rate:,.0f}/s  left {left}"
        if self._console.is_terminal:
            table = Table("metric", "value", title=Text(self._title), caption=line)
            for name, value in numbers.items():
                table.add_row(name, f"{value:,.5g}")
            self._live.update(table, refresh=True)
            return
        seconds, part = now - self._last[0], share - self._last[1]
        if seconds >= _LINE_SECONDS or part >= _LINE_SHARE or share == 1.0:
            self._last = now, share
            shown = [f"{Path(key).name} {numbers[key]:.4g}" for key in _SHOWN if key in numbers]
            self._console.out("  ".join([line, *shown]), highlight=False)

    def close(self) -> None:
        """Leave the last table standing."""
        self._live.stop()


class TrackerOutput(logger.KVWriter):
    """Sends each row of numbers to a tracked run; the one of this name is continued.

    A tracker that breaks does not end the training.
    """

    def __init__(self, tracker: str, project: str, name: str, config: dict[str, Any]) -> None:
        module, self._broken = check_tracker(tracker), False
        about = {"project": project, "name": name, "config": config, "resume": "allow"}
        if tracker == "wandb":  # which goes by an id; the live table redraws itself
            about |= {"id": name[-8:], "settings": module.Settings(console="off")}
        try:
            self._run = module.init(**about)
            self._next_step = getattr(self._run, TRACKERS[tracker])  # earlier rows are there
        except Exception as error:  # neither package says which ones it raises
            raise ImelError(f"{tracker} cannot track this run: {error}") from error

    def write(self, key_values: dict[str, Any], key_excluded: Any, step: int = 0) -> None:
        """Send the numbers of one row; pictures and texts stay behind."""
        if step >= self._next_step:
            self._attempt(lambda: self._run.log(_numbers(key_values), step=step))

    def close(self) -> None:
        """Send what is left, and mark the run as finished."""
        self._attempt(self._run.finish)

    def _attempt(self, send: Callable[[], Any]) -> None:
        try:
            if not self._broken:
                send()
        except Exception as error:
            self._broken = True
            warnings.warn(f"no longer tracked: {one_line(error)}", RuntimeWarning, stacklevel=3)
