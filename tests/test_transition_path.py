"""The ways through the package stay short: few files behind a transition, and behind commands.

`python tests/test_transition_path.py` prints them. A file counts if one of its functions is called.
A transition of the default policy is traced through the second iteration of a run: by then every
part has been made. The commands are traced from their start, `train` and `resume` to the second
iteration, `why` to its end.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pkgutil
import sys
import tempfile
from collections.abc import Callable
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

import imel
from imel import IMeL
from imel.cli.main import main

LIMITS = {"a transition": 16, "imel why": 32, "imel resume": 38, "imel train": 38}
"""Files that may lie on the way."""

_PACKAGE = Path(imel.__file__).parent
_ITERATION = ("data/rollout.py", "collect")
"""The function that begins an iteration."""
_TRAIN = "train Pendulum-v1 --total-timesteps 4096 --checkpoint-every 1 --checkpoints-kept 9"


def traced(act: Callable[[], object], first: int = 0, last: int = 10**9) -> list[str]:
    """Return the files of imel whose functions are called while iterations `first` to `last` run.

    Iteration 0 is what comes before the first; classes and modules being made are no calls.
    """
    files, iteration = set[str](), 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal iteration
        code, path = frame.f_code, Path(frame.f_code.co_filename)
        if event != "call" or not code.co_flags & CO_OPTIMIZED or not path.is_relative_to(_PACKAGE):
            return
        name = path.relative_to(_PACKAGE).as_posix()
        iteration += (name, code.co_name) == _ITERATION
        if iteration > last:
            sys.setprofile(None)
        elif iteration >= first:
            files.add(name)

    with contextlib.redirect_stdout(io.StringIO()):
        sys.setprofile(note)
        try:
            act()
        finally:
            sys.setprofile(None)
    return sorted(files)


def command(argv: str) -> Callable[[], None]:
    """Return a function that runs a command line, which has to succeed."""

    def run() -> None:
        assert main(argv.split()) == 0

    return run


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
            found["imel train"] = traced(command(f"{_TRAIN} --run-dir run"), last=1)
            found["imel why"] = traced(command("why run"))
            for path in sorted(Path("run/checkpoints").glob("*"))[2:]:  # as if killed then
                path.unlink()
            Path("run/model.safetensors").unlink()
            found["imel resume"] = traced(command("resume run"), last=1)
        finally:
            os.chdir(before)
    return found


def test_a_transition_and_each_command_pass_few_files() -> None:
    found = paths()
    assert "data/rollout.py" in found["a transition"]
    for way, limit in LIMITS.items():
        assert len(found[way]) <= limit, (way, found[way])


if __name__ == "__main__":
    for way, files in paths().items():
        print(f"{way}: {len(files)} files\n  {' '.join(files)}")
