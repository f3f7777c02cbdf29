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
from imel.environments.making import make_environments
from imel.environments.workers import Workers
from imel.errors import EnvironmentFaultError
from small import SMALL, differing

TOTAL = 6 * SMALL["rollout_size"]


def model_on(kind: str, **settings: Any) -> IMeL:
    return IMeL("RidgePolicy", f"faulty:{kind}-v0", seed=7, n_envs=4, **{**SMALL, **settings})


def in_workers(kind: str) -> dict[str, Any]:
    """Faults that would take this process with them happen in another one."""
    return {"workers": True, "worker_timeout": 3.0} if kind in ("Dies", "Hangs") else {}


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    faulty.ARMED.unlink(missing_ok=True)
    faulty.ALWAYS.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("Raises", r"environment 0 \(seed \d+\) raised in step 5 of its episode: RuntimeError"),
        ("Raises-In-Reset", r"environment 0 \(seed \d+\) raised in reset 0 .*OSError: no such"),
        ("Dies", r"the process of environment \d \(seed \d+\) ended during a step"),
        ("Hangs", r"environment \d \(seed \d+\) did not answer to a step within 3 s"),
        ("Nan", r"environment 0 returned a non-finite reward nan at step 4 of episode \d+"),
    ],
)
def test_a_fault_ends_the_run_and_is_named(kind: str, message: str) -> None:
    model = model_on(kind, **in_workers(kind))
    faulty.ARMED.touch()
    assert model.env is not None
    with pytest.raises(EnvironmentFaultError, match=message):
        model.learn(TOTAL)
    model.env.close()
    assert not faulty.ARMED.exists()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("kind", ["Raises", "Raises-In-Reset", "Dies", "Hangs", "Nan"])
def test_a_fault_is_survived_if_allowed(kind: str) -> None:
    model = model_on(kind, max_faults=1, **in_workers(kind))
    faulty.ARMED.touch()
    assert model.env is not None
    with pytest.warns(RuntimeWarning, match="fault 1 of 1 that are survived"):
        model.learn(TOTAL)
    model.env.close()
    assert model.faults == 1
    assert model.num_timesteps >= TOTAL
    assert all(bool(t.isfinite().all()) for t in model.policy.state_dict().values())
    # Episodes of the dropped batch have ids below those that were started after it
    assert int(model.policy.memory.column("episodes").min()) > 3
    assert not multiprocessing.active_children()


def test_faults_without_end_end_the_run() -> None:
    model = model_on("Raises", max_faults=3)
    faulty.ALWAYS.touch()
    with (
        pytest.warns(RuntimeWarning, match="fault 3 of 3"),
        pytest.raises(EnvironmentFaultError, match="raised in step 5"),
    ):
        model.learn(TOTAL)
    assert model.faults == 4
    assert model.iteration == 0


def test_an_episode_that_ends_in_a_fault_is_not_remembered_from_before() -> None:
    # Batches of 4 steps in 4 environments: an episode of 12 steps is spread over three of them
    model = model_on("Nan", rollout_size=16, max_faults=1)
    model.learn(16)
    running = model.clock.episodes.copy()
    remembered = set(model.policy.memory.column("episodes").tolist())
    assert remembered == set(running.tolist())
    faulty.ARMED.touch()
    with pytest.warns(RuntimeWarning, match=rf"of episode {running[0]}"):
        model.learn(16, reset_num_timesteps=False)
    assert int(running[0]) not in model.policy.memory.column("episodes").tolist()
    assert set(running[1:].tolist()) <= set(model.policy.memory.column("episodes").tolist())


def test_nothing_remembered_is_replaced_by_the_prior_context() -> None:
    model = model_on("Nan", max_faults=1)
    faulty.ARMED.touch()
    model.policy.memory.forget_episodes(model.policy.memory.column("episodes").clone())
    assert len(model.policy.memory) == 0
    with pytest.warns(RuntimeWarning):
        model.learn(TOTAL)
    assert not model.policy.memory.holds_prior
    assert np.isfinite(model.predict(np.zeros(2, dtype=np.float32))[0]).all()


def test_workers_learn_bit_for_bit_what_one_process_learns() -> None:
    here, there = (model_on("Nan", workers=workers).learn(TOTAL) for workers in (False, True))
    assert isinstance(there.env, Workers)
    there.env.close()
    assert not differing(here.learner.tensors(), there.learner.tensors())


@pytest.mark.parametrize("workers", [False, True])
@pytest.mark.parametrize("name", ["NoSuchEnv-v0", "no_such_module:Env-v0"])
def test_an_environment_that_cannot_be_made_is_named(name: str, workers: bool) -> None:
    with pytest.raises(ImelError, match=f"cannot make environment '{name}'"):
        make_environments(name, 2, workers)


@pytest.mark.parametrize("workers", [False, True], ids=["in this process", "in workers"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("Exits", "SystemExit: 3"),
        ("Base", "BaseException: beyond all bounds"),
        ("Raises", "RuntimeError: the simulator broke"),
        ("Scalar", r"ValueError: an observation of shape \(\), not \(2,\)"),
        ("Wide", r"ValueError: an observation of shape \(2, 2\), not \(2,\)"),
    ],
)
def test_fault_32_33_34_a_fault_of_any_kind_is_named_with_environment_seed_and_step(
    kind: str, message: str, workers: bool
) -> None:
    model = model_on(kind, workers=workers)
    faulty.ARMED.touch()
    assert model.env is not None
    where = r"environment \d \(seed \d+\) raised in step 5 of its episode: "
    with pytest.raises(EnvironmentFaultError, match=where + message):
        model.learn(TOTAL)
    model.env.close()


@pytest.mark.parametrize("kind", ["Exits", "Scalar"])
def test_fault_32_34_such_a_fault_is_survived_if_allowed(kind: str) -> None:
    model = model_on(kind, workers=True, max_faults=1)
    faulty.ARMED.touch()
    with pytest.warns(RuntimeWarning, match="fault 1 of 1 that are survived"):
        model.learn(TOTAL)
    assert model.env is not None
    model.env.close()
    assert model.num_timesteps >= TOTAL


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


def test_fault_35_a_reward_whose_sums_overflow_never_reaches_the_model() -> None:
    model = model_on("Large", max_faults=1)
    faulty.ARMED.touch()
    with pytest.warns(RuntimeWarning, match=r"returned a too large reward 3\.0.*e\+38 at step 4"):
        model.learn(TOTAL)
    tensors = model.learner.tensors()
    assert all(bool(t.isfinite().all()) for n, t in tensors.items() if "spaces" not in n)


def test_mujoco_says_a_warning_once_and_writes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("imel.environments.simulators._said", set())
    environments = make_environments("HalfCheetah-v5", 3)
    environments.reset()
    environments.envs[0].unwrapped.data.qvel[:] = 1e200  # type: ignore[attr-defined]
    for _ in range(3):
        environments.envs[0].unwrapped.do_simulation(np.zeros(6), 1)  # type: ignore[attr-defined]
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("MuJoCo")]
    assert len(said) == len(set(said))
    assert any("unstable" in line for line in said)
    assert not list(tmp_path.iterdir())
