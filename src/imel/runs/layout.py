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

from imel.errors import ImelError
from imel.files import locked, write_atomically

CONFIG = "config.json"
PROVENANCE = "provenance.json"
PROGRESS = "progress.csv"
PROGRESS_JSON = "progress.json"
TRACKING = "tracking.json"
MONITOR = "monitor.csv"
MODEL = "model.safetensors"
BEST = "best.safetensors"
EVALUATION = "evaluation.json"
EVALUATIONS = "evaluations.json"
CURVE = "curve.png"
LESSONS = "lessons.png"
DELETION = "deletion.png"
POLICY = "policy.png"
UPDATE = "update.png"
ANIMATION = "policy.gif"
TRACEBACK = "traceback.txt"
CHECKPOINTS = "checkpoints"
VIDEO = "evaluation"  # RecordVideo appends -episode-0.mp4

_MADE_BY_A_RUN = (
    *(CONFIG, PROVENANCE, PROGRESS, PROGRESS_JSON, MONITOR, MODEL, BEST, EVALUATION),
    *(EVALUATIONS, TRACKING, TRACEBACK, CURVE, POLICY, UPDATE, ANIMATION, LESSONS, DELETION),
    "events.out.tfevents.*",
    *(f"{CHECKPOINTS}/iteration-*.safetensors", f"{VIDEO}-episode-*.mp4"),
)
_LEFT_BY_A_KILLED_WRITER = [path.with_name(f".{path.name}.*") for path in map(Path, _MADE_BY_A_RUN)]


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep a folder for this process until the block ends; remove what a killed writer left."""
    with locked(folder, f"another process is writing a run to {folder}"):
        for pattern in _LEFT_BY_A_KILLED_WRITER:
            for file in folder.glob(str(pattern)):
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
        except FileExistsError:
            number += 1
        else:
            return folder


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


def read_evaluation(path: Path) -> dict[str, Any]:
    """Read an evaluation; empty where there is none, refused if its numbers cannot be true."""
    document = read_json(path)
    return {} if document is None else _checked(document, path)


def read_evaluations(path: Path) -> list[dict[str, Any]]:
    """Read the evaluations during training; none where there is no file, refused as above."""
    rows = read_json(path, absent=[])
    return [_checked(row, path) for row in (rows if isinstance(rows, list) else [rows])]


def _checked(document: Any, path: Path) -> dict[str, Any]:
    try:
        played, returns = document["deterministic"], document["deterministic"]["returns"]
        stated = [played["mean"], played["min"], played["max"], document["episodes"]]
        counted = [sum(returns) / len(returns), min(returns), max(returns), len(returns)]
        numbers = [*returns, *stated, played["std"], document["timesteps"], document["seed"]]
        # Of a NaN no comparison is true
        true = all(type(number) in (int, float) and abs(number) <= 1e300 for number in numbers)
        pairs = zip(stated, counted, strict=True)
        true = true and all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6) for a, b in pairs)
    except (TypeError, LookupError, ArithmeticError):
        true = False
    if not true:
        raise ImelError(f"{path} is not an evaluation: numbers are missing or contradict others")
    return dict(document)
