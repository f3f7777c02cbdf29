"""The command line: what a run leaves behind, and how it refuses what it cannot do."""

from __future__ import annotations

import csv
import importlib
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from rich.console import Console

from imel import IMeL
from imel.cli.arguments import peek
from imel.cli.main import COMMANDS, main
from imel.cli.train import plan_from_arguments
from imel.errors import SettingsError
from imel.policies import NpPolicy
from imel.policies.paper.neural_process import NpSettings
from imel.policies.paper.paper_policy import InterpolatorSettings
from imel.policies.ridge.ridge_policy import RidgePolicy
from imel.runs.evaluation import evaluate
from imel.runs.layout import claimed
from imel.runs.plan import POLICY_NAMES
from imel.runs.progress import LABELS, LiveTable, PlainLines
from small import read_checkpoint
from toy import PointEnv, ScriptedEnv

SMALL = ["--rollout-size", "128", "--memory-size", "256", "--critic-epochs", "1"]
BRIEF = ["ImelPoint-v0", "--total-timesteps", "512", "--eval-episodes", "3", *SMALL]
RUN_FILES = {
    "config.json",
    "provenance.json",
    "progress.csv",
    "monitor.csv",
    "model.safetensors",
    "best.safetensors",
    "evaluation.json",
    "evaluations.json",
    "curve.png",
    "policy.png",
}


class FailingEnv(PointEnv):
    """Raises at its 200th step."""

    steps_taken = 0

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.steps_taken += 1
        if self.steps_taken == 200:
            raise ArithmeticError("the motor is on fire")
        return super().step(action)


class SignalEnv(PointEnv):
    """Sends its own process a signal at its 300th step."""

    number: int = signal.SIGINT
    steps_taken = 0

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.steps_taken += 1
        if self.steps_taken == 300:
            signal.raise_signal(self.number)
        return super().step(action)


class DrawnEnv(PointEnv):
    """Has a picture: a grey square."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> NDArray[np.uint8]:
        return np.full((64, 64, 3), 128, dtype=np.uint8)


@pytest.fixture(autouse=True, scope="module")
def _environments() -> Iterator[None]:
    made: dict[str, Any] = {
        "ImelPoint-v0": PointEnv,
        "ImelNan-v0": lambda: ScriptedEnv(bad_step=200),
        "ImelFailing-v0": FailingEnv,
        "ImelSignal-v0": SignalEnv,
        "ImelDrawn-v0": DrawnEnv,
    }
    for name, entry_point in made.items():
        gym.register(name, entry_point=entry_point, disable_env_checker=True)
    yield
    for name in made:
        del gym.registry[name]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def run_dir(_environments: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run. Nothing may change it."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    assert main(["train", *BRIEF, "--seed", "3", "--run-dir", str(folder)]) == 0
    return folder


def names(folder: Path) -> set[str]:
    """Names of the files in a folder, but for the one TensorBoard invents."""
    return {p.name for p in folder.iterdir() if "tfevents" not in p.name}


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line with which a command is refused."""
    capsys.readouterr()
    assert main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("imel: error: ")
    return line


