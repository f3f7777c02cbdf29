"""How a grid gets on, for people: a live bar in a terminal, a line a run anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from imel.bench.pool import Failure
from imel.bench.run import Run


def run_name(run: Run) -> str:
    """What a run of a grid is called."""
    return f"{run.task} {run.algorithm} seed {run.seed}"


class GridProgress:
    """Counts steps over all runs of a grid, as the launcher's listener."""

    def __init__(
        self, runs: Sequence[Run], console: Console, name: Callable[[Run], str] = run_name
    ) -> None:
        self._console, self._name = console, name
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._total = sum(run.steps for run in runs)
        self._runs, self._ended = len(runs), 0
        self._steps: dict[str, int] = {}
        self._start = time.monotonic()
        self._task = self._bar.add_task(self._description, total=self._total, left="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    @property
    def _description(self) -> str:
        return f"{self._ended} of {self._runs} runs"

    def advanced(self, run: Run, step: int) -> None:
        """A run has come this far."""
        self._steps[self._name(run)] = min(step, run.steps)
        self._bar.update(
            self._task,
            completed=sum(self._steps.values()),
            description=self._description,
            left=self._time_left(),
        )

    def ended(self, run: Run, outcome: Mapping[str, Any] | Failure) -> None:
        """A run has finished or failed: one line."""
        self._ended += 1
        self.advanced(run, run.steps)
        if isinstance(outcome, Failure):
            text = f"failed: {outcome.error}"
        else:
            text = f"return {outcome['eval_return']:.1f} after {outcome['seconds']:.0f} s"
        left = self._time_left()
        line = f"[{self._ended}/{self._runs}] {self._name(run)}: {text}"
        self._console.print(escape(line + (f"; {left}" if left else "")), soft_wrap=True)

    def _time_left(self) -> str:
        """From the pace of all steps so far."""
        done = sum(self._steps.values())
        if not 0 < done < self._total:
            return ""
        seconds = (time.monotonic() - self._start) * (self._total - done) / done
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"about {hours} h {minutes} min left" if hours else f"about {minutes} min left"
