"""A run on disk, or a single model file: what commands are given, and the models in it.

A run has an id from its birth. Its folder knows it by `provenance.json`, every checkpoint and model
by its manifest, beside policy, settings, versions, threads and device. A file of another run is
refused everywhere; a run that was made otherwise goes on only if that is asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from imel.algorithm import IMeL
from imel.checkpoints import Checkpoint, checkpoints_in, read_document
from imel.checkpoints.checkpoint import Source, circumstances, library_versions, path_for
from imel.checkpoints.model_file import require_model
from imel.checkpoints.run_checkpoints import NAME, differences
from imel.errors import CheckpointError, ImelError
from imel.runs import layout
from imel.runs.plan import Plan, outcome_of


@dataclass(frozen=True)
class StoredModel:
    """A model file of a run, without its tensors."""

    path: Path
    iteration: int | None
    timesteps: int | None
    problem: str | None = None
    """Why it cannot be opened, if so."""

    @property
    def label(self) -> str:
        """The name that is shown to users."""
        return self.path.stem if self.iteration is None else f"iteration {self.iteration}"


@dataclass(frozen=True)
class StoredRun:
    """A run directory, or a model file; `paths` are its models from the oldest to the newest."""

    place: Path
    paths: tuple[Path, ...]
    env: str | None
    """The environment it was trained on, or another one that was asked for, if any is known."""
    config: dict[str, Any]
    """What is in config.json; empty for a model without one beside it."""
    run_id: str | None
    """The run's id by its folder; None of a model file, and where nothing names it."""

    @classmethod
    def of(cls, place: Path, env: str | None = None) -> StoredRun:
        """Read what a place says of its run; there may be no model yet."""
        if not place.is_dir():
            file = place if place.is_file() else path_for(place)
            paths, folder, run_id = [file] * file.is_file(), file.parent, None
        else:
            final, folder = place / layout.MODEL, place
            paths = checkpoints_in(place / layout.CHECKPOINTS) + [final] * final.is_file()
            run_id = layout.read_table(place / layout.PROVENANCE).get("run")
        config = layout.read_table(folder / layout.CONFIG)
        if not isinstance(config.get("env"), str | None):
            raise ImelError(f"{place} names no environment in its {layout.CONFIG}")
        known = run_id if isinstance(run_id, str) else None
        return cls(place, tuple(paths), env or config.get("env"), config, known)

    @property
    def folder(self) -> Path:
        """Where the model is, with what belongs to it."""
        return self.place if self.place.is_dir() else self.paths[-1].parent

    @property
    def title(self) -> str:
        """A short name."""
        return self.place.resolve().name if self.place.is_dir() else self.place.name

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The file of the trained model, read once; one of another run is refused."""
        path = self.paths[-1]
        if not self.place.is_dir():
            return Checkpoint.read(path)
        if path.name != layout.MODEL:
            raise ImelError(f"{self.place} holds no model ({layout.MODEL})")
        read = self.own(path)
        found = differences_to_config(read.document, self.config)
        found += differences(read.document["versions"], library_versions())
        if found:
            warnings.warn(f"{path} was made otherwise: {'; '.join(found)}", stacklevel=2)
        return read

    @property
    def model_path(self) -> Path:
        """The file of the trained model, verified."""
        return self.checkpoint.path

    @cached_property
    def models(self) -> tuple[StoredModel, ...]:
        """What the manifests of all models say."""
        return tuple(describe(path, self.run_id) for path in self.paths)

    def own(self, file: Source) -> Checkpoint:
        """Read a model or checkpoint of this run; refuse that of another one."""
        read = Checkpoint.read(file)
        require_model(read)
        path, document, place = read.path, read.document, self.place
        run, iteration = document["run"]["id"], document["progress"]["iteration"]
        if self.run_id not in (None, run):
            raise CheckpointError(f"{path} belongs to another run ({run[:12]}), not to {place}")
        held, policy = document["policy"], self.config.get("policy")
        if policy not in (None, held):
            raise CheckpointError(f"{path} holds {held}, not the {policy} that {place} is about")
        name = NAME.fullmatch(path.name)
        if name is not None and int(name[1]) != iteration:
            wrong = f"is that of iteration {iteration}, not what its name says"
            raise CheckpointError(f"{path} {wrong}")
        return read

    def load(self) -> IMeL:
        """Return the trained model."""
        return IMeL.load(self.checkpoint)

    def environment(self, otherwise: str = "") -> str:
        """Return the environment, or refuse to go on without one."""
        if self.env is None:
            raise ImelError(
                f"no config.json beside {self.paths[-1]}: name the environment by --env{otherwise}"
            )
        return self.env


def find_run(place: Path, env: str | None = None) -> StoredRun:
    """Find the models of a run directory, or a single model file."""
    run = StoredRun.of(place, env)
    if run.paths:
        return run
    if place.is_dir():
        none = f"no model ({layout.MODEL}) and no checkpoints"
        raise ImelError(f"{place} holds {none}; is it the folder of a run?")
    raise ImelError(f"there is no run directory and no model file at {place}")


def describe(path: Path, own: str | None = None) -> StoredModel:
    """Read how far a model was trained; its tensors are read and checked when it is opened."""
    try:
        document = read_document(path)
        if own is not None and document["run"]["id"] != own:
            return StoredModel(path, None, None, f"{path.name} belongs to another run")
        done = [document.get("progress", {}).get(name) for name in ("iteration", "num_timesteps")]
        if not all(number is None or type(number) is int for number in done):
            raise ValueError("what was counted are no numbers")
        return StoredModel(path, *done)
    except (AttributeError, LookupError, TypeError, ValueError):
        return StoredModel(path, None, None, f"{path.name} is damaged or no imel checkpoint")


# --- all that decided a file's bits ---


def _choices(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was chosen for a model: its plan where a command made it, and its settings."""
    own = {"policy": document["policy"], "seed": document["seed"], **document["settings"]}
    return outcome_of(document["run"]["plan"]) | own


def differences_to_resume(document: Mapping[str, Any], plan: Plan) -> list[str]:
    """List all that would let a run end otherwise: choices, versions, threads, device."""
    then = {**_choices(document), **document["versions"], **document["circumstances"]}
    now = {**outcome_of(plan.as_json()), **library_versions(), **circumstances()}
    return differences(then, now | {"device": plan.run.device})


def differences_to_config(document: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """List where a model is not what the `config.json` beside it says."""
    then, now = _choices(document), outcome_of(config)
    known = then.keys() & now.keys()
    return differences(*({name: table[name] for name in known} for table in (then, now)))
