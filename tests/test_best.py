"""Evaluations during training: they change nothing, survive a kill, and keep the best model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file
from stable_baselines3.common.vec_env import VecNormalize

from imel import IMeL, RidgePolicy
from imel.cli.main import main
from imel.cli.report import latest_store
from imel.runs.evaluation import best_of, evaluate
from small import points, small_model
from toy import PointEnv

ENV = "ImelBest-v0"
SMALL = ("--rollout-size", "128", "--memory-size", "256", "--critic-epochs", "1", "--n-envs", "4")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    gym.register(ENV, entry_point=lambda **_: PointEnv(), disable_env_checker=True)
    yield
    del gym.registry[ENV]


def train(run: str, *flags: str, policy: str = "ridge", steps: str = "1280") -> int:
    words = ("train", ENV, "--policy", policy, "--total-timesteps", steps, "--run-dir", run)
    return main([*words, "--eval-episodes", "1", *SMALL, *flags])


def rows_of(run: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(Path(run, "evaluations.json").read_text())
    return rows


def same(one: Path, other: Path) -> bool:
    a, b = load_file(one), load_file(other)
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


@pytest.mark.parametrize("policy", ["ridge", "mki"])
def test_evaluations_change_nothing_about_what_is_learned(policy: str) -> None:
    assert train("with", "--evaluations", "5", policy=policy) == 0
    assert train("without", "--evaluations", "0", policy=policy) == 0
    assert same(Path("with/model.safetensors"), Path("without/model.safetensors"))
    assert [row["timesteps"] for row in rows_of("with")] == [256, 512, 768, 1024, 1280]
    assert not Path("without/best.safetensors").exists()


def test_the_best_model_is_the_one_that_was_evaluated_best() -> None:
    assert train("run", "--evaluations", "5") == 0
    means = {row["timesteps"]: row["deterministic"]["mean"] for row in rows_of("run")}
    best = max(means, key=lambda steps: (means[steps], steps))
    model = IMeL.load("run/best.safetensors")
    assert model.num_timesteps == best
    assert best_of(Path("run")) == (best, means[best])
    played = evaluate(model.policy, ENV, 5, rows_of("run")[0]["seed"])
    assert np.mean(played.returns) == means[best]


def test_a_resumed_run_has_the_evaluations_of_the_uninterrupted_one_and_reads_each_file_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: Counter[str] = Counter()

    def counted(path: Path, framework: str) -> Any:
        read[path.name] += 1
        return safe_open(path, framework)

    often = ("--evaluations", "5", "--checkpoint-every", "2", "--checkpoints-kept", "9")
    assert train("whole", *often) == 0
    assert train("killed", *often) == 0
    for path in sorted(Path("killed/checkpoints").glob("*"))[2:]:  # as if killed after step 512
        path.unlink()
    Path("killed/model.safetensors").unlink()
    with monkeypatch.context() as patch:
        patch.setattr("imel.checkpoints.checkpoint.safe_open", counted)
        assert main(["resume", "killed"]) == 0
    assert read.pop("best.safetensors") >= 1
    assert read == {"iteration-00000004.safetensors": 1}
    assert rows_of("killed") == rows_of("whole")
    for name in ("model", "best"):
        assert same(Path(f"killed/{name}.safetensors"), Path(f"whole/{name}.safetensors"))


def test_eval_plays_the_best_model_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("run", "--evaluations", "1") == 0
    IMeL.load("run/best.safetensors").save("run/model")
    Path("run/best.safetensors").write_bytes(Path("run/model.safetensors").read_bytes())
    capsys.readouterr()
    assert main(["eval", "run", "--best", "--episodes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "run/best.safetensors"


def test_damaged_evaluations_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("run", "--evaluations", "1") == 0
    Path("run/evaluations.json").write_text('[{"timesteps": "many"}]')
    capsys.readouterr()
    assert main(["plot", "run"]) == 2
    assert "evaluations.json is not an evaluation" in capsys.readouterr().err


def test_the_end_of_a_run_says_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("a run", "--evaluations", "1") == 0
    said = capsys.readouterr().out
    for words in ("'a run'/curve.png", "imel why 'a run'", "imel explore 'a run'", "--best"):
        assert words in said


def test_a_model_says_what_it_is() -> None:
    model = small_model()
    model.learn(128)
    assert isinstance(model.policy, RidgePolicy)
    said = str(model).splitlines()
    assert said[0] == "IMeL with RidgePolicy on an unregistered environment, 4 environments"
    assert "learned 128 steps in 2 iterations; mean return" in said[2]
    assert f"128 of 128 memories, {len(model.policy.lessons)} lessons, sigma" in said[3]
    assert "MkiPolicy" in repr(small_model("MkiPolicy"))


def test_normalising_outside_is_hinted_at() -> None:
    with pytest.warns(UserWarning, match="VecNormalize around the environment is not needed"):
        small_model(env=VecNormalize(points()))


def test_a_report_without_a_path_is_of_the_store_filled_last() -> None:
    assert latest_store() == Path("results/paper")
    words = ("--tasks", "Pendulum-v1", "--algorithms", "random", "--seeds", "0", "--jobs", "1")
    assert main(["bench", *words, "--store", "mine/here"]) == 0
    assert latest_store() == Path("mine/here")
