"""A run's checkpoints: taken between iterations, kept, found again, and continued bit for bit.

At a checkpoint every environment is reset with a seed made from the run's seed and the iteration,
in the uninterrupted run as well. So nothing that happens after it depends on what an environment
holds inside, and a run that was killed ends as it would have ended.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from imel.algorithm import IMeL
from imel.errors import CheckpointError, ImelError
from imel.persistence import checkpoint

_NAME = re.compile(r"iteration-(\d+)" + re.escape(checkpoint.SUFFIX))


class RunCheckpoints(BaseCallback):
    """Saves the model to a folder every few iterations, and keeps the last few files.

    If one cannot be written, the run ends, or goes on without it if `go_on_if_full`; the files of
    before are whole either way.

    It belongs to the run: whoever continues from one of its files has to use it with the same
    `every`, since that is when environments are reset.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every: int = 20,
        keep: int = 2,
        go_on_if_full: bool = False,
    ) -> None:
        if every < 1 or keep < 1:
            raise ImelError("checkpoints are taken every 1 or more iterations, and 1 or more kept")
        super().__init__()
        self.folder, self.every, self.keep = Path(folder), every, keep
        self.go_on_if_full = go_on_if_full

    def _on_rollout_start(self) -> None:
        model = self.model
        assert isinstance(model, IMeL)
        if model.iteration == 0 or model.iteration % self.every:
            return
        try:
            model.save(self.folder / f"iteration-{model.iteration:08d}")
        except OSError as error:
            if not self.go_on_if_full:
                raise
            warnings.warn(f"no checkpoint: {error}", RuntimeWarning, stacklevel=2)
        for old in checkpoints_in(self.folder)[: -self.keep]:
            old.unlink()
        model.restart_environments()

    def _on_step(self) -> bool:
        return True


def checkpoints_in(folder: str | os.PathLike[str]) -> list[Path]:
    """The checkpoints in a folder, the oldest first; what a killed writer left is none of them."""
    found = [(int(match[1]), path) for path in Path(folder).glob("*") if (match := _name(path))]
    return [path for _, path in sorted(found)]


def latest_checkpoint(folder: str | os.PathLike[str], fall_back: bool = False) -> Path | None:
    """The newest checkpoint of a folder, or None where there is none.

    A damaged one is refused; with `fall_back` the newest that is whole is taken in its place.
    """
    error: CheckpointError | None = None
    for path in reversed(checkpoints_in(folder)):
        try:
            checkpoint.read(path)
        except CheckpointError as damage:
            error = error or damage
            if not fall_back:
                break
        else:
            return path
    if error is not None:
        raise error
    return None


def differences(
    then: Mapping[str, Any], now: Mapping[str, Any], ignored: tuple[str, ...] = ()
) -> list[str]:
    """What differs between two tables, a line each: settings, or library versions."""
    return [
        f"{name}: {then.get(name)!r} then, {now.get(name)!r} now"
        for name in sorted(then.keys() | now.keys())
        if name not in ignored and then.get(name) != now.get(name)
    ]


def version_differences(path: Path) -> list[str]:
    """The libraries that are not those a checkpoint was made with."""
    _, manifest = checkpoint.read(path)
    return differences(manifest["versions"], checkpoint.library_versions())


def _name(path: Path) -> re.Match[str] | None:
    return _NAME.fullmatch(path.name)
