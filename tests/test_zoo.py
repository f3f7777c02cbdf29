"""IMeL in RL Baselines3 Zoo: its scripts train, play, plot and continue it by their own rules."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from rl_zoo3.utils import SimpleLinearSchedule
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import load_results
from stable_baselines3.common.utils import ConstantSchedule

from imel import IMeL, zoo
from imel.bench.tasks import TASKS
from imel.settings import parse_schedule
from imel.zoo import HYPERPARAMETERS, __main__
from small import FITTED, POLICIES, differing, points, small_model, tensors_of

ENV = "Pendulum-v1"
STEPS = 1600
WHAT = ("--algo", "imel", "--env", ENV)
TINY = ("rollout_size:400", "memory_size:800", "critic_epochs:1")


def python(*words: str, cwd: Path) -> str:
    """What a Python process prints; it has to end well."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    command = [sys.executable, *words]
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "RuntimeWarning" not in result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The zoo's folder of a small training from the command line."""
    cwd = tmp_path_factory.mktemp("zoo")
    python(
        *("-m", "imel.zoo", "train", *WHAT, "--seed", "3", "-n", str(STEPS), "--verbose", "0"),
        *("--eval-freq", "800", "--eval-episodes", "2", "--save-freq", "800"),
        *("-params", *TINY),
        cwd=cwd,
    )
    return cwd / "logs" / "imel" / f"{ENV}_1"


def test_the_zoo_trains_and_saves_a_model_as_the_file_says(folder: Path) -> None:
    assert len(list(folder.glob("*.monitor.csv"))) == 8
    assert load_results(str(folder)).l.sum() == STEPS
    config = yaml.unsafe_load((folder / ENV / "config.yml").read_text())
    assert (config["n_envs"], config["policy"]) == (8, "RidgePolicy")
    model = IMeL.load(folder / f"{ENV}.safetensors")
    assert (model.num_timesteps, model.settings.rollout_size) == (STEPS, 400)
    for name in (ENV, "best_model", "rl_model_800_steps"):
        assert (folder / f"{name}.zip").resolve() == (folder / f"{name}.safetensors").resolve()


def test_the_saved_model_is_played_plotted_and_trained_on(folder: Path) -> None:
    saved = f"logs/imel/{ENV}_1/{ENV}.zip"
    scripts = [
        ["enjoy", *WHAT, "-f", "logs", "--no-render", "-n", "200", "--seed", "5"],
        ["plot_train", "-a", "imel", "-e", ENV, "-f", "logs", "-w", "1"],
        ["all_plots", "-a", "imel", "-e", ENV, "-f", "logs", "--no-display"],
        ["train", *WHAT, "-i", saved, "-f", "more", "--eval-freq", "-1", "-n", "400", "-params"],
    ]
    scripts[-1] += ["trust_region:0.3", *TINY]
    # All in one process, for it is the imports that take long
    code = f"from imel.zoo.__main__ import run\nfor words in {scripts}: run(*words)"
    cwd = folder.parent.parent.parent
    printed, model = python("-c", code, cwd=cwd), IMeL.load(cwd / saved)

    env = make_vec_env(ENV, seed=5)
    total, _ = evaluate_policy(model, env, 1)
    assert f"Episode Reward: {total:.2f}\n" in printed
    last = np.load(folder / "evaluations.npz")["results"][-1].mean()
    assert f"|{ENV} |{last:.0f} +/- 0|" in printed
    assert "Loading pretrained agent" in printed
    after = IMeL.load(cwd / "more" / "imel" / f"{ENV}_1" / f"{ENV}.zip")
    assert after.iteration == model.iteration + 1
    assert after.policy.normaliser.count == model.policy.normaliser.count + 400
    assert after.settings.as_json()["trust_region"] == 0.3


# --- hyperparameters ---


