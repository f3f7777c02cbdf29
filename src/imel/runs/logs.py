"""The logs of a run as files, started anew or continued where a checkpoint was taken."""

from __future__ import annotations

import csv
import os
import time
from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import CSVOutputFormat, JSONOutputFormat, KVWriter
from stable_baselines3.common.monitor import ResultsWriter

PART = ".part-"
"""Before the name of a log that is being taken up again."""
_STEPS = "time/total_timesteps"


def progress_file(path: Path, resumed_at: int | None) -> KVWriter:
    """progress.csv or progress.json; of a run that is continued, with its rows up to there."""
    # What a JSON file held stands in the CSV beside it as well
    table = path.with_suffix(".csv")
    rows = [] if resumed_at is None else _rows_until(table, _STEPS, resumed_at)
    # Under another name until all rows are there: whoever is killed here has lost none
    unfinished = path.with_name(PART + path.name)
    kind = JSONOutputFormat if path.suffix == ".json" else CSVOutputFormat
    output = kind(str(unfinished))
    for row in rows:
        values = {name: _number(text) for name, text in row.items() if text}
        output.write(values, {}, int(row[_STEPS]))
    os.replace(unfinished, path)
    return output


class EpisodeLog(BaseCallback):
    """Writes each finished episode to a monitor file, as Stable-Baselines3's monitors do.

    Beside return `r`, length `l` and time `t` stands the number of environment steps taken by
    then, `steps`: with environments side by side it is not the sum of the lengths.
    """

    def __init__(self, path: Path, env_id: str, resumed_at: int | None) -> None:
        super().__init__()
        self._start = time.time()
        rows = [] if resumed_at is None else _rows_until(path, "steps", resumed_at)
        header: dict[str, float | str] = {"t_start": self._start, "env_id": env_id}
        unfinished = path.with_name(PART + path.name)
        self._writer = ResultsWriter(str(unfinished), header, extra_keys=("steps",))
        for row in rows:
            self._writer.write_row({name: _number(text) for name, text in row.items()})
        os.replace(unfinished, path)

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self._writer.write_row(
                    {
                        "r": info["episode"]["r"],
                        "l": info["episode"]["l"],
                        "t": round(time.time() - self._start, 6),
                        "steps": self.num_timesteps,
                    }
                )
        return True

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def _rows_until(path: Path, column: str, steps: int) -> list[dict[str, str]]:
    """Read the rows up to a step; a line cut short by a kill is not a row."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    lines = [line for line in lines if not line.startswith("#")]
    rows = []
    for row in csv.DictReader(lines):
        whole = None not in row and None not in row.values() and row.get(column, "").isdigit()
        if whole and int(row[column]) <= steps:
            rows.append(row)
    return rows


def _number(text: str) -> float:
    """Parse a number; whole numbers stay whole."""
    return int(text) if text.lstrip("-").isdigit() else float(text)
