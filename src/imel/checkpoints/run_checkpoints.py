"""A run's checkpoints: taken between iterations, kept, found again, and continued bit for bit.

Environments made from an id go on in the midst of their episodes. Where they cannot be put back
(docs/reliability.md says where) each is reset at a checkpoint with a seed made from the run's seed
and the iteration, in the uninterrupted run as well. Either way a killed run ends the same.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import reprlib
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from stable_baselines3.common.callbacks import BaseCallback

from imel.checkpoints import checkpoint
from imel.checkpoints.checkpoint import Checkpoint
from imel.checkpoints.model_file import contents_of, restorable, snapshot_parts
from imel.environments.replay import LONGEST
from imel.errors import CheckpointError, ImelError

if TYPE_CHECKING:
    from imel.algorithm import IMeL

_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxdict = _BRIEF.maxlist = 200
NAME = re.compile(r"iteration-(\d+)" + re.escape(checkpoint.SUFFIX))


class RunCheckpoints(BaseCallback):
    """Saves the model to a folder every few iterations, and keeps the last few files.

    A thread writes what was copied, while the run goes on; the next checkpoint, and the end, wait
    for it. Training that ends before its last step leaves a checkpoint of where it stood. Where
    environments are reset at checkpoints, a run is continued with the same `every`.
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
        self._root = self.folder
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._writing: Future[None] | None = None

    @property
    def _algorithm(self) -> IMeL:
        return cast("IMeL", self.model)

    def _on_training_start(self) -> None:
        """Tell at the start where no episode could end between two checkpoints."""
        self._root = next(p for p in (self.folder, *self.folder.absolute().parents) if p.is_dir())
        model = self._algorithm
        model.checkpointed = True
        assert model.env is not None
        with contextlib.suppress(AttributeError, NotImplementedError):  # of somebody else's vector
            (spec,) = model.env.get_attr("spec", [0])
            between, limit = self.every * model.n_steps, getattr(spec, "max_episode_steps", 0) or 0
            if limit > max(between, LONGEST if restorable(model) else 0):
                warnings.warn(
                    f"no episode of {limit} steps can end: environments are reset at checkpoints, "
                    f"every {between} steps of each; take one every {-(-limit // model.n_steps)} "
                    "iterations or more",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _on_rollout_start(self) -> None:
        model = self._algorithm
        if model.iteration == 0 or model.iteration % self.every:
            return
        if model.iteration == model.resumed_iteration:  # its writer may not have come to tidy up
            self._tidy()
        elif not self._save(model):
            model.restart_environments()

    def _save(self, model: IMeL) -> bool:
        """Begin to write a checkpoint; return whether environments can go on as they are."""
        self.wait()
        tensors, document = contents_of(model)
        stood = snapshot_parts(model)
        if stood is not None:
            tensors, document = {**tensors, **stood[0]}, {**document, **stood[1]}
        path = self.folder / f"iteration-{model.iteration:08d}"
        write = checkpoint.prepare(path, tensors, document)
        self._writing = self._thread.submit(self._write, write)
        return stood is not None

    def _write(self, write: Callable[[], Path]) -> None:
        if not self._root.is_dir():  # it would be made again, without the run's other files
            raise FileNotFoundError(errno.ENOENT, "the folder is gone", str(self._root))
        if iteration_of(write()) % self.every == 0:
            self._tidy()

    def _tidy(self) -> None:
        """Remove all checkpoints but the last few scheduled ones."""
        found = checkpoints_in(self.folder)
        scheduled = [path for path in found if iteration_of(path) % self.every == 0]
        for path in set(found) - set(scheduled[-self.keep :]):
            path.unlink()

    def wait(self) -> None:
        """Wait until the checkpoint under way is written; raise what went wrong."""
        writing, self._writing = self._writing, None
        try:
            if writing is not None:
                writing.result()
        except OSError as error:
            if not self.go_on_if_full:
                raise
            warnings.warn(f"no checkpoint: {error}", RuntimeWarning, stacklevel=2)

    def _on_training_end(self) -> None:
        model = self._algorithm
        done = model.learned_timesteps >= model._total_timesteps
        unscheduled = model.iteration and model.iteration % self.every
        if not done and unscheduled and snapshot_parts(model) is not None:
            self._save(model)
        self.wait()
        if done:
            self._tidy()

    def _on_step(self) -> bool:
        return True


def checkpoints_in(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the checkpoints in a folder, the oldest first; not what a killed writer left."""
    found = [path for path in Path(folder).glob("*") if NAME.fullmatch(path.name)]
    return sorted(found, key=iteration_of)


def iteration_of(path: Path) -> int:
    """Return the iteration in the name of a checkpoint."""
    return int(path.stem.rpartition("-")[2])


def latest_checkpoint(folder: str | os.PathLike[str], fall_back: bool = False) -> Checkpoint | None:
    """Read the newest checkpoint of a folder; None where there is none.

    A damaged one is refused; with `fall_back` the newest that is whole is taken in its place.
    """
    error: CheckpointError | None = None
    for path in checkpoints_in(folder)[: None if fall_back else -2 : -1]:
        try:
            return Checkpoint.read(path)
        except CheckpointError as damage:
            error = error or damage
    if error is not None:
        raise error
    return None


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two tables, a line each: settings, or library versions."""
    return [
        f"{name}: {_BRIEF.repr(then.get(name))} then, {_BRIEF.repr(now.get(name))} now"
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name)
    ]