def test_the_file_has_valid_settings_one_default_and_the_steps_of_the_benchmark() -> None:
    entries: dict[str, dict[str, Any]] = yaml.safe_load(HYPERPARAMETERS.read_text())
    steps = {env_id: entry.pop("n_timesteps") for env_id, entry in entries.items()}
    policy = POLICIES[entries["default"]["policy"]]
    settings = {k: v for k, v in entries["default"].items() if k != "policy"}
    assert policy.Settings().updated(settings).n_envs == settings["n_envs"]
    for env_id, entry in entries.items():
        assert entry == entries["default"]
        assert env_id == "default" or gymnasium.spec(env_id)
    assert all(steps[task.env_id] == task.steps for task in TASKS.values())


@pytest.mark.parametrize("given", ["--algo imel", "--algo=imel -conf mine.yml", "--algo ppo", ""])
def test_the_file_is_used_for_imel_before_the_users_own_arguments(given: str) -> None:
    own = ["--conf-file", str(HYPERPARAMETERS)] if "imel" in given else []
    assert __main__.with_hyperparameters(given.split()) == [*own, *given.split()]


# --- the zoo's way to make, save and load ---


def zoo_model(**arguments: Any) -> zoo.IMeL:
    return zoo.IMeL("MkiPolicy", points(), seed=0, **{**FITTED, **arguments})


def rate_of(model: IMeL) -> Any:
    return model.settings.as_json()["learning_rate"]


def test_the_zoos_schedules_become_plain_data(tmp_path: Path) -> None:
    for given, expected in (
        (ConstantSchedule, [2e-3] * 3),
        (SimpleLinearSchedule, [2e-3, 1e-3, 0]),
    ):
        zoo_model(learning_rate=given(2e-3)).save(tmp_path / "model")
        schedule = parse_schedule("learning_rate", rate_of(IMeL.load(tmp_path / "model")))
        assert [schedule(left) for left in (1.0, 0.5, 0.0)] == pytest.approx(expected, abs=1e-8)


def test_a_model_saved_again_keeps_its_second_name(tmp_path: Path) -> None:
    model, path = zoo_model(), tmp_path / "model.zip"
    for steps in (64, 128):
        model.learn(64, reset_num_timesteps=False)
        model.save(path)
        loaded = zoo.IMeL.load(path, custom_objects={"learning_rate": 0.0}, device="cpu", seed=1)
        assert loaded.num_timesteps == steps
        assert rate_of(loaded) == rate_of(model)


def test_a_seed_given_when_loading_starts_random_numbers_anew(tmp_path: Path) -> None:
    model = small_model().learn(64)
    model.save(tmp_path / "model")
    loaded = [IMeL.load(tmp_path / "model", seed=seed) for seed in (7, 7, None)]
    assert [each.seed for each in loaded] == [7, 7, 0]
    first, again, other = (torch.rand(1, generator=each.learner.generator) for each in loaded)
    assert first == again != other
    actions = [each.predict(np.zeros((9, 2)))[0] for each in loaded]
    np.testing.assert_array_equal(actions[0], actions[1])
    assert not np.array_equal(actions[0], actions[2])
    assert differing(tensors_of(loaded[0]), tensors_of(model)) == []


# --- the command ---


@pytest.mark.filterwarnings("ignore:'imel.zoo.__main__' found")
@pytest.mark.parametrize(
    ("missing", "words", "message"),
    [
        ("", ["trian"], "unknown script 'trian'; did you mean 'train'?"),
        ("", [], f"unknown script ''; valid names: {', '.join(sorted(__main__.SCRIPTS))}"),
        ("rl_zoo3", ["train"], "rl_zoo3 is not installed: pip install 'imel[zoo]'"),
        ("seaborn", ["plot_train"], "seaborn is not installed: pip install 'imel[zoo]'"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(
    missing: str,
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["imel.zoo", *words])
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as end:
        runpy.run_module("imel.zoo", run_name="__main__")
    assert end.value.code == 2
    assert capsys.readouterr().err == f"imel.zoo: error: {message}\n"
