"""Rows 36 to 39: runs that end early; and what checkpoints leave alone, episodes under way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from driver import AtCall, Fault
from harness import TRAIN, Baseline, differences_of_runs, go_on, train, wait_until

from imel import IMeL
from imel.checkpoints.run_checkpoints import RunCheckpoints, checkpoints_in, latest_checkpoint
from imel.errors import CheckpointError
from small import SMALL, differing
from test_resume import StopAt

pytest_plugins = ("baseline",)

STEPS = 6 * 64


def model_on(env: Any, **settings: Any) -> IMeL:
    return IMeL("RidgePolicy", env, seed=3, **{**SMALL, "n_envs": 2, **settings})


def stopped_at(step: int, number: signal.Signals) -> AtCall:
    """A signal in the midst of a rollout; two environments are stepped with each call."""
    return AtCall("imel.runs.running", "StopOnSignal", "_on_step", step, number)


# --- environments go on in mid-episode ---


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("HalfCheetah-v5", {}),
        ("Hopper-v5", {"workers": True}),
        ("Ant-v5", {}),
        ("InvertedDoublePendulum-v5", {}),
        ("MountainCarContinuous-v0", {}),
        pytest.param("Humanoid-v5", {}, marks=pytest.mark.slow),
        pytest.param("Walker2d-v5", {}, marks=pytest.mark.slow),
    ],
)
def test_fault_01_a_resumed_run_goes_on_in_mid_episode_and_checkpoints_change_nothing(
    env: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    plain = model_on(env, **settings).learn(STEPS)

    stopped = model_on(env, **settings)
    stopped.learn(STEPS, [RunCheckpoints(tmp_path, every=1), StopAt(4 * 64 + 20)])
    path = latest_checkpoint(tmp_path)
    assert path is not None
    resumed = IMeL.resume(path, env)
    assert resumed.num_timesteps == 4 * 64
    if env in ("HalfCheetah-v5", "MountainCarContinuous-v0"):  # whose episodes are 999 or more long
        assert resumed.learner.clock.steps.tolist() == [128, 128]
    resumed.learn(resumed.remaining_timesteps, reset_num_timesteps=False)

    for model in (plain, stopped, resumed):
        assert model.env is not None
        model.env.close()
    assert differing(plain.learner.tensors(), resumed.learner.tensors()) == []
    assert plain.learner.clock.episodes.tolist() == resumed.learner.clock.episodes.tolist()


class Moody(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Draws from a generator of its own, which no seed reaches."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.mood = int.from_bytes(os.urandom(4), "little") / 2**32

    def step(self, action: Any) -> Any:
        observation, *rest = self.env.step(action)
        return observation + self.mood, *rest


def make_moody(**_: Any) -> gymnasium.Env[Any, Any]:
    return Moody(gymnasium.make("MountainCarContinuous-v0"))


gymnasium.register("Moody-v0", make_moody, max_episode_steps=500)


def test_fault_01_an_environment_that_is_not_deterministic_is_not_passed_off_as_resumed(
    tmp_path: Path,
) -> None:
    model_on("Moody-v0").learn(2 * 64, RunCheckpoints(tmp_path, every=1))
    path = latest_checkpoint(tmp_path)
    assert path is not None
    with pytest.raises(CheckpointError, match="its simulator is not deterministic"):
        IMeL.resume(path, "Moody-v0")


def test_an_episode_too_long_to_be_played_again_ends_at_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imel.environments.replay.LONGEST", 40)
    model = model_on("Pendulum-v1")
    model.learn(3 * 64, RunCheckpoints(tmp_path, every=2))
    # Iteration 2 begins at step 64 of the first episodes, which cannot be played again
    assert model.learner.clock.episodes.tolist() == [4, 5]
    whole = model_on("Pendulum-v1").learn(4 * 64, RunCheckpoints(tmp_path / "whole", every=2))
    resumed = IMeL.resume(tmp_path / "iteration-00000002", "Pendulum-v1")
    resumed.learn(2 * 64, RunCheckpoints(tmp_path, every=2), reset_num_timesteps=False)
    assert differing(whole.learner.tensors(), resumed.learner.tensors()) == []


# --- row 36 ---


def test_fault_36_on_a_full_disk_what_can_be_saved_is_and_the_rest_is_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    full = Fault(write=6, stage="full", limit=100_000)
    ended = train(run, full, also=("--go-on-if-full",))
    assert ended.wait() == 2
    (line,) = ended.errors
    assert "the run has ended, but could not write model.safetensors (File too large)" in line
    assert "no checkpoint: " in ended.text
    assert "deterministic return over 1 episodes" in ended.text
    assert (run / "evaluation.json").is_file()
    assert latest_checkpoint(run / "checkpoints") is not None
    assert "Traceback" not in ended.text


# --- row 37 ---


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_fault_37_a_signal_before_the_first_scheduled_checkpoint_loses_no_iteration(
    number: signal.Signals, baseline: Baseline, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    stopped = train(run, stopped_at(200, number))  # in the second of two iterations
    assert stopped.wait() == 128 + number, stopped.text
    assert [path.stem for path in checkpoints_in(run / "checkpoints")] == ["iteration-00000001"]
    assert stopped.text.splitlines()[-1].endswith(f"from step 256 go on with: imel resume {run}")

    last = go_on(run)
    assert last.wait() == 0, last.text
    assert f"{run} goes on at step 256 of 2,500" in last.text
    assert differences_of_runs(baseline.run, run) == []


def test_fault_37_a_signal_before_anything_was_learned_says_so(
    baseline: Baseline, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    stopped = train(run, stopped_at(50, signal.SIGINT))
    assert stopped.wait() == 130, stopped.text
    assert f"from step 0 go on with: imel resume {run}" in stopped.text
    last = go_on(run)
    assert last.wait() == 0, last.text
    assert f"{run} goes on at step 0 of 2,500" in last.text
    assert differences_of_runs(baseline.run, run) == []


# --- row 38 ---


def test_fault_38_a_run_directory_that_is_deleted_ends_the_run_in_one_line(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = train(run)
    wait_until(lambda: checkpoints_in(run / "checkpoints"), process)
    process.send(signal.SIGSTOP)
    shutil.rmtree(run)
    process.send(signal.SIGCONT)
    assert process.wait() == 2, process.text
    (line,) = process.errors
    assert "is gone" in line
    assert "Traceback" not in process.text
    assert not run.exists()


@pytest.mark.slow
def test_fault_38_late_signals_leave_no_traceback(tmp_path: Path) -> None:
    imel, run = str(Path(sys.executable).with_name("imel")), tmp_path / "run"
    process = subprocess.Popen([imel, *TRAIN, "--run-dir", str(run)], stderr=subprocess.PIPE)
    while not checkpoints_in(run / "checkpoints"):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    said = process.stderr.readline()
    for _ in range(3):
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    said += process.stderr.read()
    assert process.wait() == 130
    assert b"Traceback" not in said
    assert b"Exception ignored" not in said


# --- row 39 ---


def test_fault_39_that_no_episode_can_end_between_checkpoints_is_told_at_the_start(
    tmp_path: Path,
) -> None:
    given = model_on(gymnasium.make("Pendulum-v1"))
    told = r"no episode of 200 steps can end: .* every 128 steps of each; take one every 4 iter"
    with pytest.warns(RuntimeWarning, match=told):
        given.learn(64, RunCheckpoints(tmp_path, every=2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given.learn(64, RunCheckpoints(tmp_path, every=4))
        model_on("Pendulum-v1").learn(64, RunCheckpoints(tmp_path, every=1))
