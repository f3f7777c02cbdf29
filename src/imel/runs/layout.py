"""A run's folder: its files by name, one process at a time in it, and what its JSON files hold."""

from __future__ import annotations

import contextlib
import json
import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from imel.errors import ImelError
from imel.files import locked, write_atomically

CONFIG, PROVENANCE, TRACEBACK = "config.json", "provenance.json", "traceback.txt"
PROGRESS, PROGRESS_JSON, MONITOR = "progress.csv", "progress.json", "monitor.csv"
MODEL, BEST, CHECKPOINTS = "model.safetensors", "best.safetensors", "checkpoints"
EVALUATION, EVALUATIONS = "evaluation.json", "evaluations.json"
VIDEO = "evaluation"  # RecordVideo appends -episode-0.mp4
CURVE, POLICY, UPDATE, ANIMATION = "curve.png", "policy.png", "update.png", "policy.gif"
LESSONS, DELETION = "lessons.png", "deletion.png"

_MADE_BY_A_RUN = (
    *(CONFIG, PROVENANCE, PROGRESS, PROGRESS_JSON, MONITOR, MODEL, BEST, EVALUATION, EVALUATIONS),
    *(TRACEBACK, CURVE, POLICY, UPDATE, ANIMATION, LESSONS, DELETION, "events.out.tfevents.*"),
    *(f"{CHECKPOINTS}/iteration-*.safetensors", f"{VIDEO}-episode-*.mp4"),
)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep a folder for this process until the block ends; remove what a killed writer left."""
    with locked(folder, f"another process is writing a run to {folder}"):
        for made in map(Path, _MADE_BY_A_RUN):
            for file in folder.glob(str(made.with_name(f".{made.name}.*"))):
                file.unlink()
        yield


@contextlib.contextmanager
def claimed(path: Path | None, default_name: str, overwrite: bool) -> Iterator[Path]:
    """Hold a folder for a new run until the block ends.

    A folder named by the user is refused if it holds a run already, unless that may be
    overwritten; the default one is always new.
    """
    folder = _new_folder(default_name) if path is None else path
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ImelError(f"{folder} is not a folder: a run cannot be kept there") from None
    with held(folder):
        present = files_of_a_run(folder)
        if present and not overwrite:
            raise ImelError(
                f"{folder} already holds a run ({present[0].name}); "
                "give another --run-dir, or --overwrite to replace it"
            )
        for file in present:
            file.unlink()
        yield folder


def _new_folder(name: str) -> Path:
    """Make runs/NAME, or runs/NAME-2, -3, ... if there are such runs already."""
    name, number = re.sub("[/:]", "-", name), 1
    while True:
        folder = Path("runs", name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1


def files_of_a_run(folder: Path) -> list[Path]:
    """List the files in a folder that a run makes; nothing else is ever removed."""
    return [file for pattern in _MADE_BY_A_RUN for file in sorted(folder.glob(pattern))]


# --- JSON ---


def write_json(path: Path, document: Any) -> None:
    """Write a document so that the name never holds half of it."""
    write_atomically(path, (json.dumps(document, indent=2) + "\n").encode())


def read_json(path: Path, absent: Any = None) -> Any:
    """Read a file of JSON, or of TOML by its name; return `absent` where there is none."""
    if not path.is_file():
        return absent
    kind, parse = ("TOML", tomllib.loads) if path.suffix == ".toml" else ("JSON", json.loads)
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also numbers of many digits
        raise ImelError(f"{path} is not valid {kind}: {error}") from None


def read_table(path: Path) -> dict[str, Any]:
    """Read a table; empty where there is no such file."""
    document = read_json(path, absent={})
    if not isinstance(document, dict):
        raise ImelError(f"{path} holds no table of settings")
    return document


def read_evaluations(path: Path) -> list[dict[str, Any]]:
    """Read one or several evaluations, none where there is no file; refuse what cannot be true."""
    read = read_json(path, absent=[])
    return [_checked(row, path) for row in (read if isinstance(read, list) else [read])]


def read_evaluation(path: Path) -> dict[str, Any]:
    """Read the evaluation at the end of a run; empty where there is none."""
    return next(iter(read_evaluations(path)), {})


def summary_of(returns: list[float]) -> dict[str, float]:
    """Return what an evaluation says of its returns."""
    low, high = min(returns), max(returns)
    return {"mean": float(np.mean(returns)), "std": float(np.std(returns)), "min": low, "max": high}


def _checked(document: Any, path: Path) -> dict[str, Any]:
    try:
        stated = document | document["deterministic"]
        counted = {**summary_of(stated["returns"]), "episodes": len(stated["returns"])}
        numbers = [*stated["returns"], *(stated[name] for name in (*counted, "timesteps", "seed"))]
        # Of a NaN no comparison is true
        true = all(type(number) in (int, float) and abs(number) <= 1e300 for number in numbers)
        for name, value in counted.items():
            true = true and math.isclose(stated[name], value, rel_tol=1e-6, abs_tol=1e-6)
    except (TypeError, LookupError, ArithmeticError, ValueError):
        true = False
    if not true:
        raise ImelError(f"{path} is not an evaluation: numbers are missing or contradict others")
    return dict(document)
