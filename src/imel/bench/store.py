"""Results on disk: a folder with one JSON-lines file a run, written once and never changed.

A file appears whole, under a name of its own, when its run has ended; so writers need no lock,
stores of several machines merge by copying, and a run that was killed has left nothing behind. A
run is finished when its last row is there; a failed one is a single row with its error.

What is the same in all rows of a run, such as its settings and versions, is written in its first
row alone: it is most of a row.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from imel.errors import ImelError
from imel.files import write_atomically

Row = dict[str, Any]

IDENTITY = ("task", "algorithm", "settings_hash", "seed", "steps")
"""The columns that say which run a row belongs to."""
LATEST = Path("runs", ".latest-store")
"""Where `imel bench` notes which store it has filled last."""


def identity(row: Row) -> tuple[object, ...]:
    """Which run a row belongs to."""
    return tuple(row[name] for name in IDENTITY)


class Store:
    """A folder of results."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()

    def add(self, rows: Sequence[Row]) -> Path:
        """Write the rows of one run, all or nothing; the file they are in."""
        first = rows[0]
        changing = [name for name in first if any(row[name] != first[name] for row in rows)]
        written = [first, *({name: row[name] for name in changing} for row in rows[1:])]
        content = "".join(json.dumps(row) + "\n" for row in written)
        # The time orders repeated runs, the random part keeps simultaneous writers apart
        unique = f"{time.time_ns()}-{secrets.token_hex(4)}"
        target = self.folder / f"{_stem(identity(rows[0]))}-{unique}.jsonl"
        write_atomically(target, content.encode())
        return target

    def rows(self) -> list[Row]:
        """Every row of every run; those of one run stand together and in order."""
        return [row for path in sorted(self.folder.glob("*.jsonl")) for row in _read(path)]

    def final_row(self, run: Row) -> Row | None:
        """The last row of the run with these columns, or None where it has not finished."""
        wanted = identity(run)
        for path in sorted(self.folder.glob(f"{_stem(wanted)}-*.jsonl")):
            for row in _read(path):
                if row.get("final") and identity(row) == wanted:
                    return row
        return None


def _stem(run: tuple[object, ...]) -> str:
    """The beginning of a run's file names; environment ids may have characters no file name has."""
    return "-".join(re.sub(r"[^\w.]+", "_", str(part)) for part in run)


def _read(path: Path) -> list[Row]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    rows: list[Row] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = {**(rows[0] if rows else {}), **json.loads(line)}
            identity(row)
            rows.append(row)
        except (json.JSONDecodeError, TypeError, KeyError):
            if number < len(lines):
                raise ImelError(f"{path} is damaged: line {number} is no row of a run") from None
            # A last line cut short by whatever copied the file; the run then has no final row
    return rows
