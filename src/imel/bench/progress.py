"""How a grid or a search gets on, for people: a live bar in a terminal, a line a run anywhere."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from imel.bench.pool import Failure
from imel.bench.run import Run


class Bar(Progress):
    """A bar over all that is to be done, and a line for each part of it that has ended."""

    def __init__(self, console: Console, parts: int, noun: str, total: float) -> None:
        columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        words, hidden = TextColumn("{task.description}"), not console.is_terminal
        super().__init__(words, *columns, console=console, transient=True, disable=hidden)
        self._parts = parts
        self._done: dict[Hashable, float] = {}
        self._bar = self.add_task(f"{parts} {noun}", total=total)

    def _count(self, part: Hashable, done: float) -> None:
        self._done[part] = done
        self.update(self._bar, completed=sum(self._done.values()))

    def _say(self, ended: int, text: str) -> None:
        self.console.print(escape(f"[{ended}/{self._parts}] {text}"), soft_wrap=True)


def run_name(run: Run) -> str:
    """What a run of a grid is called."""
    return f"{run.task} {run.algorithm} seed {run.seed}"


class GridProgress(Bar):
    """Counts steps over all runs of a grid, as the launcher's listener."""

    def __init__(
        self, runs: Sequence[Run], console: Console, name: Callable[[Run], str] = run_name
    ) -> None:
        super().__init__(console, len(runs), "runs", sum(run.steps for run in runs))
        self._name, self._ended = name, 0

    def advanced(self, run: Run, step: int) -> None:
        """A run has come this far."""
        self._count(self._name(run), min(step, run.steps))

    def ended(self, run: Run, outcome: Mapping[str, Any] | Failure) -> None:
        """A run has finished or failed: one line."""
        self._ended += 1
        self.advanced(run, run.steps)
        if isinstance(outcome, Failure):
            text = f"failed: {outcome.error}"
        else:
            text = f"return {outcome['eval_return']:.1f} after {outcome['seconds']:.0f} s"
        self._say(self._ended, f"{self._name(run)}: {text}")


class SearchProgress(Bar):
    """Counts trials that have ended, as the search's listener."""

    def __init__(self, console: Console, trials: int, ended: int, best: float | None) -> None:
        super().__init__(console, trials, "trials", trials)
        self._best = best
        self._count("ended", ended)

    def advanced(self, number: int, share: float) -> None:
        """A trial has come this far."""
        self._count(number, share)

    def ended(self, number: int, outcome: float | Failure | None, count: int) -> None:
        """A trial has its value, has failed, or was pruned: one line."""
        self._done.pop(number, None)
        self._count("ended", count)
        if isinstance(outcome, Failure):
            text = f"failed: {outcome.error}"
        elif outcome is None:
            text = "pruned"
        else:
            text = f"return {outcome:.1f}"
            if self._best is None or outcome > self._best:
                self._best, text = outcome, f"{text}, the best so far"
        self._say(count, f"trial {number}: {text}")
