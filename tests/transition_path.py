"""Count the files of imel behind a transition, and behind `imel why`, `resume` and `train`.

`python tests/transition_path.py` prints them. A file counts if one of its functions is called. A
transition of the default policy is traced through the second iteration of a run: by then every part
has been made, and what is called is what experience goes through. The commands are traced from
their start; `train` and `resume` to the second iteration, `why` to its end.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pkgutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

import imel
from imel import IMeL
from imel.cli.main import main

LIMITS = {"a transition": 16, "imel why": 34, "imel resume": 41, "imel train": 39}
"""Files that may lie on the way."""

_PACKAGE = Path(imel.__file__).parent
_ITERATION = ("data/rollout.py", "collect")
"""The function that begins an iteration."""
_TRAIN = "train Pendulum-v1 --total-timesteps 4096 --checkpoint-every 1 --checkpoints-kept 9"


class Trace:
    """Collects the files of imel whose functions are called while iterations `first` to `last` run.

    Iteration 0 is what comes before the first; classes and modules being made are no calls.
    """

    def __init__(self, first: int, last: int) -> None:
        self.files: set[str] = set()
        self._first, self._last, self._iteration = first, last, 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Trace what this thread calls inside the block."""
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        path = Path(code.co_filename)
        if event != "call" or not code.co_flags & CO_OPTIMIZED or not path.is_relative_to(_PACKAGE):
            return
        name = path.relative_to(_PACKAGE).as_posix()
        self._iteration += (name, code.co_name) == _ITERATION
        if self._iteration > self._last:
            sys.setprofile(None)
        elif self._iteration >= self._first:
            self.files.add(name)


def traced(act: Callable[[], object], first: int = 0, last: int = 10**9) -> list[str]:
    """Return the files of imel, by their path in the package, that a call passes."""
    trace = Trace(first, last)
    with trace.running(), contextlib.redirect_stdout(io.StringIO()):
        act()
    return sorted(trace.files)


def command(argv: str) -> None:
    """Run a command line, which has to succeed."""
    assert main(argv.split()) == 0


def paths() -> dict[str, list[str]]:
    """Return the files on each way."""
    for module in pkgutil.walk_packages(imel.__path__, "imel."):  # so that none is made on the way
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            learn = IMeL("RidgePolicy", "Pendulum-v1", seed=0).learn
            found = {"a transition": traced(lambda: learn(4096), 2, 2)}
            found["imel train"] = traced(lambda: command(f"{_TRAIN} --run-dir run"), last=1)
            found["imel why"] = traced(lambda: command("why run"))
            for path in sorted(Path("run/checkpoints").glob("*"))[2:]:  # as if killed then
                path.unlink()
            Path("run/model.safetensors").unlink()
            found["imel resume"] = traced(lambda: command("resume run"), last=1)
        finally:
            os.chdir(before)
    return found


if __name__ == "__main__":
    for way, files in paths().items():
        print(f"{way}: {len(files)} files\n  {' '.join(files)}")
