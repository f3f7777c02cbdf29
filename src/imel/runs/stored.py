"""A run on disk, or a single model file: what commands are given, and the models in it.

A run has an id from its birth. Its folder knows it by `provenance.json`, every checkpoint and model
by its manifest, beside policy, settings, versions, threads and device. A file of another run is
refused everywhere; a run that was made otherwise goes on only if that is asked for.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from imel.algorithm import IMeL
from imel.checkpoints import checkpoint
from imel.checkpoints.checkpoint import Checkpoint, library_versions, path_for
from imel.checkpoints.model_file import require_model
from imel.checkpoints.run_checkpoints import NAME, checkpoints_in, differences
from imel.errors import CheckpointError, ImelError
from imel.runs import layout
from imel.runs.plan import Plan

_NO_MANIFEST = (AttributeError, LookupError, TypeError, ValueError)


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

    @property
    def folder(self) -> Path:
        """Where the model is, with what belongs to it."""
        return self.place if self.place.is_dir() else self.paths[-1].parent

    @property
    def title(self) -> str:
        """A short name."""
        return self.place.resolve().name if self.place.is_dir() else self.place.name

    @cached_property
    def model_path(self) -> Path:
        """The file of the trained model; one of another run is refused."""
        path = self.paths[-1]
        if self.place.is_dir():
            if path.name != layout.MODEL:
                raise ImelError(f"{self.place} holds no model ({layout.MODEL})")
            manifest = read_own(path, self.place)
            found = differences_to_config(manifest, self.config)
            found += differences(manifest["versions"], library_versions())
            if found:
                warnings.warn(f"{path} was made otherwise: {'; '.join(found)}", stacklevel=2)
        return path

    @cached_property
    def models(self) -> tuple[StoredModel, ...]:
        """What the manifests of all models say."""
        own = run_id_of(self.place) if self.place.is_dir() else None
        return tuple(describe(path, own) for path in self.paths)

    def load(self) -> IMeL:
        """The trained model."""
        return IMeL.load(self.model_path)

    def environment(self, otherwise: str = "") -> str:
        """Return the environment, or refuse to go on without one."""
        if self.env is None:
            raise ImelError(
                f"no config.json beside {self.model_path}: name the environment by --env{otherwise}"
            )
        return self.env


def find_run(place: Path, env: str | None = None) -> StoredRun:
    """Find the models of a run directory, or a single model file."""
    if place.is_dir():
        final = place / layout.MODEL
        paths = checkpoints_in(place / layout.CHECKPOINTS) + [final] * final.is_file()
        if not paths:
            raise ImelError(
                f"{place} holds no model ({layout.MODEL}) and no checkpoints; "
                "is it the folder of a run?"
            )
    else:
        paths = [place if place.is_file() else path_for(place)]
        if not paths[0].is_file():
            raise ImelError(f"there is no run directory and no model file at {place}")
    config = layout.read_table((place if place.is_dir() else paths[0].parent) / layout.CONFIG)
    named = config.get("env")
    if named is not None and not isinstance(named, str):
        raise ImelError(f"{place} names no environment in its {layout.CONFIG}")
    return StoredRun(place, tuple(paths), env or named, config)


def describe(path: Path, own: str | None) -> StoredModel:
    """Read how far a model was trained; its tensors are read and checked when it is opened."""
    try:
        with safe_open(path, framework="numpy") as file:
            manifest = json.loads((file.metadata() or {})["manifest"])
        if own is not None and manifest["run"]["id"] != own:
            return StoredModel(path, None, None, f"{path.name} belongs to another run")
        progress = manifest.get("progress", {})
        done = [progress.get(name) for name in ("iteration", "num_timesteps")]
        if not all(number is None or type(number) is int for number in done):
            raise ValueError("what was counted are no numbers")
        return StoredModel(path, *done)
    except (SafetensorError, OSError, RecursionError, *_NO_MANIFEST):
        return StoredModel(path, None, None, f"{path.name} is damaged or no imel checkpoint")


# --- whose a file is, and all that decided its bits ---

_NOT_OF_THE_OUTCOME = (
    *("checkpoints_kept", "eval_episodes", "evaluations", "go_on_if_full"),
    *("progress_json", "track", "track_project"),
)


def outcome_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a plan's document decides the outcome of the run.

    Where on a machine a dataset lay does not, and is nobody's business.
    """
    chosen = {name: value for name, value in document.items() if name not in _NOT_OF_THE_OUTCOME}
    start = chosen.get("warm_start")
    if isinstance(start, str) and start.endswith(".parquet"):
        chosen["warm_start"] = Path(start).name
    return chosen


def run_id_of(folder: Path) -> str | None:
    """Return the id of the run in a folder; None where nothing names it."""
    found = layout.read_table(folder / layout.PROVENANCE).get("run")
    return found if isinstance(found, str) else None


def read_own(path: Path, folder: Path) -> dict[str, Any]:
    """Return the manifest of a run's model or checkpoint; refuse that of another run."""
    file = Checkpoint.read(path)
    require_model(file)
    manifest = dict(file.document)
    own, other = run_id_of(folder), manifest["run"]["id"]
    if own is not None and own != other:
        raise CheckpointError(f"{path} belongs to another run ({other[:12]}), not to {own[:12]}")
    policy = layout.read_table(folder / layout.CONFIG).get("policy")
    if policy is not None and policy != manifest["policy"]:
        raise CheckpointError(
            f"{path} holds a {manifest['policy']}, not the {policy} that {folder} is about"
        )
    name, iteration = NAME.fullmatch(path.name), manifest["progress"]["iteration"]
    if name is not None and int(name[1]) != iteration:
        raise CheckpointError(f"{path} is that of iteration {iteration}, not what its name says")
    return manifest


def _choices(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was chosen for a model: its plan where a command made it, and its settings."""
    return {
        **outcome_of(manifest["run"]["plan"]),
        "policy": manifest["policy"],
        "seed": manifest["seed"],
        **manifest["settings"],
    }


def differences_to_resume(manifest: Mapping[str, Any], plan: Plan) -> list[str]:
    """List all that would let a run end otherwise: choices, versions, threads, device."""
    then = {**_choices(manifest), **manifest["versions"], **manifest["circumstances"]}
    now = {
        **outcome_of(plan.as_json()),
        **checkpoint.library_versions(),
        **checkpoint.circumstances(),
        "device": plan.run.device,
    }
    return differences(then, now)


def differences_to_config(manifest: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """List where a model is not what the `config.json` beside it says."""
    then, now = _choices(manifest), outcome_of(config)
    known = then.keys() & now.keys()
    return differences(*({name: table[name] for name in known} for table in (then, now)))
