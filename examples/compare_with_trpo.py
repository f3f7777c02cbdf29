"""Compare IMeL with TRPO on two seeds, and make a report of it.

    python examples/compare_with_trpo.py       # needs the extra `bench`

The same from a shell:
    imel bench --tasks Pendulum-v1 --algorithms ridge trpo --seeds 0 1 --steps 2e4
    imel report
"""

import os

from imel.cli.main import main

STEPS, SEEDS = ("1024", ["0"]) if os.environ.get("IMEL_SHORT") else ("2e4", ["0", "1"])

if __name__ == "__main__":  # runs have processes of their own, which import this file
    # The store is a folder. What it holds already is not run again.
    grid = ["--tasks", "Pendulum-v1", "--algorithms", "ridge", "trpo", "--seeds", *SEEDS]
    assert main(["bench", *grid, "--steps", STEPS, "--store", "runs/compare", "--jobs", "1"]) == 0

    # Curves, tables and intervals over seeds. Two seeds show how it is done, and no more.
    assert main(["report", "runs/compare"]) == 0
