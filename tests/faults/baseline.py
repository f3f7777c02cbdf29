"""The run without a fault, which every broken one has to equal in the end: a plugin of pytest."""

import time

import pytest
from harness import Baseline, command, rows, train


@pytest.fixture(scope="session")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Baseline:
    """A run of a few seconds with checkpoints, finished episodes and an evaluation."""
    run = tmp_path_factory.mktemp("baseline") / "run"
    command("--version", folder=run.parent).wait()  # the server of processes has its imports to do
    start = time.monotonic()
    finished = train(run)
    assert finished.wait() == 0, finished.text
    seconds = time.monotonic() - start
    assert len(rows(run / "progress.csv")) == 10
    assert len(rows(run / "monitor.csv")) > 5, "no episodes, nothing to compare"
    return Baseline(run, seconds)
