"""Row 11: however long a run, it holds no more memory, files or threads than at its beginning."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest
from harness import command, rows

STEPS, BATCH = 3_000_000, 2048


@dataclass(frozen=True)
class Held:
    """What a process holds at a moment."""

    resident: float
    files: float
    threads: float


def held_by(process: int) -> Held:
    """Of a running process."""
    status = Path(f"/proc/{process}/status").read_text()
    numbers = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    files = len(list(Path(f"/proc/{process}/fd").iterdir()))
    return Held(int(numbers["VmRSS"].split()[0]), files, int(numbers["Threads"]))


def typical(moments: list[Held]) -> Held:
    """Their medians: a file that is being written at a moment is not one that stays open."""
    return Held(*(median(getattr(m, name) for m in moments) for name in vars(moments[0])))


@pytest.mark.slow
def test_fault_11_a_long_run_holds_no_more_at_its_end_than_at_its_beginning(tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = (
        f"--total-timesteps {STEPS} --rollout-size {BATCH} --memory-size 4096 "
        "--n-envs 32 --critic-epochs 1 --checkpoint-every 5 --eval-episodes 0"
    ).split()
    soak = command("train", "MountainCarContinuous-v0", *flags, "--run-dir", run, folder=tmp_path)
    assert soak.process.pid is not None
    moments: list[Held] = []
    while soak.process.is_alive() and not (run / "model.safetensors").is_file():
        if (run / "progress.csv").is_file():
            moments.append(held_by(soak.process.pid))
        time.sleep(0.1)
    assert soak.wait() == 0, soak.text
    assert len(rows(run / "progress.csv")) == -(-STEPS // BATCH)
    tenth = len(moments) // 10
    assert tenth > 10
    # The ledger of lessons has as many rows as it may after 160 of 1,465 iterations
    early, late = typical(moments[2 * tenth : 3 * tenth]), typical(moments[-tenth:])
    print(f"\n{STEPS} steps, {len(moments)} moments: {early} in the third tenth, {late} at the end")
    assert late.resident <= 1.02 * early.resident
    assert late.files <= early.files
    assert late.threads <= early.threads
