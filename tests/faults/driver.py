"""What runs in the processes that the fault tests start: the command line, with a fault planted.

The faults are planted from outside, by replacing functions of `os` in that process, so that the
package itself has no switch for them. Pictures are not drawn: they take longer than the training.
"""

from __future__ import annotations

import functools
import importlib
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from imel.cli import train
from imel.cli.main import main

Stage = Literal["opened", "flushed", "renamed", "full"]


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong at the n-th file written atomically: config.json is the first.

    The process is killed with the temporary file half written ("opened"), whole but not renamed
    ("flushed"), or just after the rename ("renamed"); or from there on no file can grow beyond
    `limit` bytes ("full").
    """

    write: int
    stage: Stage
    limit: int = 0

    def plant(self) -> None:
        """Let it happen in this process."""
        fdopen, replace = os.fdopen, os.replace
        opened = 0

        @functools.wraps(fdopen)
        def counted_fdopen(descriptor: int, *arguments: Any, **options: Any) -> Any:
            nonlocal opened
            opened += 1
            if opened == self.write and self.stage == "full":
                _fill_the_disk(self.limit)
            if opened == self.write and self.stage == "opened":
                os.write(descriptor, b"the beginning of a file")
                _die()
            return fdopen(descriptor, *arguments, **options)

        @functools.wraps(replace)
        def watched_replace(source: Any, target: Any) -> None:
            if opened == self.write and self.stage == "flushed":
                _die()
            replace(source, target)
            if opened == self.write and self.stage == "renamed":
                _die()

        setattr(os, "fdopen", counted_fdopen)  # noqa: B010
        setattr(os, "replace", watched_replace)  # noqa: B010


@dataclass(frozen=True)
class AtCall:
    """What happens just before the n-th call of a method.

    This process sends itself a signal; or, with a `limit`, no file can grow beyond it any more.
    """

    module: str
    owner: str
    method: str
    call: int
    number: signal.Signals = signal.SIGKILL
    limit: int | None = None

    def plant(self) -> None:
        """Let it happen in this process."""
        owner = getattr(importlib.import_module(self.module), self.owner)
        usual = getattr(owner, self.method)
        calls = 0

        @functools.wraps(usual)
        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == self.call and self.limit is not None:
                _fill_the_disk(self.limit)
            elif calls == self.call:
                os.kill(os.getpid(), self.number)
            return usual(*arguments, **options)

        setattr(owner, self.method, counted)


def _fill_the_disk(limit: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run(argv: list[str], output: Path, fault: Fault | AtCall | None = None) -> None:
    """The command line in this process, which ends with its exit code."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    setattr(train, "draw_run", lambda *_: [])  # noqa: B010
    if fault is not None:
        fault.plant()
    sys.argv = ["imel", *argv]
    sys.exit(main())


def load_within(room: int, paths: list[Path], output: Path) -> None:
    """Load files with `room` bytes of address space to spare, and note what each attempt gave."""
    from imel import IMeL
    from imel.errors import CheckpointError

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for path in paths:
        try:
            IMeL.load(path)
        except CheckpointError as refusal:
            outcome = f"refused: {refusal}"
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
        else:
            outcome = "loaded"
        with output.open("a") as file:
            file.write(outcome.replace("\n", "|") + "\n")
