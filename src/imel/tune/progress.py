"""How a search gets on, for people: a live bar in a terminal, a line a trial anywhere."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from imel.bench.pool import Failure


class SearchProgress:
    """Counts trials that have ended, as the search's listener."""

    def __init__(self, console: Console, trials: int, ended: int, best: float | None) -> None:
        self._console = console
        self._trials, self._ended, self._best = trials, ended, best
        self._shares: dict[int, float] = {}
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:.0f} %"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=trials)

    def __enter__(self) -> Self:
        self._show()
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def advanced(self, number: int, share: float) -> None:
        """A trial has come this far."""
        self._shares[number] = share
        self._show()

    def ended(self, number: int, outcome: float | Failure | None) -> None:
        """A trial has its value, has failed, or was pruned: one line."""
        self._ended += 1
        self._shares.pop(number, None)
        if isinstance(outcome, Failure):
            text = f"failed: {outcome.error}"
        elif outcome is None:
            text = "pruned"
        else:
            text = f"return {outcome:.1f}"
            if self._best is None or outcome > self._best:
                self._best, text = outcome, f"{text}, the best so far"
        line = f"[{self._ended}/{self._trials}] trial {number}: {text}"
        self._console.print(escape(line), soft_wrap=True)
        self._show()

    def _show(self) -> None:
        best = "" if self._best is None else f", best {self._best:.1f}"
        self._bar.update(
            self._task,
            completed=self._ended + sum(self._shares.values()),
            description=f"{self._ended} of {self._trials} trials{best}",
        )
