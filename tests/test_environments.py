"""Environments that raise, die, hang or return no numbers: named, and survived if allowed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import faulty
from imel import IMeL, ImelError
from imel.cli.main import main
from imel.environments.making import Workers, make_copy, make_environments
from imel.errors import EnvironmentFaultError
from small import SMALL, differing

TOTAL = 6 * SMALL["rollout_size"]


def model_on(kind: str, workers: bool = False, **settings: Any) -> IMeL:
    settings = {**SMALL, "workers": workers, "worker_timeout": 3.0, **settings}
    return IMeL("RidgePolicy", f"faulty:{kind}-v0", seed=7, n_envs=4, **settings)


def closed(model: IMeL) -> None:
    assert model.env is not None
    model.env.close()
    assert not multiprocessing.active_children()


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    faulty.ARMED.unlink(missing_ok=True)
    faulty.ALWAYS.unlink(missing_ok=True)


STEP_5 = r"environment \d \(seed \d+\) raised in step 5 of its episode: "
RAISED = {
    "Raises": STEP_5 + "RuntimeError: the simulator broke",
    "Raises-In-Reset": r"environment \d \(seed \d+\) raised in reset 0 .*OSError: no such",
    "Exits": STEP_5 + "SystemExit: 3",
    "Base": STEP_5 + "BaseException: beyond all bounds",
    "Scalar": STEP_5 + r"ValueError: an observation of shape \(\), not \(2,\)",
    "Wide": STEP_5 + r"ValueError: an observation of shape \(2, 2\), not \(2,\)",
    "Nan": r"environment \d returned a non-finite reward nan at step 4 of episode \d+",
    "Large": r"returned a too large reward 3\.0.*e\+38 at step 4",
}
LOST = {  # faults that would take this process with them happen in another one
    "Dies": r"the process of environment \d \(seed \d+\) ended during a step",
    "Hangs": r"the process of environment \d \(seed \d+\) did not answer to a step within 3 s",
}


@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        *((kind, False) for kind in RAISED),
        *((kind, True) for kind in ("Raises-In-Reset", "Exits", "Wide", *LOST)),
    ],
)
def test_fault_32_33_34_35_a_fault_ends_the_run_and_is_named(kind: str, workers: bool) -> None:
    model = model_on(kind, workers)
    faulty.ARMED.touch()
    with pytest.raises(EnvironmentFaultError, match={**RAISED, **LOST}[kind]):
        model.learn(TOTAL)
    closed(model)
    assert not faulty.ARMED.exists()


@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        *((kind, False) for kind in ("Raises", "Raises-In-Reset", "Nan", "Large")),
        *(("Exits", True), ("Dies", True), ("Hangs", True)),
    ],
)
def test_fault_32_34_35_a_fault_is_survived_if_allowed(kind: str, workers: bool) -> None:
    model = model_on(kind, workers, max_faults=1)
    faulty.ARMED.touch()
    with pytest.warns(RuntimeWarning, match="fault 1 of 1 that are survived"):
        model.learn(TOTAL)
    closed(model)
    assert model.learner.faults == 1
    assert model.num_timesteps >= TOTAL
    assert all(bool(t.isfinite().all()) for t in model.policy.state_dict().values())
    # Episodes of the dropped batch have ids below those that were started after it
    assert int(model.policy.memory.column("episodes").min()) > 3


def test_faults_without_end_end_the_run() -> None:
    model = model_on("Raises", max_faults=3)
    faulty.ALWAYS.touch()
    with (
        pytest.warns(RuntimeWarning, match="fault 3 of 3"),
        pytest.raises(EnvironmentFaultError, match="raised in step 5"),
    ):
        model.learn(TOTAL)
    assert (model.learner.faults, model.iteration) == (4, 0)


def test_an_episode_that_ends_in_a_fault_is_not_remembered_from_before() -> None:
    # Batches of 4 steps in 4 environments: an episode of 12 steps is spread over three of them
    model = model_on("Nan", rollout_size=16, max_faults=1).learn(16)
    memory, running = model.policy.memory, model.learner.clock.episodes.tolist()
    assert set(memory.column("episodes").tolist()) == set(running)
    faulty.ARMED.touch()
    with pytest.warns(RuntimeWarning, match=rf"of episode {running[0]}"):
        model.learn(16, reset_num_timesteps=False)
    remembered = set(memory.column("episodes").tolist())
    assert remembered & set(running) == set(running[1:])
    memory.forget_episodes(memory.column("episodes").clone())  # the prior context comes instead
    model.learn(TOTAL, reset_num_timesteps=False)
    assert not memory.holds_prior
    assert np.isfinite(model.predict(np.zeros(2, dtype=np.float32))[0]).all()


def test_workers_learn_bit_for_bit_what_one_process_learns() -> None:
    here, there = (model_on("Nan", workers).learn(TOTAL) for workers in (False, True))
    assert isinstance(there.env, Workers)
    closed(there)
    assert not differing(here.learner.tensors(), there.learner.tensors())


def test_an_environment_is_brought_where_another_one_was() -> None:
    env, other = (make_copy("Pendulum-v1", index) for index in range(2))
    actions = np.random.default_rng(0).uniform(-2, 2, (250, 1)).astype(np.float32)
    env.reset(seed=7)
    for action in actions:  # 50 of them in an episode that no seed has begun
        observation, _, _, truncated, _ = env.step(action)
        if truncated:
            env.reset()
    env.mark()
    past = env.past()
    assert past is not None
    np.testing.assert_array_equal(past.actions, actions[200:])
    np.testing.assert_array_equal(other.play_again(past), observation)
    # The episode's return will be the same as well
    assert other.get_wrapper_attr("rewards") == env.get_wrapper_attr("rewards")
    np.testing.assert_array_equal(other.step(actions[0])[0], env.step(actions[0])[0])
    np.testing.assert_array_equal(other.play_again(past), observation)  # the mark stays
    env.reset(options={"x_init": 0.1})
    env.mark()
    assert env.past() is None


@pytest.mark.parametrize("workers", [False, True])
@pytest.mark.parametrize("name", ["NoSuchEnv-v0", "no_such_module:Env-v0"])
def test_an_environment_that_cannot_be_made_is_named(name: str, workers: bool) -> None:
    with pytest.raises(ImelError, match=f"cannot make environment '{name}'") as refusal:
        make_environments(name, 2, workers)
    assert "\n" not in str(refusal.value)


def test_fault_32_the_command_names_it_and_saves_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty.ARMED.touch()
    flags = ["--rollout-size", "16", "--n-envs", "4", "--total-timesteps", "400"]
    run = tmp_path / "run"
    assert main(["train", "faulty:Exits-v0", *flags, "--run-dir", str(run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "raised in step 5 of its episode: SystemExit: 3" in line
    assert f"is in {run / 'model.safetensors'}" in line
    IMeL.load(run / "model.safetensors")


def test_mujoco_says_a_warning_once_and_writes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("imel.environments.making._said", set())
    environments = make_environments("HalfCheetah-v5", 3)
    environments.reset()
    simulator = environments.envs[0].unwrapped  # type: ignore[attr-defined]
    simulator.data.qvel[:] = 1e200
    for _ in range(3):
        simulator.do_simulation(np.zeros(6), 1)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("MuJoCo")]
    assert len(said) == len(set(said))
    assert any("unstable" in line for line in said)
    assert not list(tmp_path.iterdir())
