"""Environments and a policy that workers and jobs of the bench can make too; some die or hang.

What they do to themselves they note in the folder that BENCH_FOLDER names.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium

from imel.policies import NearestPolicy
from toy import ScriptedEnv

PREFIX = "bench_environments:Bench"
"""Of the names of the tasks; an episode of `Scripted-v0` always pays 15."""


def folder() -> Path:
    return Path(os.environ["BENCH_FOLDER"])


class Raises(ScriptedEnv):
    def step(self, action: Any) -> Any:
        with (folder() / "raised").open("a") as file:
            file.write("x")
        raise RuntimeError("the arm\nfell off")


class Dies(ScriptedEnv):
    lives = 1

    def step(self, action: Any) -> Any:
        deaths = folder() / f"{type(self).__name__}.deaths"
        died = len(deaths.read_text()) if deaths.exists() else 0
        if died < self.lives:
            deaths.write_text("x" * (died + 1))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class DiesAlways(Dies):
    lives = 100


class Hangs(ScriptedEnv):
    """Hangs while there is a file `hang`."""

    def step(self, action: Any) -> Any:
        if (folder() / "hang").exists():
            (folder() / "hanging").touch()
            time.sleep(3600)
        return super().step(action)


class OwnPolicy(NearestPolicy):
    """A policy of a user's own."""


for env in (ScriptedEnv, Raises, Dies, DiesAlways, Hangs):
    name = f"Bench{env.__name__.removesuffix('Env')}-v0"
    if name not in gymnasium.registry:
        gymnasium.register(name, f"{__name__}:{env.__name__}")
