"""Where `imel bench` and `imel tune` run things, and the settings they are told by `--set`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from imel.bench.pool import Pool
from imel.bench.processes import Processes
from imel.errors import SettingsError

PIPE_WIDTH = 160
"""Of tables where there is no terminal."""


def choose_pool(ray: str | None, jobs: int | None) -> Pool:
    """Processes of this machine, or the Ray cluster at an address; a core each, all by default."""
    if ray is None:
        return Processes(jobs or _cores())
    from imel.bench.ray_pool import RayPool

    return RayPool(ray, jobs)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def settings_from(items: Sequence[str]) -> dict[str, Any]:
    """Settings as typed on the command line: JSON where they are, text (schedules) elsewhere."""
    settings: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals:
            raise SettingsError(f"--set {item}: not of the form KEY=VALUE")
        try:
            settings[key] = json.loads(text)
        except json.JSONDecodeError:
            settings[key] = text
    return settings


def refuse_repeated_flags(argv: Sequence[str]) -> None:
    """The parser would keep the last and drop the others without a word."""
    flags = [word.partition("=")[0] for word in argv if word.startswith("--")]
    for flag in flags:
        if flags.count(flag) > 1:
            raise SettingsError(f"{flag} is given twice; put all its values behind one")
