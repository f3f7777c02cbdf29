"""What reliability costs: ratios measured in one run, printed, and bounded."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from imel import IMeL
from imel.environments import Workers
from imel.persistence.resume import RunCheckpoints

pytestmark = pytest.mark.slow


def test_a_checkpoint_at_every_iteration_costs_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = 0.0
    for name in ("save_standing", "stand"):  # writing, and noting where the run stands

        def timed(self: IMeL, *arguments: Any, usual: Any = getattr(IMeL, name)) -> Any:  # noqa: B008
            nonlocal spent
            start = time.perf_counter()
            result = usual(self, *arguments)
            spent += time.perf_counter() - start
            return result

        monkeypatch.setattr(IMeL, name, timed)
    model = IMeL("RidgePolicy", "HalfCheetah-v5", seed=0)
    start = time.perf_counter()
    model.learn(50 * 1024, RunCheckpoints(tmp_path, every=1))
    share = spent / (time.perf_counter() - start)
    print(f"\ncheckpoints: {share:.1%} of the run's time")
    assert 0.0 < share < 0.05


def test_sixty_four_environments_in_processes_of_their_own() -> None:
    model = IMeL("RidgePolicy", "Pendulum-v1", seed=0, n_envs=64, workers=True)
    assert isinstance(model.env, Workers)
    processes = list(model.env.processes)
    model.learn(10 * 1024)
    assert model.num_timesteps == 10 * 1024
    model.env.close()
    assert len(processes) == 64
    assert not any(process.is_alive() for process in processes)
