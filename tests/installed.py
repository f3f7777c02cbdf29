"""Tries the imel that is installed in an environment; run by that environment's Python.

Checks that it is not the source tree, that the package has its data, that its command trains, and
that the demo opens where the explorer's libraries are installed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import signal
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
from pathlib import Path

import imel

DATA = (
    "py.typed",
    "bench/zoo.toml",
    "explorer/static/index.html",
    "explorer/static/explorer.js",
    "explorer/demo/model.safetensors",
    "zoo/imel.yml",
)
TRAINING = "train Pendulum-v1 --total-timesteps 512 --rollout-size 256 --memory-size 512"


PROGRAM = Path(sysconfig.get_path("scripts"), "imel")


def command(*words: str, cwd: str) -> str:
    """What the installed `imel` prints."""
    result = subprocess.run([PROGRAM, *words], cwd=cwd, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"imel {' '.join(words)} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


def open_demo(cwd: str) -> str:
    """Open the explorer on the run that ships with the package, and ask it about its lessons."""
    words = [str(PROGRAM), "explore", "--demo", "--no-browser"]
    with subprocess.Popen(words, cwd=cwd, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        address = next((line.split()[0] for line in serving.stdout if line.startswith("http")), "")
        if not address:
            sys.exit("imel explore --demo did not start")
        with urllib.request.urlopen(f"{address}api/run") as answer:
            newest = json.load(answer)["newest"]
        serving.send_signal(signal.SIGINT)
    if newest["kind"] != "lessons" or newest["rows"] < 10:
        sys.exit(f"the demo has {newest['rows']} {newest['kind']}")
    return f"the demo has {newest['rows']} lessons"


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
        if importlib.util.find_spec("starlette"):
            print(open_demo(folder))
        print(command(*TRAINING.split(), "--eval-episodes", "1", cwd=folder), end="")
    print(f"{version} in {package}: all there, and it trains")


if __name__ == "__main__":
    main()
