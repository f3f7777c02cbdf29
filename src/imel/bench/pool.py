"""Where runs are carried out: what a launcher starts them on and hears of them.

`imel.bench.processes` is the pool of this machine; `imel.bench.ray_pool` and
`imel.bench.slurm_pool` are those of clusters.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

from imel.bench.run import Run, train
from imel.bench.store import Row
from imel.errors import ImelError

RETRIES = 3
"""How often a run of a cluster starts over: its machine or process dies, or its system fails it."""
ITS_SYSTEM = (OSError, MemoryError)
"""Exceptions that need not happen elsewhere. Others are the run's own, and would come again."""


@dataclass(frozen=True)
class Failure:
    """Why a run has no result."""

    error: str
    """One line."""
    traceback: str | None = None
    """Where it was raised, if it was raised at all."""


@dataclass(frozen=True)
class Finished:
    """All rows of a run that has come to its end."""

    rows: list[Row]


Message = Row | Finished | Failure
"""A row just recorded, without the columns that are the same in all, or how the run ended."""


class Pool(Protocol):
    """Carries out runs, several at a time. What the caller calls a run is its key."""

    def has_room(self) -> bool:
        """Whether another run would start at once."""

    def start(self, key: Hashable, run: Run) -> None:
        """Begin a run."""

    def stop(self, key: Hashable) -> None:
        """Give up a run: nothing more is heard of it."""

    def messages(self, seconds: float) -> list[tuple[Hashable, Message]]:
        """What has happened, after waiting so long at most; a run that has ended is forgotten."""

    def close(self) -> None:
        """Give up what is still under way."""


def carry_out(
    run: Run, tell: Callable[[Row], None], raised: tuple[type[Exception], ...] = ()
) -> Finished | Failure:
    """One run in this process; `tell` sees its rows as they are made.

    Whatever goes wrong is its outcome, but for exceptions that are to be `raised`.
    """
    warnings.simplefilter("ignore")  # what libraries say of the published settings helps nobody
    try:
        return Finished(train(run, on_row=tell))
    except raised:
        raise
    except Exception as error:
        line = " ".join(str(error).split())
        kind = type(error).__name__
        text = line if isinstance(error, ImelError) else f"{kind}: {line}" if line else kind
        return Failure(text, traceback.format_exc())
