"""Runs the command line in processes of its own, breaks them, and compares what they leave.

Processes are forked from a server that has imported the package already: that saves seconds each
time, and each is still a process that can be killed.
"""

from __future__ import annotations

import csv
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import driver
import torch
from driver import AtCall, Fault

from imel.checkpoints.run_checkpoints import checkpoints_in
from small import read_checkpoint

AnyFault = Fault | AtCall
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch._dynamo", *(f"imel.cli.{name}" for name in ("train", "resume", "plot", "eval"))]
)

WALL_TIME = {"time/fps", "time/time_elapsed", "t"}
SETTINGS = [
    "--total-timesteps",
    "2500",
    "--n-envs",
    "2",
    "--rollout-size",
    "256",
    "--memory-size",
    "512",
    "--critic-epochs",
    "1",
    "--checkpoint-every",
    "2",
    "--evaluations",
    "1",
    "--eval-episodes",
    "1",
]
"""10 iterations, the last one longer than what is left of the steps; two environments so that
episodes of Pendulum-v1, 200 steps long, end between checkpoints."""
TRAIN = ["train", "Pendulum-v1", *SETTINGS]
TIMEOUT = 300.0


@dataclass(frozen=True)
class Baseline:
    """An uninterrupted run, not to be changed, and how long it took."""

    run: Path
    seconds: float


class Command:
    """One command line in a process of its own."""

    def __init__(self, argv: list[str], folder: Path, fault: AnyFault | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.output = folder / f"output-{time.monotonic_ns()}.txt"
        self.process: ForkServerProcess = CONTEXT.Process(
            target=driver.run, args=(argv, self.output, fault)
        )
        self.process.start()

    def wait(self, seconds: float = TIMEOUT) -> int:
        """The exit code; -9 of a process that was killed."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise AssertionError(f"still running after {seconds} s: {self.text}")
        return self.process.exitcode

    def kill_after(self, seconds: float) -> int:
        """SIGKILL at that moment; the exit code, which is another one if it had ended before."""
        self.process.join(seconds)
        self.process.kill()
        return self.wait()

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    @property
    def text(self) -> str:
        """What it printed."""
        return self.output.read_text() if self.output.is_file() else ""

    @property
    def errors(self) -> list[str]:
        """The lines that say what went wrong."""
        return [line for line in self.text.splitlines() if line.startswith("imel: error: ")]


def command(*argv: str | Path, folder: Path, fault: AnyFault | None = None) -> Command:
    """Start a command line."""
    return Command([str(word) for word in argv], folder / "outputs", fault)


def train(run: Path, fault: AnyFault | None = None, also: tuple[str, ...] = ()) -> Command:
    """Start the run that every test compares with."""
    return command(*TRAIN, *also, "--run-dir", run, folder=run.parent, fault=fault)


def go_on(run: Path, fault: AnyFault | None = None, also: tuple[str, ...] = ()) -> Command:
    """Resume a run, or start it if it was killed before it had a configuration."""
    if not (run / "config.json").is_file():
        return train(run, fault, also)
    return command("resume", run, *also, folder=run.parent, fault=fault)


def wait_until(condition: Callable[[], object], of: Command) -> None:
    """Wait for something that a command is about to do."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert of.process.is_alive(), of.text
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- what a run leaves ---


def rows(path: Path) -> list[dict[str, str]]:
    """A log without its wall times and empty cells; the order of columns does not count."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return [
        {name: cell for name, cell in row.items() if cell and name not in WALL_TIME}
        for row in csv.DictReader(lines)
    ]


def without_wall_time(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint says of itself, but for the moments at which episodes ended."""
    progress = dict(manifest["progress"])
    progress["episodes"] = [{"r": e["r"], "l": e["l"]} for e in progress["episodes"]]
    run = {**manifest["run"], "id": ""}  # that of a run of its own, as every run is
    return {**manifest, "progress": progress, "run": run}


def differences_of_files(one: Path, other: Path) -> list[str]:
    """The names under which two checkpoints differ, bit for bit."""
    (tensors, manifest), (other_tensors, other_manifest) = map(read_checkpoint, (one, other))
    found = [
        f"{one.name}:{name}"
        for name in sorted(tensors.keys() | other_tensors.keys())
        if name not in tensors
        or name not in other_tensors
        or not same_bits(tensors[name], other_tensors[name])
    ]
    if without_wall_time(manifest) != without_wall_time(other_manifest):
        found.append(f"{one.name}:manifest")
    return found


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal in type, shape and every bit, NaN included."""
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and one.numpy().tobytes() == other.numpy().tobytes()
    )


def differences_of_runs(one: Path, other: Path) -> list[str]:
    """What differs between two finished runs: models, checkpoints, logs, evaluation."""
    found = differences_of_files(one / "model.safetensors", other / "model.safetensors")
    kept, other_kept = (checkpoints_in(run / "checkpoints") for run in (one, other))
    if [path.name for path in kept] != [path.name for path in other_kept]:
        found.append(f"checkpoints: {kept} and {other_kept}")
    else:
        for path, other_path in zip(kept, other_kept, strict=True):
            found += differences_of_files(path, other_path)
    found += [
        name for name in ("progress.csv", "monitor.csv") if rows(one / name) != rows(other / name)
    ]
    found += differences_of_files(one / "best.safetensors", other / "best.safetensors")
    for name in ("evaluation.json", "evaluations.json", "config.json"):
        if (one / name).read_bytes() != (other / name).read_bytes():
            found.append(name)
    return found


def leftovers(run: Path) -> list[Path]:
    """Temporary files of writers that were killed, anywhere in a run."""
    return sorted(path for path in run.rglob(".*") if path.is_file())
