"""What produced a result: the commit of the code that ran, and what was beneath it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from imel.checkpoints.checkpoint import library_versions

_PACKAGE = Path(__file__).resolve().parents[1]


def provenance() -> dict[str, Any]:
    """Return the commit, whether the package differs from it, library versions and the processor.

    That of a run has its id as well, under `run`.
    """
    versions = {**library_versions(), "sb3_contrib": "absent"}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        versions["sb3_contrib"] = importlib.metadata.version("sb3_contrib")
    commit, dirty = "unknown", None
    # An installed copy may lie inside some other repository, whose commit says nothing of it
    if _git("ls-files", "--error-unmatch", "__init__.py"):
        commit = _git("rev-parse", "HEAD") or commit
        dirty = bool(_git("--no-optional-locks", "status", "--porcelain", "--", "."))
    return {"commit": commit, "dirty": dirty, "versions": versions, "processor": _processor()}


def _processor() -> str:
    """Return the processor's name and its cores: seconds of others do not compare."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    found = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    name = found[1] if found else platform.processor() or platform.machine()
    return f"{name.strip()}, {os.cpu_count()} cores"


def _git(*arguments: str) -> str | None:
    """Return what git says in the package's folder; None if it fails or is not installed."""
    try:
        command = ["git", "-C", str(_PACKAGE), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
