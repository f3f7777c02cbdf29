"""How a grid or a search gets on, for people: a live bar in a terminal, a line a run anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from imel.bench.pool import Failure
from imel.bench.run import Run


class Bar:
    """A bar over all that is to be done, and a line for each part of it that has ended."""

    def __init__(self, console: Console, parts: int, noun: str, total: float) -> None:
        self._console, self._parts, self._noun, self._total = console, parts, noun, total
        self._ended, self._note = 0, ""
        self._done: dict[Hashable, float] = {}
        columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        hidden = not console.is_terminal
        words = TextColumn("{task.description}")
        self._bar = Progress(words, *columns, console=console, transient=True, disable=hidden)
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Self:
        self._show()
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def _show(self) -> None:
        words = f"{self._ended} of {self._parts} {self._noun}{self._note}"
        self._bar.update(self._task, completed=sum(self._done.values()), description=words)

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
        super().__init__(console, len(runs), "runs", sum(run.steps for run in runs))
        self._name, self._start = name, time.monotonic()

    def advanced(self, run: Run, step: int) -> None:
        """A run has come this far."""
        self._done[self._name(run)] = min(step, run.steps)
        self._note = self._time_left()
        self._show()

    def ended(self, run: Run, outcome: Mapping[str, Any] | Failure) -> None:
        """A run has finished or failed: one line."""
        self._ended += 1
        self.advanced(run, run.steps)
        if isinstance(outcome, Failure):
            text = f"failed: {outcome.error}"
        else:
            text = f"return {outcome['eval_return']:.1f} after {outcome['seconds']:.0f} s"
        self._say(f"{self._name(run)}: {text}{self._note}")

    def _time_left(self) -> str:
        """From the pace of all steps so far."""
        done = sum(self._done.values())
        if not 0 < done < self._total:
            return ""
        seconds = (time.monotonic() - self._start) * (self._total - done) / done
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"; about {f'{hours} h ' if hours else ''}{minutes} min left"


class SearchProgress(Bar):
    """Counts trials that have ended, as the search's listener."""

    def __init__(self, console: Console, trials: int, ended: int, best: float | None) -> None:
        super().__init__(console, trials, "trials", trials)
        self._best = best
        self._count(ended)

    def advanced(self, number: int, share: float) -> None:
        """A trial has come this far."""
        self._done[number] = share
        self._show()

    def ended(self, number: int, outcome: float | Failure | None, count: int) -> None:
        """A trial has its value, has failed, or was pruned: one line."""
        self._done.pop(number, None)
        if isinstance(outcome, Failure):
            text = f"failed: {outcome.error}"
        elif outcome is None:
            text = "pruned"
        else:
            text = f"return {outcome:.1f}"
            if self._best is None or outcome > self._best:
                self._best, text = outcome, f"{text}, the best so far"
        self._count(count)
        self._say(f"trial {number}: {text}")
        self._show()

    def _count(self, ended: int) -> None:
        self._ended, self._done["ended"] = ended, ended
        self._note = "" if self._best is None else f", best {self._best:.1f}"
