"""Row 9: environments in processes of their own do not outlive a run that was killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import TRAIN, Baseline, differences_of_runs

from imel.checkpoints.run_checkpoints import checkpoints_in

pytest_plugins = ("baseline",)


def descendants(process: int) -> list[int]:
    """The processes started by a process, and by those."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [p for child in map(int, children) for p in (child, *descendants(child))]


def alive(process: int) -> bool:
    """Whether it still runs; one that waits to be collected by its parent does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
def test_fault_09_no_worker_outlives_a_killed_run_and_it_resumes_to_the_same_end(
    baseline: Baseline, tmp_path: Path
) -> None:
    imel, run = str(Path(sys.executable).with_name("imel")), tmp_path / "run"
    process = subprocess.Popen(
        [imel, *TRAIN, "--workers", "--run-dir", str(run)], stdout=subprocess.DEVNULL
    )
    while not checkpoints_in(run / "checkpoints"):
        assert process.poll() is None
        time.sleep(0.01)
    started = descendants(process.pid)
    assert len(started) >= 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while any(map(alive, started)):
        assert time.monotonic() < deadline, "orphans"
        time.sleep(0.05)

    subprocess.run([imel, "resume", str(run)], stdout=subprocess.DEVNULL, check=True)
    # Workers change where environments run, not what is learned
    assert [name for name in differences_of_runs(baseline.run, run) if ":manifest" not in name] == [
        "config.json"
    ]
