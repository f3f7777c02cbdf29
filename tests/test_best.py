"""Evaluations during training: they change nothing, survive a kill, and keep the best model."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from stable_baselines3.common.vec_env import VecNormalize

from imel import RidgePolicy
from imel.cli.main import main
from imel.cli.report import latest_store
from imel.runs.evaluation import best_of
from small import points, small_model
from toy import FloatArray, PointEnv

ENV, DRAWING = "ImelBest-v0", "ImelDrawing-v0"
SMALL = ("--rollout-size", "128", "--memory-size", "256", "--critic-epochs", "1", "--n-envs", "4")


class DrawingEnv(PointEnv):
    """Draws its rewards' noise from the generators that all code of a process shares."""

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        noise = random.random() + np.random.random() + float(torch.rand(()))  # noqa: NPY002
        return observation, reward + noise, terminated, truncated, info


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    made: dict[str, Any] = {ENV: PointEnv, DRAWING: DrawingEnv}
    for name, entry_point in made.items():
        gym.register(name, entry_point=entry_point, disable_env_checker=True)
    yield
    del gym.registry[ENV], gym.registry[DRAWING]


def train(run: str, *flags: str, env: str = ENV) -> int:
    words = ("train", env, "--total-timesteps", "1280", "--run-dir", run, "--eval-episodes", "1")
    return main([*words, *SMALL, *flags])


def rows_of(run: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(Path(run, "evaluations.json").read_text())
    return rows


def same(one: Path, other: Path) -> bool:
    a, b = load_file(one), load_file(other)
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


@pytest.mark.parametrize("policy", ["ridge", "mki"])
def test_evaluations_change_nothing_about_what_is_learned(policy: str) -> None:
    for run, count in (("with", "5"), ("without", "0")):
        assert train(run, "--evaluations", count, "--policy", policy, env=DRAWING) == 0
    assert same(Path("with/model.safetensors"), Path("without/model.safetensors"))
    assert [row["timesteps"] for row in rows_of("with")] == [256, 512, 768, 1024, 1280]
    assert not Path("without/best.safetensors").exists()


def test_the_best_model_is_kept_named_and_played_if_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train("a run", "--evaluations", "5") == 0
    said = capsys.readouterr().out
    for words in ("'a run'/curve.png", "imel why 'a run'", "imel explore 'a run'", "--best"):
        assert words in said
    means = {row["timesteps"]: row["deterministic"]["mean"] for row in rows_of("a run")}
    best = max(means, key=lambda steps: (means[steps], steps))
    assert best_of(Path("a run")) == (best, means[best])
    assert main(["eval", "a run", "--best", "--episodes", "1", "--json"]) == 0
    played = json.loads(capsys.readouterr().out)
    assert (played["model"], played["timesteps"]) == ("a run/best.safetensors", best)

    Path("a run/evaluations.json").write_text('[{"timesteps": "many"}]')
    assert main(["plot", "a run"]) == 2
    assert "evaluations.json is not an evaluation" in capsys.readouterr().err


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


def test_a_model_says_what_it_is() -> None:
    model = small_model().learn(128)
    assert isinstance(model.policy, RidgePolicy)
    said = str(model).splitlines()
    assert said[0] == "IMeL with RidgePolicy on an unregistered environment, 4 environments"
    assert "learned 128 steps in 2 iterations; mean return" in said[2]
    assert f"128 of 128 memories, {len(model.policy.lessons)} lessons, sigma" in said[3]
    with pytest.warns(UserWarning, match="VecNormalize around the environment is not needed"):
        assert "MkiPolicy" in repr(small_model("MkiPolicy", VecNormalize(points())))


def test_a_report_without_a_path_is_of_the_store_filled_last() -> None:
    assert latest_store() == Path("results/paper")
    words = ("--tasks", "Pendulum-v1", "--algorithms", "random", "--seeds", "0", "--jobs", "1")
    assert main(["bench", *words, "--store", "mine/here"]) == 0
    assert latest_store() == Path("mine/here")
