"""A run on disk, or a single model file: what commands are given, and the models in it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from imel.algorithm import IMeL
from imel.errors import ImelError
from imel.persistence.checkpoint import path_for
from imel.persistence.resume import checkpoints_in
from imel.runs import layout


@dataclass(frozen=True)
class StoredRun:
    """Where a model and what belongs to it are kept."""

    folder: Path
    model_path: Path
    config: dict[str, Any]
    """What is in config.json; empty for a model without one beside it."""

    @property
    def env(self) -> str | None:
        """The environment it was trained on, if that is known."""
        return self.config.get("env")

    def load(self) -> IMeL:
        """The model."""
        return IMeL.load(self.model_path)


def find_run(place: Path) -> StoredRun:
    """The run behind a run directory or a model file."""
    if place.is_dir():
        model_path = place / layout.MODEL
        if not model_path.is_file():
            raise ImelError(f"{place} holds no model ({layout.MODEL})")
    else:
        model_path = place if place.is_file() else path_for(place)
        if not model_path.is_file():
            raise ImelError(f"there is no run directory and no model file at {place}")
    folder = model_path.parent
    config = folder / layout.CONFIG
    document = layout.read_json(config) if config.is_file() else {}
    if not isinstance(document, dict):
        raise ImelError(f"{config} holds no table of settings")
    return StoredRun(folder, model_path, document)


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
        """How the page calls it."""
        return self.path.stem if self.iteration is None else f"iteration {self.iteration}"


@dataclass(frozen=True)
class RunFiles:
    """A run: its models from the oldest to the newest, and what is known about it."""

    title: str
    env: str | None
    models: tuple[StoredModel, ...]
    folder: Path | None
    """The run directory; None of a single model file."""


def describe(path: Path) -> StoredModel:
    """Read how far a model was trained; its tensors are read and checked when it is opened."""
    try:
        with safe_open(path, framework="numpy") as file:
            manifest = json.loads((file.metadata() or {})["manifest"])
        progress = manifest.get("progress", {})
        return StoredModel(path, progress.get("iteration"), progress.get("num_timesteps"))
    except (SafetensorError, OSError, KeyError, ValueError, AttributeError, RecursionError):
        return StoredModel(path, None, None, f"{path.name} is damaged or no imel checkpoint")


def find_files(place: Path, env: str | None) -> RunFiles:
    """Find the models of a run directory, or a single model file."""
    if place.is_dir():
        folder, final = place, place / layout.MODEL
        paths = checkpoints_in(folder / layout.CHECKPOINTS)
        paths += [final] if final.is_file() else []
        if not paths:
            raise ImelError(
                f"{place} holds no model ({layout.MODEL}) and no checkpoints; "
                "is it the folder of a run?"
            )
    else:
        file = place if place.is_file() else path_for(place)
        if not file.is_file():
            raise ImelError(f"there is no run directory and no model file at {place}")
        folder, paths = file.parent, [file]
    config = folder / layout.CONFIG
    document = layout.read_json(config) if config.is_file() else {}
    if not isinstance(document, dict):
        raise ImelError(f"{config} holds no table of settings")
    return RunFiles(
        title=folder.resolve().name if place.is_dir() else place.name,
        env=env or document.get("env"),
        models=tuple(describe(path) for path in paths),
        folder=folder if place.is_dir() else None,
    )
