"""IMeL in RL Baselines3 Zoo: its scripts train, play, plot and continue it by their own rules."""

from __future__ import annotations

import json
import os
import re
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
from stable_baselines3.common.monitor import load_results
from stable_baselines3.common.utils import ConstantSchedule

from imel import IMeL
from imel.bench.tasks import TASKS
from imel.policies.paper.paper_policy import FitSettings
from imel.settings import parse_schedule
from imel.zoo import HYPERPARAMETERS, __main__, algorithm
from small import FITTED, POLICIES, answers, points, small_model, tensors_of

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
    run(words)
"""


def python(*words: str, cwd: Path) -> str:
    """What a Python process prints; it has to end well."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    result = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
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
    play = ["enjoy", *WHAT, "-f", "logs", "--no-render", "-n", "200", "--seed", "5"]
    scripts = [
        play,
        ["plot_train", "-a", "imel", "-e", ENV, "-f", "logs", "-w", "1"],
        ["all_plots", "-a", "imel", "-e", ENV, "-f", "logs", "--no-display"],
        [
            *("train", *WHAT, "-i", f"logs/imel/{ENV}_1/{ENV}.zip", "-f", "more"),
            *("--eval-freq", "-1", "-n", "400", "-params", "trust_region:0.3", *TINY),
        ],
    ]
    output = python("-c", SCRIPT, json.dumps(scripts), cwd=logs.parent)
    parts = re.split(r"^script: (\w+)\n", output, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture
def folder(logs: Path) -> Path:
    return logs / "imel" / f"{ENV}_1"


def test_the_zoo_trains_on_as_many_environments_as_the_file_says(folder: Path) -> None:
    assert len(list(folder.glob("*.monitor.csv"))) == 8
    assert load_results(str(folder)).l.sum() == STEPS
    config = yaml.unsafe_load((folder / ENV / "config.yml").read_text())
    assert config["n_envs"] == 8
    assert config["policy"] == "RidgePolicy"


def test_what_the_zoo_saved_is_the_trained_model(folder: Path) -> None:
    model = IMeL.load(folder / f"{ENV}.safetensors")
    assert model.num_timesteps == STEPS
    assert model.settings.rollout_size == 400
    for name in (ENV, "best_model", "rl_model_800_steps"):
        assert (folder / f"{name}.zip").resolve() == (folder / f"{name}.safetensors").resolve()


def test_enjoy_plays_the_saved_model(folder: Path, printed: dict[str, str]) -> None:
    model = IMeL.load(folder / f"{ENV}.zip")
    env = make_vec_env(ENV, seed=5)
    observation, total, done = env.reset(), 0.0, False
    while not done:
        action, _ = model.predict(observation, deterministic=True)  # type: ignore[arg-type]
        observation, rewards, dones, _ = env.step(action)
        total, done = total + float(rewards[0]), bool(dones[0])

    assert f"Episode Reward: {total:.2f}\n" in printed["enjoy"]


def test_plot_train_draws_every_episode(logs: Path, folder: Path, printed: dict[str, str]) -> None:
    (line,) = json.loads((logs.parent / "lines.json").read_text())
    episodes = load_results(str(folder))
    np.testing.assert_allclose(line, np.c_[episodes.l.cumsum(), episodes.r])
    assert "plot_train" in printed


def test_all_plots_tabulates_the_last_evaluation(folder: Path, printed: dict[str, str]) -> None:
    last = np.load(folder / "evaluations.npz")["results"][-1].mean()
    assert f"|{ENV} |{last:.0f} +/- 0|" in printed["all_plots"]


def test_training_goes_on_from_a_saved_model(
    logs: Path, folder: Path, printed: dict[str, str]
) -> None:
    before, after = (
        IMeL.load(place / f"{ENV}.zip")
        for place in (folder, logs.parent / "more" / "imel" / f"{ENV}_1")
    )
    assert "Loading pretrained agent" in printed["train"]
    assert after.iteration == before.iteration + 1
    assert after.policy.normaliser.count == before.policy.normaliser.count + 400
    assert after.settings.as_json()["trust_region"] == 0.3


# --- hyperparameters ---


@pytest.fixture(scope="module")
def hyperparameters() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = yaml.safe_load(HYPERPARAMETERS.read_text())
    return loaded


def test_every_entry_of_the_file_is_a_valid_model(hyperparameters: dict[str, Any]) -> None:
    for env_id, entry in hyperparameters.items():
        settings = dict(entry)
        policy = POLICIES[settings.pop("policy")]
        assert settings.pop("n_timesteps") > 0
        assert policy.Settings().updated(settings).n_envs == settings["n_envs"]
        assert env_id == "default" or gymnasium.spec(env_id)


def test_the_file_has_the_tasks_of_the_benchmark_with_their_steps(
    hyperparameters: dict[str, Any],
) -> None:
    for task in TASKS.values():
        assert hyperparameters[task.env_id]["n_timesteps"] == task.steps
        # One default for all of them
        others = {**hyperparameters[task.env_id], "n_timesteps": 0}
        assert others == {**hyperparameters["default"], "n_timesteps": 0}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--algo", "imel"], ["--algo", "imel", "--conf-file", str(HYPERPARAMETERS)]),
        (
            ["--algo=imel", "-n", "9"],
            ["--algo=imel", "-n", "9", "--conf-file", str(HYPERPARAMETERS)],
        ),
        (["--algo", "imel", "-conf", "mine.yml"], ["--algo", "imel", "-conf", "mine.yml"]),
        (["--algo", "ppo"], ["--algo", "ppo"]),
        ([], []),
    ],
)
def test_the_file_is_used_for_imel_unless_another_is_named(
    arguments: list[str], expected: list[str]
) -> None:
    assert __main__.with_hyperparameters(arguments) == expected


