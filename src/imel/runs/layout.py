"""A run's folder: how it is named, claimed by one process at a time, and cleared."""

from __future__ import annotations

import contextlib
import json
import math
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

_LEFT_BY_A_KILLED_WRITER = (
    *(
        f".{name}.*"
        for name in (CONFIG, PROVENANCE, MODEL, BEST, EVALUATION, EVALUATIONS, TRACKING)
    ),
    *(f".part-{name}" for name in (PROGRESS, PROGRESS_JSON, MONITOR)),
    f"{CHECKPOINTS}/.iteration-*.safetensors.*",
)

_MADE_BY_A_RUN = (
    *(CONFIG, PROVENANCE, PROGRESS, PROGRESS_JSON, MONITOR, MODEL, BEST, EVALUATION),
    *(EVALUATIONS, TRACKING, TRACEBACK, CURVE, POLICY, UPDATE, ANIMATION, LESSONS, DELETION),
    "events.out.tfevents.*",
    f"{CHECKPOINTS}/iteration-*.safetensors",
    f"{VIDEO}-episode-*.mp4",
)


@contextlib.contextmanager
def claimed(path: Path | None, default_name: str, overwrite: bool) -> Iterator[Path]:
    """Lock a folder without a run in it for this process until the block ends.

    A folder named by the user is refused if it holds a run already, unless that may be
    overwritten; the default one is always new.
    """
    folder = _new_folder(default_name) if path is None else _named_folder(path)
    with _locked(folder):
        present = files_of_a_run(folder)
        if present and not overwrite:
            raise ImelError(
                f"{folder} already holds a run ({present[0].name}); "
                "give another --run-dir, or --overwrite to replace it"
            )
        for file in present:
            file.unlink()
        yield folder


@contextlib.contextmanager
def reopened(folder: Path) -> Iterator[None]:
    """Lock a folder with a run in it for this process until the block ends."""
    if not (folder / CONFIG).is_file():
        raise ImelError(f"{folder} holds no run to resume (no {CONFIG})")
    with _locked(folder):
        yield


def files_of_a_run(folder: Path) -> list[Path]:
    """List the files in a folder that a run makes; nothing else is ever removed."""
    return [file for pattern in _MADE_BY_A_RUN for file in sorted(folder.glob(pattern))]


def write_json(path: Path, document: Any) -> None:
    """Write a document so that the name never holds half of it."""
    write_atomically(path, (json.dumps(document, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read what `write_json` wrote, or refuse by name what a user broke since."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ImelError(f"{path} is not valid JSON: {error}") from None


def read_table(path: Path) -> dict[str, Any]:
    """Read a JSON table; empty where there is no such file."""
    document = read_json(path) if path.is_file() else {}
    if not isinstance(document, dict):
        raise ImelError(f"{path} holds no table of settings")
    return document


def read_evaluation(path: Path) -> dict[str, Any]:
    """Read what an evaluation came to; empty where there is none, refused where it is none."""
    return _checked_evaluation(read_table(path), path) if path.is_file() else {}


def read_evaluations(path: Path) -> list[dict[str, Any]]:
    """Read the evaluations during training; none where there is no file, refused as above."""
    rows = read_json(path) if path.is_file() else []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ImelError(f"{path} holds no list of evaluations")
    return [_checked_evaluation(row, path) for row in rows]


def _checked_evaluation(document: dict[str, Any], path: Path) -> dict[str, Any]:
    played = document.get("deterministic")
    numbers: list[Any] = [document.get(name) for name in ("timesteps", "episodes", "seed")]
    if not isinstance(played, dict):
        numbers.append(None)
    else:
        numbers += [played.get(name) for name in ("mean", "std", "min", "max")]
        returns = played.get("returns")
        numbers += returns if isinstance(returns, list) and returns else [None]
    # Of a NaN no comparison is true
    if not all(type(number) in (int, float) and abs(number) <= 1e300 for number in numbers):
        raise ImelError(f"{path} is not an evaluation: its numbers are missing or no numbers")
    assert isinstance(played, dict)
    returns = played["returns"]
    summary = {"mean": sum(returns) / len(returns), "min": min(returns), "max": max(returns)}
    if document["episodes"] != len(returns) or not all(
        math.isclose(played[name], value, rel_tol=1e-6, abs_tol=1e-6)
        for name, value in summary.items()
    ):
        raise ImelError(f"{path} is not an evaluation: its summary is not that of its returns")
    return document


def _new_folder(name: str) -> Path:
    """runs/NAME, or runs/NAME-2, -3, ... if there are such runs already."""
    name = name.replace("/", "-").replace(":", "-")
    number = 1
    while True:
        folder = Path("runs", name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return folder


def _named_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ImelError(f"{folder} is not a folder: a run cannot be kept there") from None
    return folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with locked(folder, f"another process is writing a run to {folder}"):
        for pattern in _LEFT_BY_A_KILLED_WRITER:  # and nobody is writing now
            for file in folder.glob(pattern):
                file.unlink()
        yield
