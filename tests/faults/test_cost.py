"""What reliability costs: ratios measured in one run, printed, and bounded."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from imel import IMeL
from imel.checkpoints.run_checkpoints import RunCheckpoints
from imel.environments.making import Workers

pytestmark = pytest.mark.slow


def test_a_checkpoint_at_every_iteration_costs_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_up = processor = 0.0  # of the run; of the run and of the thread that writes

    def timed(owner: type, name: str, beside: bool = False) -> None:
        usual = getattr(owner, name)

        def measured(*arguments: Any) -> Any:
            nonlocal held_up, processor
            start, used = time.perf_counter(), time.thread_time()
            result = usual(*arguments)
            held_up += 0.0 if beside else time.perf_counter() - start
            processor += time.thread_time() - used
            return result

        monkeypatch.setattr(owner, name, measured)

    timed(IMeL, "stand")
    timed(RunCheckpoints, "_on_rollout_start")
    timed(RunCheckpoints, "_write", beside=True)
    model = IMeL("RidgePolicy", "HalfCheetah-v5", seed=0)
    start, used = time.perf_counter(), time.process_time()
    model.learn(50 * 1024, RunCheckpoints(tmp_path, every=1))
    wall, total = time.perf_counter() - start, time.process_time() - used
    waited, worked = held_up / (wall - held_up), processor / (total - processor)
    both = (held_up + processor) / (wall + total - held_up - processor)
    print(f"\ncheckpoints: {waited:.1%} more time, {worked:.1%} more processor time, {both:.1%}")
    assert 0.0 < waited < 0.05
    assert 0.0 < both < 0.05


def test_sixty_four_environments_in_processes_of_their_own() -> None:
    model = IMeL("RidgePolicy", "Pendulum-v1", seed=0, n_envs=64, workers=True)
    assert isinstance(model.env, Workers)
    processes = list(model.env.processes)
    model.learn(10 * 1024)
    assert model.num_timesteps == 10 * 1024
    model.env.close()
    assert len(processes) == 64
    assert not any(process.is_alive() for process in processes)