# --- the zoo's way to make, save and load ---


def zoo_model(**arguments: Any) -> algorithm.IMeL:
    return algorithm.IMeL("MkiPolicy", points(), seed=0, **{**FITTED, **arguments})


def rate_of(model: IMeL) -> float | str:
    assert isinstance(model.settings, FitSettings)
    return model.settings.learning_rate


def test_the_zoos_schedules_become_plain_data(tmp_path: Path) -> None:
    constant = zoo_model(learning_rate=ConstantSchedule(2e-3))
    linear = zoo_model(learning_rate=SimpleLinearSchedule(2e-3))
    constant.save(tmp_path / "constant")
    linear.save(tmp_path / "linear")

    assert rate_of(IMeL.load(tmp_path / "constant")) == 2e-3
    schedule = parse_schedule("learning_rate", rate_of(IMeL.load(tmp_path / "linear")))
    assert [schedule(left) for left in (1.0, 0.5, 0.0)] == pytest.approx(
        [2e-3, 1e-3, 0.0], abs=1e-8
    )


def test_a_model_saved_again_keeps_its_second_name(tmp_path: Path) -> None:
    model = zoo_model()
    for steps in (64, 128):
        model.learn(64, reset_num_timesteps=False)
        model.save(tmp_path / "model.zip")
        loaded = algorithm.IMeL.load(
            tmp_path / "model.zip", custom_objects={"learning_rate": 0.0}, device="cpu", seed=1
        )
        assert loaded.num_timesteps == steps
        assert rate_of(loaded) == rate_of(model)


def test_a_seed_given_when_loading_starts_random_numbers_anew(tmp_path: Path) -> None:
    model = small_model()
    model.learn(64)
    model.save(tmp_path / "model")

    def noise(seed: int | None) -> Any:
        loaded = IMeL.load(tmp_path / "model", seed=seed)
        drawn = torch.rand(1, generator=loaded.generator)
        return loaded.seed, drawn, loaded.predict(answers(loaded)[:, :1] * np.ones(2))[0]

    (seed, drawn, actions), (_, drawn_again, actions_again) = noise(7), noise(7)
    assert seed == 7
    assert torch.equal(drawn, drawn_again)
    np.testing.assert_array_equal(actions, actions_again)
    other_seed, other_drawn, other_actions = noise(None)
    assert other_seed == 0
    assert not torch.equal(drawn, other_drawn)
    assert not np.array_equal(actions, other_actions)
    kept, saved = tensors_of(IMeL.load(tmp_path / "model", seed=7)), tensors_of(model)
    assert all(torch.equal(kept[name], saved[name]) for name in saved)


# --- the command ---


@pytest.mark.parametrize(
    ("missing", "words", "message"),
    [
        (None, ["trian"], "unknown script 'trian'; did you mean 'train'?"),
        ("rl_zoo3", ["train"], "rl_zoo3 is not installed: pip install 'imel[zoo]'"),
        ("seaborn", ["plot_train"], "seaborn is not installed: pip install 'imel[zoo]'"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(
    missing: str | None,
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["imel.zoo", *words])
    if missing is not None:
        monkeypatch.setitem(sys.modules, missing, None)
    assert __main__.main() == 2
    assert capsys.readouterr().err == f"imel.zoo: error: {message}\n"


def test_help_names_every_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["imel.zoo", "--help"])
    assert __main__.main() == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in __main__.SCRIPTS)
