"""IMeL in RL Baselines3 Zoo: its scripts train, play, plot and continue it by their own rules."""

from __future__ import annotations

import json
import os
import re
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
from imel.policies.paper.paper_policy import FitSettings
from imel.settings import parse_schedule
from imel.zoo import HYPERPARAMETERS, __main__
from small import FITTED, POLICIES, differing, points, small_model, tensors_of

ENV = "Pendulum-v1"
STEPS = 1600
WHAT = ("--algo", "imel", "--env", ENV)
TINY = ("rollout_size:400", "memory_size:800", "critic_epochs:1")

# Several scripts in one process, for it is the imports that take long; a figure that would be
# shown is written down as numbers
SCRIPT = """
import json, sys
from pathlib import Path
import matplotlib.pyplot as plt
from imel.zoo.__main__ import run

def show():
    lines = [line.get_xydata().tolist() for axes in plt.gcf().axes for line in axes.lines]
    Path("lines.json").write_text(json.dumps(lines))

plt.show = show
for words in json.loads(sys.argv[1]):
    print("script:", words[0])
    run(*words)
"""


def python(*words: str, cwd: Path) -> str:
    """What a Python process prints; it has to end well."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    command = [sys.executable, *words]
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "RuntimeWarning" not in result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The zoo's log folder after a small training from the command line."""
    folder = tmp_path_factory.mktemp("zoo")
    python(
        *("-m", "imel.zoo", "train", *WHAT, "--seed", "3", "-n", str(STEPS), "--verbose", "0"),
        *("--eval-freq", "800", "--eval-episodes", "2", "--save-freq", "800"),
        *("-params", *TINY),
        cwd=folder,
    )
    return folder / "logs"


@pytest.fixture(scope="module")
def printed(logs: Path) -> dict[str, str]:
    """What the other scripts print about that training, by their names."""
    scripts = [
        ["enjoy", *WHAT, "-f", "logs", "--no-render", "-n", "200", "--seed", "5"],
        ["plot_train", "-a", "imel", "-e", ENV, "-f", "logs", "-w", "1"],
        ["all_plots", "-a", "imel", "-e", ENV, "-f", "logs", "--no-display"],
        ["train", *WHAT, "-i", f"logs/imel/{ENV}_1/{ENV}.zip", "-f", "more", "--eval-freq", "-1"],
    ]
    scripts[-1] += ["-n", "400", "-params", "trust_region:0.3", *TINY]
    output = python("-c", SCRIPT, json.dumps(scripts), cwd=logs.parent)
    parts = re.split(r"^script: (\w+)\n", output, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture
def folder(logs: Path) -> Path:
    return logs / "imel" / f"{ENV}_1"


def test_the_zoo_trains_and_saves_a_model_as_the_file_says(folder: Path) -> None:
    assert len(list(folder.glob("*.monitor.csv"))) == 8
    assert load_results(str(folder)).l.sum() == STEPS
    config = yaml.unsafe_load((folder / ENV / "config.yml").read_text())
    assert (config["n_envs"], config["policy"]) == (8, "RidgePolicy")
    model = IMeL.load(folder / f"{ENV}.safetensors")
    assert (model.num_timesteps, model.settings.rollout_size) == (STEPS, 400)
    for name in (ENV, "best_model", "rl_model_800_steps"):
        assert (folder / f"{name}.zip").resolve() == (folder / f"{name}.safetensors").resolve()


def test_enjoy_plays_the_saved_model(folder: Path, printed: dict[str, str]) -> None:
    env = make_vec_env(ENV, seed=5)
    (total,), _ = evaluate_policy(
        IMeL.load(folder / f"{ENV}.zip"), env, 1, return_episode_rewards=True
    )
    assert f"Episode Reward: {total:.2f}\n" in printed["enjoy"]


def test_the_plots_are_of_every_episode_and_the_last_evaluation(
    logs: Path, folder: Path, printed: dict[str, str]
) -> None:
    (line,) = json.loads((logs.parent / "lines.json").read_text())
    episodes = load_results(str(folder))
    np.testing.assert_allclose(line, np.c_[episodes.l.cumsum(), episodes.r])
    last = np.load(folder / "evaluations.npz")["results"][-1].mean()
    assert f"|{ENV} |{last:.0f} +/- 0|" in printed["all_plots"]


def test_training_goes_on_from_a_saved_model(
    logs: Path, folder: Path, printed: dict[str, str]
) -> None:
    before = IMeL.load(folder / f"{ENV}.zip")
    after = IMeL.load(logs.parent / "more" / "imel" / f"{ENV}_1" / f"{ENV}.zip")
    assert "Loading pretrained agent" in printed["train"]
    assert after.iteration == before.iteration + 1
    assert after.policy.normaliser.count == before.policy.normaliser.count + 400
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


def rate_of(model: IMeL) -> float | str:
    assert isinstance(model.settings, FitSettings)
    return model.settings.learning_rate


@pytest.mark.parametrize(
    ("given", "rates"), [(ConstantSchedule, [2e-3] * 3), (SimpleLinearSchedule, [2e-3, 1e-3, 0.0])]
)
def test_the_zoos_schedules_become_plain_data(
    given: type[Any], rates: list[float], tmp_path: Path
) -> None:
    zoo_model(learning_rate=given(2e-3)).save(tmp_path / "model")
    schedule = parse_schedule("learning_rate", rate_of(IMeL.load(tmp_path / "model")))
    assert [schedule(left) for left in (1.0, 0.5, 0.0)] == pytest.approx(rates, abs=1e-8)


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
