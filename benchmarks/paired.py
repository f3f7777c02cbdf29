"""Compare two algorithms of a store seed by seed: paired differences and the share of failed runs.

    python -m benchmarks.paired results/former ridge former

A difference is paired where both have the same task, steps and seed; its interval is a bootstrap
of the mean over seeds. A run counts as failed if it ends below half of the median of its task,
taken over both algorithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import Array, flags, mean_over_seeds, run
from imel.bench.store import Store
from imel.report.labels import task_title
from imel.report.markdown import table
from imel.report.results import Group, gather


def pairs(first: Group, second: Group) -> tuple[Array, Array]:
    """Return the final deterministic returns of the seeds that both have."""
    ours, theirs = ({run.seed: run.evaluated for run in group.runs} for group in (first, second))
    seeds = sorted(ours.keys() & theirs.keys())
    return np.array([ours[s] for s in seeds]), np.array([theirs[s] for s in seeds])


def paired_table(store: Path, first: str, second: str) -> list[str]:
    """Return the comparison as lines of Markdown, a row for each task and one for all."""
    rows, failures = [], []
    for task in gather(Store(store).rows()).tasks:
        if not {first, second} <= task.groups.keys():
            continue
        ours, theirs = pairs(task.groups[first], task.groups[second])
        if not len(ours):
            continue
        half = float(np.median(np.concatenate([ours, theirs]))) / 2.0
        failed = [returns < half for returns in (ours, theirs)]
        failures.append(failed)
        difference = mean_over_seeds(ours - theirs)
        interval = f" [{difference.low:.4g}, {difference.high:.4g}]" if len(ours) > 1 else ""
        rows.append(
            [
                task_title(task.task),
                str(len(ours)),
                f"{np.median(ours):.5g} ({ours.min():.5g} to {ours.max():.5g})",
                f"{np.median(theirs):.5g} ({theirs.min():.5g} to {theirs.max():.5g})",
                f"{difference.value:+.4g}{interval}",
                " / ".join(f"{part.sum()} of {len(part)}" for part in failed),
            ]
        )
    totals = [np.concatenate(parts) for parts in zip(*failures, strict=True)]
    everything = " / ".join(f"{part.sum()} of {len(part)}" for part in totals)
    rows.append(["all", str(len(totals[0])), "", "", "", everything])
    header = ["task", "seeds", first, second, "paired difference of means", "failed runs"]
    return table(header, rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the comparison."""
    parser = flags(__doc__)
    parser.add_argument("store", type=Path, help="a folder of results")
    parser.add_argument("first", help="an algorithm of the store")
    parser.add_argument("second", help="the algorithm it is compared with")
    arguments = parser.parse_args(argv)
    print("\n".join(paired_table(arguments.store, arguments.first, arguments.second)))


if __name__ == "__main__":
    run(main)
