"""What the explorer is given of a run: which files there are, and what their manifests say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open


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
    curve: Mapping[str, Any] | None
    """The learning curve as plain lists, or None without a record of the training."""


def describe(path: Path) -> StoredModel:
    """Read how far a model was trained; its tensors are read and checked when it is opened."""
    try:
        with safe_open(path, framework="numpy") as file:
            manifest = json.loads((file.metadata() or {})["manifest"])
        progress = manifest.get("progress", {})
        return StoredModel(path, progress.get("iteration"), progress.get("num_timesteps"))
    except (SafetensorError, OSError, KeyError, ValueError, AttributeError, RecursionError):
        return StoredModel(path, None, None, f"{path.name} is damaged or no imel checkpoint")
