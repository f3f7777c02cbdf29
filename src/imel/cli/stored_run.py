"""A run on disk, or a single model file: what `imel eval` and `imel plot` are given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imel.algorithm import IMeL
from imel.checkpoint import path_for
from imel.cli import run_directory
from imel.errors import ImelError


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
        model_path = place / run_directory.MODEL
        if not model_path.is_file():
            raise ImelError(f"{place} holds no model ({run_directory.MODEL})")
    else:
        model_path = place if place.is_file() else path_for(place)
        if not model_path.is_file():
            raise ImelError(f"there is no run directory and no model file at {place}")
    folder = model_path.parent
    config = folder / run_directory.CONFIG
    document = run_directory.read_json(config) if config.is_file() else {}
    if not isinstance(document, dict):
        raise ImelError(f"{config} holds no table of settings")
    return StoredRun(folder, model_path, document)
