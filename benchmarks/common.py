"""What measurements share: flags, JSON lines, timing, means over seeds, made-up memories."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imel.errors import ImelError
from imel.policies import Policy
from imel.report.statistics import Estimate, estimate

Array = NDArray[np.float64]
Row = dict[str, Any]


def flags(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows a module's docstring as it stands."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_runs(
    parser: argparse.ArgumentParser,
    tasks: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    steps: int | None = 100_000,
) -> None:
    """Add what is trained: tasks and seeds, which are required where there are no defaults."""
    parser.add_argument("--tasks", nargs="+", default=tasks, required=not tasks, metavar="TASK")
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=seeds, required=not seeds, metavar="SEED"
    )
    parser.add_argument("--steps", type=int, default=steps)


def run(main: Callable[[], None]) -> None:
    """Run a command; say in one line what imel refuses."""
    try:
        main()
    except ImelError as error:
        sys.exit(f"error: {error}")


def append(row: Row, path: Path | None) -> None:
    """Print a row, and append it to a file of JSON lines if there is one."""
    print(json.dumps(row), flush=True)
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """Return the rows of files of JSON lines."""
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def milliseconds(work: Callable[..., object], *arguments: object) -> float:
    """Return how long a call takes."""
    begun = time.perf_counter()
    work(*arguments)
    return 1e3 * (time.perf_counter() - begun)


def mean_over_seeds(values: Sequence[float] | Array) -> Estimate:
    """Return the mean and its bootstrap interval, which is NaN for a single seed."""
    return estimate(lambda strata: np.asarray(strata[0].mean(axis=-1)), [np.asarray(values)])


def fill_memory(policy: Policy, **columns: Tensor) -> None:
    """Put made-up experiences into the memory; columns that are not given are zero."""
    count, memory = len(columns["states"]), policy.memory
    blank = {
        name: torch.zeros_like(memory.get_buffer(name)[:count])
        for name in memory.column_names
        if name != "iterations"
    }
    memory.add(blank | columns, iteration=0)
