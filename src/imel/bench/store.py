"""Results on disk: a folder with one file of JSON lines for each algorithm; runs are appended.

A row that names its task begins a run; what a row lacks is as in the first row of its run. A run
is finished when its last row is there, and a failed one is a single row with its error.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imel.errors import ImelError

Row = dict[str, Any]

IDENTITY = ("task", "algorithm", "settings_hash", "seed", "steps")
"""The columns that say which run a row belongs to."""
LATEST = Path("runs", ".latest-store")
"""Where `imel bench` notes which store it has filled last."""

_NUMBER = int | float
_COLUMNS: Mapping[Any, tuple[str, ...]] = {  # what rows hold, by its type
    str: ("task", "algorithm", "settings_hash", "commit", "error"),
    int: ("seed", "steps", "step", "train_episodes"),
    _NUMBER: ("seconds",),
    _NUMBER | None: ("train_return", "eval_return", "cpu_seconds"),
    str | None: ("processor",),
    bool: ("final",),
    bool | None: ("dirty",),
    dict: ("overrides",),
}
_MAY_LACK = {"cpu_seconds", "processor", "commit", "dirty", "error"}
_REQUIRED = {name for names in _COLUMNS.values() for name in names} - _MAY_LACK
# These become headings, and parts of file names
_NAMES = {"task": r"[\w.:/+-]+", "algorithm": r"[\w.:+-]+", "settings_hash": r"\w+"}
_LARGEST = 1e100


def identity(row: Row) -> tuple[object, ...]:
    """Which run a row belongs to."""
    return tuple(row[name] for name in IDENTITY)


class Store:
    """A folder of results."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()

    def add(self, rows: Sequence[Row]) -> Path:
        """Append the rows of one run, whoever else appends at the time; the file they are in."""
        first = rows[0]
        changing = [name for name in first if any(row[name] != first[name] for row in rows)]
        written = [first, *({name: row[name] for name in changing} for row in rows[1:])]
        content = "".join(json.dumps(row) + "\n" for row in written).encode()
        path = self.folder / f"{first['algorithm'].replace(':', '.')}.jsonl"
        self.folder.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)  # without what a killed writer left
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return path

    def rows(self) -> list[Row]:
        """Every row of every run; those of one run stand together and in order."""
        return [row for path in sorted(self.folder.glob("*.jsonl")) for row in _read(path)]

    def finished(self) -> dict[tuple[object, ...], Row]:
        """The last row of each finished run; of a run done twice, that of the first."""
        found: dict[tuple[object, ...], Row] = {}
        for row in self.rows():
            if row["final"]:
                found.setdefault(identity(row), row)
        return found

    def final_row(self, run: Row) -> Row | None:
        """The last row of a run, if it has finished."""
        return self.finished().get(identity(run))


def _read(path: Path) -> list[Row]:
    rows: list[Row] = []
    first: Row = {}
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break  # its writer is about to end it, or was killed
        try:
            columns = dict(json.loads(line))
            if "task" in columns:
                first = columns
            rows.append(_checked(first | columns))
        except (ValueError, TypeError, RecursionError) as error:
            raise ImelError(f"{path}, line {number}: no row of a run ({error})") from None
    return rows


def _checked(row: Row) -> Row:
    """The row, if its columns are such as the bench writes."""
    required = {*IDENTITY, "overrides"} if "error" in row else _REQUIRED
    for kind, names in _COLUMNS.items():
        for name in names:
            value = row.get(name, ...)  # which no JSON is
            if value is ... and name not in required:
                continue
            if not isinstance(value, kind):
                raise TypeError(f"{name} is missing or of the wrong type")
            low = -_LARGEST if name.endswith("_return") else 0.0
            if isinstance(value, _NUMBER) and not low <= value < _LARGEST:
                raise ValueError(f"{name} is out of range")
            if name in _NAMES and not re.fullmatch(_NAMES[name], row[name]):
                raise ValueError(f"{name} has characters that no name has")
    if row.setdefault("final", False) and row.get("eval_return") is None:
        raise ValueError("a last row without eval_return")
    return row