# --- the dispatcher ---


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_names_every_command_and_shows_examples(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 0
    text = capsys.readouterr().out
    for name, line in COMMANDS.items():
        assert f"{name:<8} {line}" in text
    assert "imel train Pendulum-v1" in text


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"imel {importlib.import_module('imel').__version__}\n"


@pytest.mark.parametrize("command", ["train", "eval", "plot"])
def test_each_command_has_help_with_examples(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"usage: imel {command}" in text
    assert f"  imel {command} " in text


def test_a_mistyped_command_is_refused_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = refused(capsys, "trian")
    assert line == "imel: error: unknown command 'trian'; did you mean 'train'?"


def test_an_interrupt_is_one_line_and_exit_code_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(argv: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("imel.cli.plot.run", interrupted)
    assert main(["plot", "somewhere"]) == 130
    assert capsys.readouterr().err == "imel: interrupted\n"


# --- flags, files and defaults ---


def help_of(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, str]:
    """The text under each flag in the help of a command."""
    assert main([*argv, "--help"]) == 0
    texts: dict[str, str] = {}
    flag = ""
    for line in capsys.readouterr().out.splitlines():
        words = line.strip("│ ").split()
        if words and words[0].startswith("--"):
            flag = words[0].rstrip(",")
        texts[flag] = f"{texts.get(flag, '')} {' '.join(words)}"
    return texts


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_help_lists_every_setting_and_option_of_the_policy_with_its_default(
    policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = help_of(capsys, "train", "--policy", policy)
    policy_class = POLICY_NAMES[policy]
    for field in (*fields(policy_class.settings_class), *fields(policy_class.options_class)):
        default = field.default
        words = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
        text = texts[f"--{field.name.replace('_', '-')}"]
        assert f"(default: {words})" in text, field.name


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_help_shows_no_setting_that_the_policy_refuses(
    policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = help_of(capsys, "train", "--policy", policy)
    chosen = POLICY_NAMES[policy]
    own = {f.name for cls in (chosen.settings_class, chosen.options_class) for f in fields(cls)}
    every = {f.name for other in POLICY_NAMES.values() for f in fields(other.settings_class)}
    assert every - own
    assert not [name for name in every - own if f"--{name.replace('_', '-')}" in texts]


def test_help_shows_the_values_of_a_file_in_place_of_the_defaults(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("file.json").write_text(json.dumps({"policy": "np", "kl_budget": 17.25}))
    texts = help_of(capsys, "train", "--config", "file.json")
    assert "(default: 17.25)" in texts["--kl-budget"]


def test_a_flag_beats_the_file_and_the_file_beats_the_policys_default() -> None:
    file = {"policy": "np", "std": 0.33, "gamma": 0.33}
    Path("file.json").write_text(json.dumps(file))
    plan, _ = plan_from_arguments(["E-v0", "--config", "file.json", "--std", "0.55"])
    assert plan.settings == NpSettings().updated({"std": 0.55, "gamma": 0.33})
    assert plan.policy_class is NpPolicy


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_the_command_line_has_the_defaults_of_python(policy: str) -> None:
    plan, _ = plan_from_arguments(["E-v0", "--policy", policy])
    assert plan.settings == POLICY_NAMES[policy].settings_class()
    assert type(plan.settings) is POLICY_NAMES[policy].settings_class


def test_a_toml_file_sets_the_run_the_settings_and_the_policys_options() -> None:
    Path("run.toml").write_text(
        'env = "Pendulum-v1"\npolicy = "np"\nseed = 7\nkl_budget = "3:1"\ncritic_hidden = [8]\n'
        "[policy_kwargs]\nlatent = 5\nhidden = [16, 12]\n"
    )
    plan, _ = plan_from_arguments(["--config", "run.toml", "--seed", "8", "--latent", "6"])
    assert (plan.env, plan.run.policy, plan.run.seed) == ("Pendulum-v1", "np", 8)
    told = {"kl_budget": "3:1", "critic_hidden": (8,)}
    assert plan.settings == NpSettings().updated(told)
    assert plan.policy_kwargs["latent"] == 6
    assert plan.policy_kwargs["hidden"] == (16, 12)


def test_a_plan_written_as_json_is_read_back_as_the_same_plan() -> None:
    argv = ["E-v0", "--policy=anp", "--seed=5", "--clip-means", "--std=0.3", "--hidden", "9", "7"]
    plan, _ = plan_from_arguments(argv)
    Path("config.json").write_text(json.dumps(plan.as_json()))
    again, _ = plan_from_arguments(["--config", "config.json"])
    assert again == plan
    assert again.settings == InterpolatorSettings().updated({"clip_means": True, "std": 0.3})
    switched_off, _ = plan_from_arguments(["--config", "config.json", "--no-clip-means"])
    assert switched_off.settings == InterpolatorSettings().updated({"std": 0.3})


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        (["--policy", "np"], "np"),
        (["E", "--policy=np"], "np"),
        (["--policy", "np", "--policy", "anp"], "anp"),
        (["--policy"], None),
        (["--policy-x", "np"], None),
    ],
)
def test_a_flag_can_be_seen_before_the_parser_is_made(argv: list[str], value: str | None) -> None:
    assert peek(argv, "--policy") == value


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ("ImelPoint-v0 --trust-regoin 3", "did you mean '--trust-region'?"),
        ("ImelPoint-v0 --policy mki --kl-bugdet=3", "did you mean '--kl-budget'?"),
        ("ImelPoint-v0 --kl-budget 3", "RidgePolicy does not use 'kl_budget'; MkiPolicy, NpPolicy"),
        ("ImelPoint-v0 --policy np --trust-region=3", "does not use 'trust_region'; RidgePolicy"),
        ("ImelPoint-v0 --policy nearest --gradient-steps 3", "NearestPolicy does not use"),
        ("ImelPoint-v0 --preset exploration", "'preset' is no setting any more"),
        ("ImelPoint-v0 --update=plain", "'update' is no setting any more"),
        ("ImelPoint-v0 --policy regresor", "unknown policy 'regresor'; did you mean 'regressor'?"),
        ("ImelPoint-v0 --policy np --kernel-scale 2", "unknown flag '--kernel-scale'"),
        ("ImelPoint-v0 --gamma much", "--gamma: could not convert string to float: 'much'"),
        ("ImelPoint-v0 --gamma", "Missing value for argument '--gamma'"),
        ("ImelPoint-v0 --gamma 1.5", "gamma=1.5 is not between 0.0 and 1.0"),
        (
            "ImelPoint-v0 --policy mki --kl-budget much",
            "kl_budget='much' is neither a number nor 'start:end'",
        ),
        (
            "ImelPoint-v0 --policy np --std-mode free",
            "invalid choice 'free' for argument '--std-mode'",
        ),
        ("ImelPoint-v0 --seed -1", "seed=-1 is not between 0"),
        ("ImelPoint-v0 --total-timesteps 0", "total_timesteps=0 is not between 1"),
        ("ImelPoint-v0 --threads 0", "threads=0 is not between 1"),
        ("ImelPoint-v0 --device tea", "device 'tea' cannot be used"),
        ("ImelPoint-v0 --memory-size 10", "memory_size=10 is smaller than one rollout"),
        ("ImelPoint-v0 another", "Unrecognized options: another"),
        ("", "Missing from imel train: ENV"),
        ("ImelPiont-v0", "cannot make environment 'ImelPiont-v0'"),
        ("absent_module:Env-v0", "ModuleNotFoundError: No module named 'absent_module'"),
        ("Blackjack-v1", "MultiBinary or a Dict of these, not Tuple(Discrete(32)"),
        ("--config absent.json", "cannot read absent.json"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line_before_anything_is_written(
    argv: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reason in refused(capsys, "train", *argv.split(), "--run-dir", "here")
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"kl_bugdet": 3}', "unknown key 'kl_bugdet'; did you mean 'kl_budget'?"),
        ('{"total_timestep": 3}', "unknown key 'total_timestep'; did you mean 'total_timesteps'?"),
        ('{"preset": "plain"}', "file.json: 'preset' is no setting any more: each policy has one"),
        ('{"cooling": 50}', "file.json: 'cooling' is no setting any more"),
        ('{"kl_budget": 3}', "RidgePolicy does not use 'kl_budget'; MkiPolicy, NpPolicy"),
        ('{"gamma": "much"}', "gamma='much' is not of type float"),
        ('{"seed": true}', "seed=True is not of type int"),
        ('{"seed": 1.5}', "seed=1.5 is not of type int"),
        ('{"policy_kwargs": 3}', "policy_kwargs=3 is not of type dict"),
        ('{"gamma": 3}', "gamma=3 is not between 0.0 and 1.0"),
        ('{"policy": "nq"}', "unknown policy 'nq'"),
        ('{"policy_kwargs": {"featurs": 3}}', "'featurs'; did you mean 'features'?"),
        ("[]", "holds no table of settings"),
        ("{", "is not valid JSON"),
    ],
)
def test_a_bad_file_is_refused_with_the_nearest_valid_key(
    text: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file.json").write_text(text)
    argv = ("train", "ImelPoint-v0", "--config", "file.json", "--run-dir", "here")
    assert reason in refused(capsys, *argv)
    assert [p.name for p in Path().iterdir()] == ["file.json"]


def test_keys_wrong_in_a_file_are_refused_with_the_files_name() -> None:
    Path("mine.toml").write_text("gama = 0.9")
    with pytest.raises(SettingsError, match=r"^mine\.toml: unknown key 'gama'"):
        plan_from_arguments(["E-v0", "--config", "mine.toml"])


# --- a run and its directory ---


def test_a_run_leaves_its_files_and_nothing_else(run_dir: Path) -> None:
    assert names(run_dir) == RUN_FILES
    assert len(list(run_dir.glob("events.out.tfevents.*"))) == 1
    for picture in ("curve.png", "policy.png"):
        assert (run_dir / picture).read_bytes().startswith(b"\x89PNG\r\n")


def test_the_configuration_says_all_that_was_set(run_dir: Path) -> None:
    config = json.loads((run_dir / "config.json").read_text())
    assert config["env"] == "ImelPoint-v0"
    assert (config["policy"], config["seed"], config["total_timesteps"]) == ("ridge", 3, 512)
    assert (config["rollout_size"], config["memory_size"]) == (128, 256)
    assert {f.name for f in fields(RidgePolicy.Settings)} <= set(config)
    assert config["policy_kwargs"] == asdict(RidgePolicy.Settings())


def test_progress_has_a_row_for_each_iteration(run_dir: Path) -> None:
    with (run_dir / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["time/total_timesteps"]) for row in rows] == [128, 256, 384, 512]
    assert all(np.isfinite(float(row["improve/policy_kl"])) for row in rows)


def test_the_monitor_file_has_every_episode_in_the_format_of_stable_baselines(
    run_dir: Path,
) -> None:
    header, *lines = (run_dir / "monitor.csv").read_text().splitlines()
    assert set(json.loads(header.removeprefix("#"))) == {"t_start", "env_id"}
    rows = list(csv.DictReader(lines))
    assert list(rows[0]) == ["r", "l", "t", "steps"]
    # 8 environments with episodes of 16 steps: all end together, every 128 steps
    assert [int(row["steps"]) for row in rows] == [128] * 8 + [256] * 8 + [384] * 8 + [512] * 8
    assert {row["l"] for row in rows} == {"16"}
    assert all(float(row["r"]) < 0.0 for row in rows)


def test_the_saved_model_is_the_trained_one(run_dir: Path) -> None:
    model = IMeL.load(run_dir / "model.safetensors")
    assert model.num_timesteps == 512
    assert len(model.policy.memory) == 256
    assert model.settings.critic_epochs == 1


def test_a_run_repeated_from_its_configuration_is_the_same_bit_for_bit(run_dir: Path) -> None:
    assert main(["train", "--config", str(run_dir / "config.json"), "--run-dir", "again"]) == 0
    assert json.loads(Path("again/config.json").read_text()) == json.loads(
        (run_dir / "config.json").read_text()
    )
    first, _ = read_checkpoint(run_dir / "model.safetensors")
    second, _ = read_checkpoint("again/model.safetensors")
    assert set(first) == set(second)
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
    assert Path("again/evaluation.json").read_text() == (run_dir / "evaluation.json").read_text()


def test_another_seed_is_another_run(run_dir: Path) -> None:
    config = str(run_dir / "config.json")
    assert main(["train", "--config", config, "--seed", "4", "--run-dir", "other"]) == 0
    first, _ = read_checkpoint(run_dir / "model.safetensors")
    second, _ = read_checkpoint("other/model.safetensors")
    assert not torch.equal(first["policy/memory.states"], second["policy/memory.states"])


def test_by_default_each_run_gets_a_new_directory() -> None:
    Path("runs/ImelPoint-v0-ridge-seed0").mkdir(parents=True)
    Path("runs/ImelPoint-v0-ridge-seed0-2").mkdir()
    assert main(["train", *BRIEF, "--eval-episodes", "0"]) == 0
    assert names(Path("runs/ImelPoint-v0-ridge-seed0-3")) == RUN_FILES - {"evaluation.json"}
    assert names(Path("runs/ImelPoint-v0-ridge-seed0")) == set()


def test_the_default_directory_of_a_namespaced_environment_is_one_folder() -> None:
    with claimed(None, "Name/space:Env-v0-ridge-seed0", overwrite=False) as folder:
        assert folder == Path("runs/Name-space-Env-v0-ridge-seed0")


def test_a_run_is_not_overwritten_unless_asked_and_then_only_its_own_files_go(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = Path("mine")
    argv = ("train", *BRIEF, "--run-dir", "mine")
    folder.mkdir()
    (folder / "notes.txt").write_text("keep me")
    assert main(argv) == 0
    (folder / "traceback.txt").write_text("of an earlier failure")
    before = contents(folder)
    assert "mine already holds a run (config.json)" in refused(capsys, *argv, "--seed", "1")
    assert contents(folder) == before
    assert main([*argv, "--seed", "1", "--overwrite"]) == 0
    assert names(folder) == RUN_FILES | {"notes.txt"}
    assert len(list(folder.glob("events.out.tfevents.*"))) == 1
    assert (folder / "notes.txt").read_text() == "keep me"
    assert json.loads((folder / "config.json").read_text())["seed"] == 1


def test_a_refused_run_does_not_remove_the_one_it_would_have_overwritten(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(run_dir)
    place = ("--run-dir", str(run_dir), "--overwrite")
    refused(capsys, "train", "Blackjack-v1", *place)
    refused(capsys, "train", "ImelPoint-v0", "--gamma", "7", *place)
    assert contents(run_dir) == before


def test_a_directory_in_use_by_another_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("train", *BRIEF, "--run-dir", "busy", "--overwrite")
    with claimed(Path("busy"), "", overwrite=False):
        line = refused(capsys, *argv)
        assert line == "imel: error: another process is writing a run to busy"
        assert names(Path("busy")) == set()
    assert main(argv) == 0


def test_a_file_cannot_be_a_run_directory(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("precious")
    assert "file is not a folder" in refused(capsys, "train", *BRIEF, "--run-dir", "file")
    assert Path("file").read_text() == "precious"


# --- runs that do not end well ---


def test_a_non_finite_reward_ends_the_run_in_one_line_with_the_model_saved(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = "train ImelNan-v0 --n-envs 2 --rollout-size 128 --total-timesteps 1000 --run-dir here"
    line = refused(capsys, *argv.split())
    assert "environment 0 returned a non-finite reward nan at step 0 of episode" in line
    assert "here/model.safetensors" in line
    model = IMeL.load("here/model.safetensors")
    assert model.iteration == 3  # at 64 steps an iteration, step 200 is in the fourth
    logs = {"config.json", "provenance.json", "progress.csv", "monitor.csv"}
    best = {"best.safetensors", "evaluations.json"}
    assert names(Path("here")) == logs | best | {"model.safetensors"}


def test_an_environment_that_fails_leaves_a_traceback_and_the_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["train", "ImelFailing-v0", "--total-timesteps", "100000", *SMALL, "--run-dir", "here"]
    line = refused(capsys, *argv)
    assert "ArithmeticError: the motor is on fire (here/traceback.txt)" in line
    assert "in step" in Path("here/traceback.txt").read_text()
    assert IMeL.load("here/model.safetensors").iteration == 12  # 16 steps an iteration


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_ends_the_run_between_iterations_with_the_model_saved(
    number: int,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(SignalEnv, "number", number)
    before = signal.getsignal(number)
    argv = ["train", "ImelSignal-v0", "--n-envs", "1", *SMALL, "--run-dir", "here"]
    assert main(argv) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("imel: interrupted; the model as of step 300 is in here/model")
    model = IMeL.load("here/model.safetensors")
    assert model.iteration == 2  # the third iteration, from step 256 on, was dropped
    assert signal.getsignal(number) is before


def test_a_second_interrupt_ends_the_run_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    # Two environments send a signal each in the same step
    argv = ["train", "ImelSignal-v0", "--n-envs", "2", *SMALL, "--run-dir", "here"]
    assert main(argv) == 130
    assert capsys.readouterr().err == "imel: interrupted\n"
    assert "model.safetensors" not in names(Path("here"))


def test_an_interrupted_process_exits_130_after_saving_its_model(tmp_path: Path) -> None:
    script = [sys.executable, "-c", "import sys; from imel.cli.main import main; sys.exit(main())"]
    argv = ["train", "Pendulum-v1", "--total-timesteps", "10000000", "--run-dir", "run", *SMALL]
    process = subprocess.Popen(
        [*script, *argv], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    progress = tmp_path / "run" / "progress.csv"
    while not (progress.is_file() and progress.stat().st_size):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("imel: interrupted; the model as of step ")
    assert "Traceback" not in err
    assert out.startswith("Pendulum-v1, RidgePolicy, seed 0, 8 environments\n")
    assert IMeL.load(tmp_path / "run" / "model.safetensors").iteration >= 1


# --- eval ---


def test_eval_repeats_the_evaluation_after_training(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(run_dir), "--episodes", "3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    stored = json.loads((run_dir / "evaluation.json").read_text())
    assert document["deterministic"] == stored["deterministic"]
    assert document["stochastic"]["returns"] != document["deterministic"]["returns"]
    assert len(document["stochastic"]["returns"]) == 3
    assert document["deterministic"]["lengths"] == [16, 16, 16]
    summary = document["stochastic"]
    assert summary["mean"] == pytest.approx(np.mean(summary["returns"]))
    assert summary["std"] == pytest.approx(np.std(summary["returns"]))
    assert (summary["min"], summary["max"]) == (min(summary["returns"]), max(summary["returns"]))


def test_the_seed_of_an_evaluation_decides_its_episodes_and_its_noise(run_dir: Path) -> None:
    model = IMeL.load(run_dir / "model.safetensors")

    def returns(seed: int, deterministic: bool) -> list[float]:
        return evaluate(model.policy, "ImelPoint-v0", 2, seed, deterministic).returns

    for deterministic in (True, False):
        assert returns(1, deterministic) == returns(1, deterministic)
        assert returns(1, deterministic) != returns(2, deterministic)


def test_eval_prints_mean_and_range_of_both_kinds_of_return(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(run_dir)
    assert main(["eval", str(run_dir), "--episodes", "3"]) == 0
    first, deterministic, stochastic = capsys.readouterr().out.splitlines()
    stored = json.loads((run_dir / "evaluation.json").read_text())["deterministic"]
    assert first == "ImelPoint-v0, 3 episodes, model after 512 steps"
    assert deterministic == (
        f"deterministic  return {stored['mean']:.2f} ± {stored['std']:.2f}  "
        f"(min {stored['min']:.2f}, max {stored['max']:.2f})"
    )
    assert stochastic.startswith("stochastic     return -")
    assert contents(run_dir) == before


def test_eval_takes_a_model_file_with_the_environment_named(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("lone.safetensors").write_bytes((run_dir / "model.safetensors").read_bytes())
    assert "--env" in refused(capsys, "eval", "lone.safetensors")
    assert main(["eval", "lone", "--env", "ImelPoint-v0", "--episodes", "2"]) == 0


def test_eval_refuses_what_is_no_run_or_another_environment(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    Path("text.safetensors").write_text("no model")
    assert "empty holds no model" in refused(capsys, "eval", "empty")
    assert "no model file at absent" in refused(capsys, "eval", "absent")
    assert "not an imel checkpoint" in refused(
        capsys, "eval", "text.safetensors", "--env", "ImelPoint-v0"
    )
    assert "not made for Pendulum-v1" in refused(
        capsys, "eval", str(run_dir), "--env", "Pendulum-v1"
    )
    assert "episodes=0" in refused(capsys, "eval", str(run_dir), "--episodes", "0")
    assert "did you mean '--episodes'" in refused(capsys, "eval", str(run_dir), "--episode", "2")


def test_eval_records_a_video_where_it_can_and_says_why_where_it_cannot(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("model.safetensors").write_bytes((run_dir / "model.safetensors").read_bytes())
    argv = ("eval", "model.safetensors", "--episodes", "1", "--video", "--env")
    assert "cannot render ImelPoint-v0" in refused(capsys, *argv, "ImelPoint-v0")
    assert names(Path()) == {"model.safetensors"}
    pytest.importorskip("moviepy")
    assert main([*argv, "ImelDrawn-v0"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "video: evaluation-episode-0.mp4"
    assert Path("evaluation-episode-0.mp4").read_bytes()[4:8] == b"ftyp"
    assert names(Path()) == {"model.safetensors", "evaluation-episode-0.mp4"}


# --- plot ---


def test_plot_redraws_both_pictures_and_touches_nothing_else(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path("copy")
    folder.mkdir()
    for name, content in contents(run_dir).items():
        (folder / name).write_bytes(content)
    (folder / "curve.png").unlink()
    (folder / "policy.png").write_bytes(b"")
    assert main(["plot", "copy"]) == 0
    assert set(capsys.readouterr().out.split()) == {"copy/curve.png", "copy/policy.png"}
    assert contents(folder) == contents(run_dir)


def test_plot_refuses_an_action_there_is_not_and_writes_nothing(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(run_dir)
    assert "action=1 is not between 0 and 0" in refused(
        capsys, "plot", str(run_dir), "--action", "1"
    )
    assert contents(run_dir) == before


# --- progress ---

VALUES = {
    "rollout/ep_rew_mean": -12.345,
    "rollout/std": 0.25,
    "improve/policy_kl": 0.0625,
    "memory/size": 2048,
    "time/fps": 999,
}


def test_on_a_terminal_the_latest_values_stand_in_a_table_with_their_names() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    table = LiveTable("my run", 1000, console)
    table.write(VALUES, {}, step=250)
    table.close()
    text = screen.getvalue()
    assert "my run" in text
    assert "250 of 1,000" in text
    for key, shown in (("rollout/ep_rew_mean", "-12.35"), ("rollout/std", "0.250")):
        rows = [line for line in text.splitlines() if LABELS[key][0] in line]
        assert shown in rows[-1]
    assert LABELS["train/loo_error"][0] not in text


def test_elsewhere_a_line_is_printed_every_few_seconds_or_percent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("imel.runs.progress.time.monotonic", lambda: now[0])
    output = io.StringIO()
    lines = PlainLines(1000, Console(file=output, width=40))

    def after(seconds: float, steps: int) -> int:
        now[0] += seconds
        lines.write(VALUES, {}, step=steps)
        return len(output.getvalue().splitlines())

    assert after(1.0, 10) == 1  # the first
    assert after(1.0, 20) == 1  # too early
    assert after(4.5, 30) == 2  # five seconds later
    assert after(0.1, 130) == 3  # a tenth of the run later
    assert after(0.1, 140) == 3
    assert after(0.1, 1024) == 4  # the last
    first, *_, last = output.getvalue().splitlines()
    assert first == (
        "  1%  10 steps  10/s  left 0:01:39  return -12.35  sigma 0.250  policy KL 0.062"
        "  memories 2048"
    )
    assert last.startswith("100%  1,024 steps")


def test_what_a_killed_writer_left_is_no_run_and_goes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    names = (
        ".config.json.x1",
        ".part-monitor.csv",
        "checkpoints/.iteration-00000020.safetensors.y",
    )
    leftovers = [run / name for name in names]
    mine = run / ".notes"
    for file in (*leftovers, mine):
        file.write_text("half")
    with claimed(run, "unused", overwrite=False):
        assert not any(file.exists() for file in leftovers)
    assert mine.exists()
