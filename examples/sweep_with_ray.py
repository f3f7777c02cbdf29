"""Train several seeds side by side with Ray: here on this machine, or on a cluster.

    python examples/sweep_with_ray.py          # needs the extra `ray`

The same from a shell, on a cluster that runs already:
    imel bench --tasks Pendulum-v1 --algorithms ridge --seeds 0 1 2 3 --ray auto
"""

import os

from imel.cli.main import main

STEPS, SEEDS = ("1024", ["0"]) if os.environ.get("IMEL_SHORT") else ("1e4", ["0", "1", "2", "3"])

# "local" starts Ray here. Each run writes one file when it has ended: a machine that dies costs
# the runs it was busy with, and the same command again does what is missing.
grid = ["--tasks", "Pendulum-v1", "--algorithms", "ridge", "--seeds", *SEEDS, "--steps", STEPS]
assert main(["bench", *grid, "--ray", "local", "--jobs", "2", "--store", "runs/sweep"]) == 0
