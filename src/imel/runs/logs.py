"""What a run logs: rows in files, begun anew or continued, and how it goes on the screen.

Progress comes from Stable-Baselines3's logger, episodes from its monitors.
"""

from __future__ import annotations

import contextlib
import csv
import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import CSVOutputFormat, JSONOutputFormat, KVWriter
from stable_baselines3.common.monitor import ResultsWriter

Values = Mapping[str, Any]

LABELS: dict[str, tuple[str, Callable[[Any], str], str | None]] = {
    # recorded key: (what people call it, how it is written, what a plain line calls it)
    "rollout/ep_rew_mean": ("episode return, mean of the last 100", "{:.2f}".format, "return"),
    "rollout/ep_len_mean": ("episode length", "{:.0f}".format, "length"),
    "rollout/success_rate": ("success rate", "{:.0%}".format, None),
    "rollout/std": ("exploration, sigma", "{:.3f}".format, "sigma"),
    "rollout/clipped_actions": ("actions beyond the bounds", "{:.0%}".format, None),
    "improve/kl_budget": ("KL budget of the improved memories", "{:.2f}".format, None),
    "improve/policy_kl": ("KL of the policy's own step", "{:.3f}".format, "policy KL"),
    "train/loo_error": ("leave-one-out error of the fit", "{:.4f}".format, None),
    "train/old_mean_error": ("  error if the old mean were kept", "{:.4f}".format, None),
    "train/explained_variance": ("critic: explained variance", "{:.2f}".format, None),
    "memory/size": ("memories", "{:d}".format, "memories"),
    "memory/episodes": ("  from episodes", "{:d}".format, None),
    "memory/effective_neighbours": ("memories behind an action", "{:.1f}".format, None),
}
_STEPS = "time/total_timesteps"
_LINE_SECONDS, _LINE_SHARE = 5.0, 0.1
"""A plain line is due after this time, or after this share of the run."""


# --- files ---


def progress_file(path: Path, resumed_at: int | None) -> KVWriter:
    """Return the output for progress.csv or progress.json, with its rows up to a resumed step."""
    kind = JSONOutputFormat if path.suffix == ".json" else CSVOutputFormat
    # What a JSON file held stands in the CSV beside it as well
    with _continued(path, path.with_suffix(".csv"), _STEPS, resumed_at) as (unfinished, rows):
        output = kind(unfinished)
        for row in rows:
            output.write(row, {}, int(row[_STEPS]))
    return output


class EpisodeLog(BaseCallback):
    """Writes each finished episode to a monitor file, as Stable-Baselines3's monitors do.

    Beside return `r`, length `l` and time `t` stands the number of environment steps taken by
    then, `steps`: with environments side by side it is not the sum of the lengths.
    """

    def __init__(self, path: Path, env_id: str, resumed_at: int | None) -> None:
        super().__init__()
        self._start = time.time()
        header: dict[str, float | str] = {"t_start": self._start, "env_id": env_id}
        with _continued(path, path, "steps", resumed_at) as (unfinished, rows):
            self._writer = ResultsWriter(unfinished, header, extra_keys=("steps",))
            for row in rows:
                self._writer.write_row(row)
        self.close = self._writer.close

    def _on_step(self) -> bool:
        seconds = round(time.time() - self._start, 6)
        for episode in (info["episode"] for info in self.locals["infos"] if "episode" in info):
            row = {"r": episode["r"], "l": episode["l"], "t": seconds, "steps": self.num_timesteps}
            self._writer.write_row(row)
        return True


@contextlib.contextmanager
def _continued(
    path: Path, source: Path, column: str, resumed_at: int | None
) -> Iterator[tuple[str, list[dict[str, float]]]]:
    """Give a temporary name and the rows up to a step; rename when all of them are there."""
    rows = [] if resumed_at is None else list(_rows_until(source, column, resumed_at))
    unfinished = path.with_name(f".{path.name}.{path.name}")  # whoever is killed has lost no row
    yield str(unfinished), rows
    os.replace(unfinished, path)


def _rows_until(path: Path, column: str, steps: int) -> Iterator[dict[str, float]]:
    """Read the rows up to a step; a line cut short by a kill is not a row."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    for row in csv.DictReader(line for line in text.splitlines() if not line.startswith("#")):
        whole = None not in row and None not in row.values() and row.get(column, "").isdigit()
        if whole and int(row[column]) <= steps:
            yield {
                name: int(cell) if cell.lstrip("-").isdigit() else float(cell)
                for name, cell in row.items()
                if cell
            }


# --- the screen ---


class RunDisplay(KVWriter):
    """Shows a run: on a terminal the latest values in a table redrawn in place, else plain lines.

    :param begun: steps taken before this process
    """

    def __init__(self, title: str, total: int, console: Console, begun: int = 0) -> None:
        self._title, self._total, self._console, self._begun = title, total, console, begun
        self._start, self._line_time, self._line_share = time.monotonic(), float("-inf"), 0.0
        self._live: Live | None = None
        if console.is_terminal:
            # No thread of its own: it is redrawn when there is something new
            self._live = Live(self._table({}, begun), console=console, auto_refresh=False)
            self._live.start(refresh=True)
        else:
            console.out(title, highlight=False)

    def write(self, key_values: dict[str, Any], key_excluded: Values, step: int = 0) -> None:
        """Show the values of an iteration; a plain line only if one is due."""
        if self._live is not None:
            self._live.update(self._table(key_values, step), refresh=True)
            return
        share, now = min(step / self._total, 1.0), time.monotonic()
        due = now - self._line_time >= _LINE_SECONDS
        if due or share - self._line_share >= _LINE_SHARE or share == 1.0:
            self._line_time, self._line_share = now, share
            self._console.out(self._line(key_values, step), highlight=False)

    def close(self) -> None:
        """Leave the last table standing."""
        if self._live is not None:
            self._live.stop()

    def _pace(self, step: int) -> tuple[float, str]:
        """Return the steps per second, and the time left."""
        seconds = max(time.monotonic() - self._start, 1e-9)
        rate = max(step - self._begun, 0) / seconds
        if rate == 0.0:
            return rate, "-"
        return rate, str(timedelta(seconds=round(max(self._total - step, 0) / rate)))

    def _table(self, values: Values, step: int) -> Group:
        rate, left = self._pace(step)
        table = Table(
            title=Text(self._title), title_justify="left", show_header=False, min_width=60
        )
        table.add_column(ratio=1)
        table.add_column(justify="right", min_width=18)
        table.add_row("environment steps", f"{step:,} of {self._total:,}")
        table.add_row("steps per second", f"{rate:,.0f}")
        table.add_row("time left", left)
        table.add_section()
        for key, (label, written, _) in LABELS.items():
            if key in values:
                table.add_row(label, written(values[key]))
        return Group(table, ProgressBar(total=self._total, completed=step, width=60))

    def _line(self, values: Values, step: int) -> str:
        rate, left = self._pace(step)
        parts = [f"{min(step / self._total, 1.0):4.0%}", f"{step:,} steps", f"{rate:,.0f}/s"]
        parts += [f"left {left}"]
        parts += [
            f"{short} {written(values[key])}"
            for key, (_, written, short) in LABELS.items()
            if short is not None and key in values
        ]
        return "  ".join(parts)
