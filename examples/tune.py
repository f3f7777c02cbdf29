"""Search settings for a task, and confirm them on seeds that the search has not seen.

    python examples/tune.py                    # needs the extra `tune`

The same from a shell:
    imel tune Pendulum-v1 --steps 5e3 --trials 6
    imel train --config runs/tune/Pendulum-v1-ridge/best.json
"""

import os

from imel.cli.main import main

SHORT = bool(os.environ.get("IMEL_SHORT"))
STEPS, TRIALS = ("512", "2") if SHORT else ("5e3", "6")
CONFIRM = "1" if SHORT else "3"

if __name__ == "__main__":  # runs have processes of their own, which import this file
    # A study on disk: the same command again goes on with it. Six trials show how it is done.
    flags = ["--steps", STEPS, "--trials", TRIALS, "--seeds", "0", "--confirm-seeds", CONFIRM]
    assert main(["tune", "Pendulum-v1", *flags, "--jobs", "1", "--study", "runs/study"]) == 0
