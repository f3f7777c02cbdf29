"""A run as it goes, for people: a table that updates in place, or plain lines in a log.

Both are output formats of Stable-Baselines3's logger, fed by what the algorithm records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from stable_baselines3.common.logger import KVWriter

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

_PLAIN_SECONDS, _PLAIN_SHARE = 5.0, 0.1
"""A plain line is due after this time, or after this share of the run."""


class _Pace(KVWriter):
    """How far a run is, how fast, and how long it has to go."""

    def __init__(self, total: int) -> None:
        self._total, self._start = total, time.monotonic()

    def _rate(self, steps: int) -> float:
        return steps / max(time.monotonic() - self._start, 1e-9)

    def _left(self, steps: int) -> str:
        seconds = max(self._total - steps, 0) / max(self._rate(steps), 1e-9)
        return str(timedelta(seconds=round(seconds)))

    def _share(self, steps: int) -> float:
        return min(steps / self._total, 1.0)


class LiveTable(_Pace):
    """The latest values with their names, redrawn in place above a progress bar."""

    def __init__(self, title: str, total: int, console: Console) -> None:
        super().__init__(total)
        self._title = title
        # No thread of its own: it is redrawn when there is something new
        self._live = Live(self._render({}, 0), console=console, auto_refresh=False)
        self._live.start(refresh=True)

    def write(self, key_values: dict[str, Any], key_excluded: Values, step: int = 0) -> None:
        """Show the values of an iteration."""
        self._live.update(self._render(key_values, step), refresh=True)

    def close(self) -> None:
        """Leave the last table standing."""
        self._live.stop()

    def _render(self, values: Values, steps: int) -> Group:
        table = Table(
            title=Text(self._title), title_justify="left", show_header=False, min_width=60
        )
        table.add_column(ratio=1)
        table.add_column(justify="right", min_width=18)
        table.add_row("environment steps", f"{steps:,} of {self._total:,}")
        table.add_row("steps per second", f"{self._rate(steps):,.0f}")
        table.add_row("time left", self._left(steps) if steps else "-")
        table.add_section()
        for key, (label, write, _) in LABELS.items():
            if key in values:
                table.add_row(label, write(values[key]))
        return Group(table, ProgressBar(total=1.0, completed=self._share(steps), width=60))


class PlainLines(_Pace):
    """One line every few seconds, for logs and pipes."""

    def __init__(self, total: int, console: Console) -> None:
        super().__init__(total)
        self._console = console
        self._last_time, self._last_share = float("-inf"), 0.0

    def write(self, key_values: dict[str, Any], key_excluded: Values, step: int = 0) -> None:
        """Print the values of an iteration, if a line is due."""
        share, now = self._share(step), time.monotonic()
        due = now - self._last_time >= _PLAIN_SECONDS
        if due or share - self._last_share >= _PLAIN_SHARE or share == 1.0:
            self._last_time, self._last_share = now, share
            self._console.out(self._line(key_values, step), highlight=False)

    def close(self) -> None:
        """Nothing is held."""

    def _line(self, values: Values, steps: int) -> str:
        done = f"{self._share(steps):4.0%}  {steps:,} steps  {self._rate(steps):,.0f}/s"
        recorded = [
            f"{short} {write(values[key])}"
            for key, (_, write, short) in LABELS.items()
            if short is not None and key in values
        ]
        return "  ".join([done, f"left {self._left(steps)}", *recorded])


def progress_writer(title: str, total: int, console: Console) -> KVWriter:
    """Return a live table on a terminal, plain lines elsewhere."""
    if console.is_terminal:
        return LiveTable(title, total, console)
    console.out(title, highlight=False)
    return PlainLines(total, console)
