"""What produced a result: the commit of the code that ran, and what was beneath it."""

from __future__ import annotations

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
    versions = dict(library_versions())
    try:
        versions["sb3_contrib"] = importlib.metadata.version("sb3_contrib")
    except importlib.metadata.PackageNotFoundError:
        versions["sb3_contrib"] = "absent"
    beneath = {"versions": versions, "processor": _processor()}
    # An installed copy may lie inside some other repository, whose commit says nothing of it
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return {"commit": "unknown", "dirty": None, **beneath}
    return {
        "commit": _git("rev-parse", "HEAD") or "unknown",
        "dirty": bool(_git("--no-optional-locks", "status", "--porcelain", "--", ".")),
        **beneath,
    }


def _processor() -> str:
    """The processor's name and how many cores there are: seconds of others do not compare."""
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    name = found[1] if found else platform.processor() or platform.machine()
    return f"{name.strip()}, {os.cpu_count()} cores"


def _git(*arguments: str) -> str | None:
    """Run git in the package's folder; None if it fails or is not installed."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(_PACKAGE), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
