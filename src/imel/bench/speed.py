"""What everything costs: one process a measurement, on one core, repeated in turns.

Ratios within one run of this mean something where seconds do not: whatever else the machine does
falls on all measurements alike, since their repetitions are interleaved and medians are taken.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from imel.bench.algorithms import find_algorithm
from imel.bench.tasks import find_task
from imel.errors import ImelError
from imel.runs.provenance import provenance

Figures = dict[str, float]
LEARNERS = ("mki", "np", "anp", "regressor", "nearest", "ridge", "trpo", "trpo-8", "ppo")
"""What is run on every task beside the bare environments; trpo-8 has as many of them as IMeL."""
FORMS = ("compiled", "torch", "matrix")
"""Ways to leave every episode out: with Numba, without, and as the full masked matrix."""


@dataclass(frozen=True)
class Cell:
    """One thing to measure: a function of `imel.bench.speed_worker`, and its arguments."""

    what: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What it is called while it runs."""
        return " ".join([self.what, *map(str, self.arguments.values())])


@dataclass(frozen=True)
class Plan:
    """Which measurements, how large, how often."""

    tasks: Sequence[str]
    learners: Sequence[str] = LEARNERS
    steps: int = 10_000
    repetitions: int = 3
    sizes: Sequence[int] = (1_000, 10_000, 100_000, 1_000_000)
    """Memories, for the cost of acting."""
    left_out: Sequence[int] = (1_000, 3_000, 10_000)
    """Memories, for a pass that leaves every episode out."""

    def cells(self) -> list[Cell]:
        """Every measurement once; refuses what cannot be run."""
        for task in self.tasks:
            find_task(task)
        for name in self.learners:
            find_algorithm("trpo" if name == "trpo-8" else name)
        return [*self._on_tasks(), *self._acting(), *self._leaving_out()]

    def _on_tasks(self) -> Iterator[Cell]:
        for task in self.tasks:
            yield Cell("environments", {"task": task, "steps": self.steps})
            for name in self.learners:
                yield Cell("learning", {"task": task, "algorithm": name, "steps": self.steps})

    def _acting(self) -> Iterator[Cell]:
        forms = ["exact", "index"] if has("faiss") else ["exact"]
        for size in self.sizes:
            yield Cell("memory", {"size": size})
            for form in forms:
                yield Cell("acting", {"size": size, "form": form})

    def _leaving_out(self) -> Iterator[Cell]:
        for count in self.left_out:
            yield Cell("floor", {"count": count})
            for form in FORMS:
                if form != "compiled" or has("numba"):
                    yield Cell("leaving_out", {"count": count, "form": form})


def has(package: str) -> bool:
    """Whether an optional package is installed."""
    return importlib.util.find_spec(package) is not None


def measure(plan: Plan, on_cell: Callable[[int, int, Cell, Figures], None]) -> dict[str, Any]:
    """Run the plan; its medians, and where they come from. `on_cell` hears of each repetition."""
    cells = plan.cells()
    seen: list[list[Figures]] = [[] for _ in cells]
    total = plan.repetitions * len(cells)
    for repetition in range(plan.repetitions):
        for place, cell in enumerate(cells):
            seen[place].append(run_cell(cell))
            on_cell(repetition * len(cells) + place + 1, total, cell, seen[place][-1])
    rows = [
        {"what": cell.what, **cell.arguments, **_medians(figures)}
        for cell, figures in zip(cells, seen, strict=True)
    ]
    return {
        "rows": rows,
        "steps": plan.steps,
        "repetitions": plan.repetitions,
        "processor": _processor(),
        **provenance(),
    }


def run_cell(cell: Cell) -> Figures:
    """One measurement in a process of its own, on one core."""
    single = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    document = json.dumps({"what": cell.what, "arguments": dict(cell.arguments)})
    worker = subprocess.run(
        [sys.executable, "-m", "imel.bench.speed_worker", document],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **single},
    )
    lines = worker.stdout.strip().splitlines()
    if worker.returncode or not lines:
        reason = worker.stderr.strip().splitlines()[-1:] or [f"exit code {worker.returncode}"]
        raise ImelError(f"measuring '{cell.label}' failed: {reason[0]}")
    figures: Figures = json.loads(lines[-1])
    return figures


def _medians(figures: Sequence[Figures]) -> Figures:
    return {name: median(each[name] for each in figures) for name in figures[0]}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
