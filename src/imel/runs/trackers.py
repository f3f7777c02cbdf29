"""Experiment trackers as outputs of Stable-Baselines3's logger: Weights & Biases, and trackio.

What an algorithm records goes to the tracker at the environment step it was recorded at, beside
the logger's other outputs.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import KVWriter

from imel.errors import ImelError, SettingsError, nearest_name
from imel.extras import require
from imel.runs import layout

TRACKERS = {"wandb": "step", "trackio": "_next_step"}
"""Packages, and the attribute of their runs that is the next step."""


class TrackerOutput(KVWriter):
    """Sends each row of numbers to a tracked run. A tracker that breaks does not end the training.

    :param run: of `wandb.init` or `trackio.init`
    :param next_step: rows of earlier steps are there already, in a run that is continued
    """

    def __init__(self, run: Any, next_step: int = 0) -> None:
        self._run, self._next_step, self._broken = run, next_step, False

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        """Send the numbers of one row; pictures and texts stay behind."""
        if step >= self._next_step:
            numbers = {
                key: int(value) if isinstance(value, Integral) else float(value)
                for key, value in key_values.items()
                if isinstance(value, Real)
            }
            self._attempt(lambda: self._run.log(numbers, step=step))

    def close(self) -> None:
        """Send what is left, and mark the run as finished."""
        self._attempt(self._run.finish)

    def _attempt(self, send: Callable[[], Any]) -> None:
        try:
            if not self._broken:
                send()
        except Exception as error:
            self._broken = True
            reason = f"{type(error).__name__}: {error}"
            warnings.warn(f"no longer tracked: {reason}", RuntimeWarning, stacklevel=3)


def check_tracker(tracker: str) -> Any:
    """Return the package of a tracker; refuse one that is absent or would not take a run."""
    if tracker not in TRACKERS:
        raise SettingsError(f"unknown tracker '{tracker}'; {nearest_name(tracker, TRACKERS)}")
    module = require(tracker, tracker)
    if tracker == "wandb" and module.setup().settings.mode in ("online", "shared"):
        try:
            module.login()
        except module.Error as error:
            raise ImelError(f"wandb: {error} (WANDB_MODE=offline needs no account)") from None
    return module


def track(
    tracker: str, project: str, name: str, config: Mapping[str, Any], identity: str | None = None
) -> TrackerOutput:
    """Return a logger output that tracks a run; with an `identity`, continue that run.

    Everything else is left to the tracker's own environment variables (`WANDB_ENTITY`,
    `WANDB_MODE`, `TRACKIO_DIR`, `TRACKIO_SPACE_ID`, ...).
    """
    module, identity = check_tracker(tracker), identity or uuid.uuid4().hex[:8]
    label = f"{name}-{identity}"  # trackio finds a run by its name
    about = {"project": project, "name": label, "config": dict(config), "resume": "allow"}
    try:
        if tracker == "wandb":  # the live table redraws itself
            about |= {"id": identity, "settings": module.Settings(console="off")}
        run = module.init(**about)
        return TrackerOutput(run, getattr(run, TRACKERS[tracker]))
    except Exception as error:  # neither package says which ones it raises
        raise ImelError(f"{tracker} cannot track this run: {error}") from error


def track_folder(
    tracker: str, project: str, folder: Path, config: Mapping[str, Any]
) -> TrackerOutput:
    """Track the run of a folder: a new tracked run, or the one of before a resume."""
    wanted = {"track": tracker, "track_project": project}
    stored = layout.read_table(folder / layout.TRACKING)
    if not wanted.items() <= stored.items():
        stored = {**wanted, "identity": uuid.uuid4().hex[:8]}
        layout.write_json(folder / layout.TRACKING, stored)
    return track(tracker, project, folder.name, config, stored["identity"])
