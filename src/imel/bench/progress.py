"""How a grid or a search gets on, for people: a live bar in a terminal, a line a run anywhere."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from imel.bench.pool import Failure
from imel.bench.run import Run


class Bar(ABC):
    """A bar over all that is to be done, and a line for each part of it that has ended."""

    def __init__(self, console: Console, parts: int, ended: int, total: float) -> None:
        self._console, self._parts, self._ended = console, parts, ended
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
        self._task = self._bar.add_task("", total=total, left="")

    def __enter__(self) -> Self:
        self._show()
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    @abstractmethod
    def _show(self) -> None:
        """Bring the bar up to date."""

    def _say(self, text: str) -> None:
        line = f"[{self._ended}/{self._parts}] {text}"
        self._console.print(escape(line), soft_wrap=True)


def run_name(run: Run) -> str:
    """What a run of a grid is called."""
    return f"{run.task} {run.algorithm} seed {run.seed}"


class GridProgress(Bar):
    """Counts steps over all runs of a grid, as the launcher's listener."""

    def __init__(
        self, runs: Sequence[Run], console: Console, name: Callable[[Run], str] = run_name
    ) -> None:
        self._total = sum(run.steps for run in runs)
        super().__init__(console, len(runs), 0, self._total)
        self._name, self._start = name, time.monotonic()
        self._steps: dict[str, int] = {}

    def advanced(self, run: Run, step: int) -> None:
        """A run has come this far."""
        self._steps[self._name(run)] = min(step, run.steps)
        self._show()

    def ended(self, run: Run, outcome: Mapping[str, Any] | Failure) -> None:
        """A run has finished or failed: one line."""
        self._ended += 1
        self.advanced(run, run.steps)
        if isinstance(outcome, Failure):
            text = f"failed: {outcome.error}"
        else:
            text = f"return {outcome['eval_return']:.1f} after {outcome['seconds']:.0f} s"
        left = self._time_left()
        self._say(f"{self._name(run)}: {text}" + (f"; {left}" if left else ""))

    def _show(self) -> None:
        self._bar.update(
            self._task,
            completed=sum(self._steps.values()),
            description=f"{self._ended} of {self._parts} runs",
            left=self._time_left(),
        )

    def _time_left(self) -> str:
        """From the pace of all steps so far."""
        done = sum(self._steps.values())
        if not 0 < done < self._total:
            return ""
        seconds = (time.monotonic() - self._start) * (self._total - done) / done
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"about {hours} h {minutes} min left" if hours else f"about {minutes} min left"


class SearchProgress(Bar):
    """Counts trials that have ended, as the search's listener."""

    def __init__(self, console: Console, trials: int, ended: int, best: float | None) -> None:
        super().__init__(console, trials, ended, trials)
        self._best = best
        self._shares: dict[int, float] = {}

    def advanced(self, number: int, share: float) -> None:
        """A trial has come this far."""
        self._shares[number] = share
        self._show()

    def ended(self, number: int, outcome: float | Failure | None, count: int) -> None:
        """A trial has its value, has failed, or was pruned: one line."""
        self._ended = count
        self._shares.pop(number, None)
        if isinstance(outcome, Failure):
            text = f"failed: {outcome.error}"
        elif outcome is None:
            text = "pruned"
        else:
            text = f"return {outcome:.1f}"
            if self._best is None or outcome > self._best:
                self._best, text = outcome, f"{text}, the best so far"
        self._say(f"trial {number}: {text}")
        self._show()

    def _show(self) -> None:
        best = "" if self._best is None else f", best {self._best:.1f}"
        self._bar.update(
            self._task,
            completed=self._ended + sum(self._shares.values()),
            description=f"{self._ended} of {self._parts} trials{best}",
        )
