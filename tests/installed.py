"""Tries the imel that is installed in an environment; run by that environment's Python.

Checks that it is not the source tree, that the package has its data, and that its command trains.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import imel

DATA = (
    "py.typed",
    "bench/zoo.toml",
    "explorer/static/index.html",
    "explorer/static/explorer.js",
    "zoo/imel.yml",
)
TRAINING = "train Pendulum-v1 --total-timesteps 512 --rollout-size 256 --memory-size 512"


def command(*words: str, cwd: str) -> str:
    """What the installed `imel` prints."""
    program = Path(sysconfig.get_path("scripts"), "imel")
    result = subprocess.run([program, *words], cwd=cwd, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"imel {' '.join(words)} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


def main() -> None:
    """Exit with a reason if something is missing."""
    package = Path(imel.__file__).parent
    if not package.is_relative_to(sys.prefix):
        sys.exit(f"{package} is not of the environment {sys.prefix}")
    missing = [name for name in DATA if not (package / name).is_file()]
    if missing:
        sys.exit(f"not in the package: {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as folder:
        version = command("--version", cwd=folder).strip()
        if version != f"imel {importlib.metadata.version('imel')}":
            sys.exit(f"{version} is not the version that is installed")
        print(command(*TRAINING.split(), "--eval-episodes", "1", cwd=folder), end="")
    print(f"{version} in {package}: all there, and it trains")


if __name__ == "__main__":
    main()
