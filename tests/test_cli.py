"""The command line: what a run leaves behind, and how it refuses what it cannot do."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console
from safetensors.torch import load_file

import imel
from imel import IMeL
from imel.cli.arguments import peek, split_flags
from imel.cli.main import COMMANDS, main
from imel.cli.train import plan_from_arguments
from imel.registry import policies, policy_names
from imel.runs.evaluation import evaluate
from imel.runs.layout import claimed
from imel.runs.running import RunDisplay
from imel.settings import setting_names
from toy import FloatArray, PointEnv, ScriptedEnv

SMALL = ["--rollout-size", "128", "--memory-size", "256", "--critic-epochs", "1"]
BRIEF = ["ImelPoint-v0", "--total-timesteps", "512", "--eval-episodes", "3", *SMALL]
LOGS = {"config.json", "provenance.json", "progress.csv", "monitor.csv"}
BEST = {"best.safetensors", "evaluations.json"}
RUN_FILES = LOGS | BEST | {"model.safetensors", "evaluation.json", "curve.png", "policy.png"}
OWN = """
from dataclasses import dataclass
from imel.policies import RidgePolicy
from imel.settings import setting

class Bold(RidgePolicy):
    @dataclass(frozen=True)
    class Settings(RidgePolicy.Settings):
        boldness: float = setting(0.25, high=2.0)
        '''How far it dares.'''
"""


class EventfulEnv(PointEnv):
    """At a step of its life something happens."""

    def __init__(self, step: int, event: Callable[[], object]) -> None:
        super().__init__()
        self.left, self.event = step, event

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        if self.left == 0:
            self.event()
        return super().step(action)


def fail() -> None:
    raise ArithmeticError("the motor is on fire")


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
        "ImelFailing-v0": lambda: EventfulEnv(200, fail),
        "ImelSigint-v0": lambda: EventfulEnv(300, lambda: signal.raise_signal(signal.SIGINT)),
        "ImelSigterm-v0": lambda: EventfulEnv(300, lambda: signal.raise_signal(signal.SIGTERM)),
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


def same_tensors(one: Path | str, other: Path | str) -> bool:
    a, b = load_file(one), load_file(other)
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line with which a command is refused."""
    capsys.readouterr()
    assert main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("imel: error: ")
    return line


# --- the dispatcher ---


def test_help_names_every_command_and_each_command_has_help_with_examples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for argv in ([], ["--help"], ["-h"]):
        assert main(argv) == 0
        text = capsys.readouterr().out
        assert all(f"{name:<8} {line}" in text for name, line in COMMANDS.items())
        assert "imel train Pendulum-v1" in text
    for command in ("train", "resume", "eval", "push", "pull"):
        assert main([command, "--help"]) == 0
        text = capsys.readouterr().out
        assert f"usage: imel {command}" in text
        assert f"  imel {command} " in text
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"imel {imel.__version__}\n"
    line = refused(capsys, "trian")
    assert line == "imel: error: unknown command 'trian'; did you mean 'train'?"


def test_an_interrupt_is_one_line_and_exit_code_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(argv: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("imel.cli.eval.run", interrupted)
    assert main(["eval", "somewhere"]) == 130
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


@pytest.mark.parametrize("policy", policy_names())
def test_help_and_plan_have_the_settings_of_the_policy_with_its_defaults_and_no_others(
    policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = help_of(capsys, "train", "--policy", policy)
    own = policies()[policy].Settings
    for field in fields(own):
        default = field.default
        words = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
        assert f"(default: {words})" in texts[f"--{field.name.replace('_', '-')}"], field.name
    every = {name for kind in policies().values() for name in setting_names(kind.Settings)}
    others = every - set(setting_names(own))
    assert others
    assert not [name for name in others if f"--{name.replace('_', '-')}" in texts]
    plan, _ = plan_from_arguments(["E-v0", "--policy", policy])
    assert plan.settings == own()


def test_help_shows_the_values_of_a_file_in_place_of_the_defaults(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("file.json").write_text(json.dumps({"policy": "np", "kl_budget": 17.25}))
    texts = help_of(capsys, "train", "--config", "file.json")
    assert "(default: 17.25)" in texts["--kl-budget"]


def test_a_flag_beats_a_toml_file_and_the_file_beats_the_policys_default() -> None:
    Path("run.toml").write_text(
        'env = "Pendulum-v1"\npolicy = "np"\nseed = 7\nkl_budget = "3:1"\ncritic_hidden = [8]\n'
        "latent = 5\nhidden = [16, 12]\ntotal_timesteps = 1e5\n"
    )
    plan, _ = plan_from_arguments(["--config", "run.toml", "--seed", "8", "--latent", "6"])
    assert (plan.env, plan.run.policy, plan.run.seed) == ("Pendulum-v1", "np", 8)
    assert plan.run.total_timesteps == 100_000
    told = {"kl_budget": "3:1", "critic_hidden": (8,), "latent": 6, "hidden": (16, 12)}
    assert plan.settings == policies()["np"].make_settings(told)


def test_a_plan_written_as_json_is_read_back_as_the_same_plan() -> None:
    argv = ["E-v0", "--policy=anp", "--seed=5", "--clip-means", "--std=0.3", "--hidden", "9", "7"]
    plan, _ = plan_from_arguments(argv)
    Path("config.json").write_text(json.dumps(plan.as_json()))
    again, _ = plan_from_arguments(["--config", "config.json"])
    assert again == plan
    told = {"std": 0.3, "hidden": (9, 7)}
    assert again.settings == policies()["anp"].make_settings({**told, "clip_means": True})
    switched_off, _ = plan_from_arguments(["--config", "config.json", "--no-clip-means"])
    assert switched_off.settings == policies()["anp"].make_settings(told)


@pytest.mark.parametrize("flags", [("--n-envs", "auto"), ("--n-envs=auto",)])
def test_environments_may_be_as_many_as_cores(
    flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(12)))
    plan, _ = plan_from_arguments(["E-v0", "--seed", "3", *flags])
    assert (plan.settings.n_envs, plan.run.seed) == (12, 3)


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
    assert peek(split_flags(argv), "--policy") == value


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ("ImelPoint-v0 --trust-regoin 3", "did you mean '--trust-region'?"),
        ("ImelPoint-v0 --policy mki --kl-bugdet=3", "did you mean '--kl-budget'?"),
        ("ImelPoint-v0 --kl-budget 3", "RidgePolicy does not use 'kl_budget'; "),
        ("ImelPoint-v0 --policy np --trust-region=3", "does not use 'trust_region'; RidgePolicy"),
        ("ImelPoint-v0 --policy nearest --gradient-steps 3", "NearestPolicy does not use"),
        ("ImelPoint-v0 --policy regresor", "unknown policy 'regresor'; did you mean 'regressor'?"),
        ("ImelPoint-v0 --policy absent_module:Mine", "No module named 'absent_module'"),
        ("ImelPoint-v0 --policy json:JSONDecoder", "'json:JSONDecoder' is no policy of imel"),
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
        ("ImelPoint-v0 --total-timesteps 1.5", "1.5 is no whole number"),
        ("ImelPoint-v0 --total-timesteps many", "could not convert string to float: 'many'"),
        ("ImelPoint-v0 --threads 0", "threads=0 is not between 1"),
        ("ImelPoint-v0 --device tea", "device 'tea' cannot be used"),
        ("ImelPoint-v0 --memory-size 10", "memory_size=10 is smaller than one rollout"),
        ("ImelPoint-v0 --track mlflow", "unknown tracker 'mlflow'"),
        ("ImelPoint-v0 another", "Unrecognized options: another"),
        ("", "Missing from imel train: ENV"),
        ("ImelPiont-v0", "cannot make environment 'ImelPiont-v0'"),
        ("absent_module:Env-v0", "ModuleNotFoundError: No module named 'absent_module'"),
        ("Blackjack-v1", "MultiBinary or a Dict of these, not Tuple(Discrete(32)"),
        ("--config absent.json", "there is no file absent.json"),
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
        ('{"trust_regoin": 3}', "file.json: RidgePolicy has no 'trust_regoin'; did you mean"),
        ('{"total_timestep": 3}', "'total_timestep'; did you mean 'total_timesteps'?"),
        ('{"kl_budget": 3}', "RidgePolicy does not use 'kl_budget'; "),
        ('{"gamma": "much"}', "gamma='much' is not of type float"),
        ('{"seed": true}', "seed=True is not of type int"),
        ('{"seed": 1.5}', "seed=1.5 is not of type int"),
        ('{"track": 3}', "track=3 is not of type str | None"),
        ('{"env": 3}', "env=3 is not the id of an environment"),
        ('{"gamma": 3}', "gamma=3 is not between 0.0 and 1.0"),
        ('{"policy": "nq"}', "unknown policy 'nq'"),
        ('{"policy": 3}', "policy=3 is not of type str"),
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


# --- a policy of the user's own ---


def test_a_policy_of_ones_own_is_trained_resumed_and_played_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("own_policies.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", [*sys.path])
    bold = ("--policy", "own_policies:Bold")
    texts = help_of(capsys, "train", *bold)
    assert "How far it dares. (default: 0.25)" in texts["--boldness"]

    argv = ("train", *BRIEF, *bold, "--boldness", "0.5", "--checkpoint-every", "2")
    assert main(argv) == 0
    run = Path("runs/ImelPoint-v0-own_policies-Bold-seed0")
    config = json.loads((run / "config.json").read_text())
    assert (config["policy"], config["boldness"]) == ("own_policies:Bold", 0.5)
    whole = (run / "model.safetensors").rename("whole.safetensors")

    monkeypatch.delitem(sys.modules, "own_policies")  # as in another process
    for words in (("resume", str(run)), ("train", "--config", str(run / "config.json"))):
        line = refused(capsys, *words)
        assert line.endswith("a policy of its user's own: add --policy own_policies:Bold")
    assert "own_policies" not in sys.modules
    assert main(["resume", str(run), *bold]) == 0
    assert same_tensors(run / "model.safetensors", whole)

    monkeypatch.delitem(sys.modules, "own_policies")
    assert "--policy own_policies:Bold" in refused(capsys, "eval", str(run), "--episodes", "1")
    assert main(["eval", str(run), "--episodes", "1", *bold]) == 0
    assert IMeL.load(run / "model.safetensors").settings.as_json()["boldness"] == 0.5
    monkeypatch.delitem(sys.modules, "own_policies")


# --- a run and its directory ---


def test_a_run_leaves_its_model_its_settings_and_pictures_and_nothing_else(run_dir: Path) -> None:
    assert names(run_dir) == RUN_FILES
    assert len(list(run_dir.glob("events.out.tfevents.*"))) == 1
    for picture in ("curve.png", "policy.png"):
        assert (run_dir / picture).read_bytes().startswith(b"\x89PNG\r\n")
    config = json.loads((run_dir / "config.json").read_text())
    assert (config["env"], config["policy"], config["seed"]) == ("ImelPoint-v0", "ridge", 3)
    assert (config["rollout_size"], config["memory_size"]) == (128, 256)
    assert set(setting_names(policies()["ridge"].Settings)) <= set(config)
    model = IMeL.load(run_dir / "model.safetensors")
    assert (model.num_timesteps, len(model.policy.memory)) == (512, 256)
    assert model.settings.critic_epochs == 1


def test_the_logs_have_a_row_for_each_iteration_and_each_episode(run_dir: Path) -> None:
    with (run_dir / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["time/total_timesteps"]) for row in rows] == [128, 256, 384, 512]
    assert all(np.isfinite(float(row["improve/policy_kl"])) for row in rows)
    header, *lines = (run_dir / "monitor.csv").read_text().splitlines()
    assert set(json.loads(header.removeprefix("#"))) == {"t_start", "env_id"}
    rows = list(csv.DictReader(lines))
    assert list(rows[0]) == ["r", "l", "t", "steps"]
    # 8 environments with episodes of 16 steps: all end together, every 128 steps
    assert [int(row["steps"]) for row in rows] == [128] * 8 + [256] * 8 + [384] * 8 + [512] * 8
    assert {row["l"] for row in rows} == {"16"}
    assert all(float(row["r"]) < 0.0 for row in rows)


def test_a_run_repeated_from_its_configuration_is_the_same_bit_for_bit_and_no_other_seed_is(
    run_dir: Path,
) -> None:
    config, model = str(run_dir / "config.json"), "model.safetensors"
    assert main(["train", "--config", config, "--run-dir", "again"]) == 0
    for name in ("config.json", "evaluation.json", "evaluations.json"):
        assert Path("again", name).read_text() == (run_dir / name).read_text()
    assert same_tensors(Path("again", model), run_dir / model)
    assert main(["train", "--config", config, "--seed", "4", "--run-dir", "other"]) == 0
    assert not same_tensors(Path("other", model), run_dir / model)


def test_by_default_each_run_gets_a_new_directory() -> None:
    Path("runs/ImelPoint-v0-ridge-seed0").mkdir(parents=True)
    Path("runs/ImelPoint-v0-ridge-seed0-2").mkdir()
    assert main(["train", *BRIEF, "--eval-episodes", "0"]) == 0
    assert names(Path("runs/ImelPoint-v0-ridge-seed0-3")) == RUN_FILES - {"evaluation.json"}
    assert names(Path("runs/ImelPoint-v0-ridge-seed0")) == set()
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
    refused(capsys, "train", "Blackjack-v1", "--run-dir", "mine", "--overwrite")
    assert contents(folder) == before
    assert main([*argv, "--seed", "1", "--overwrite"]) == 0
    assert names(folder) == RUN_FILES | {"notes.txt"}
    assert len(list(folder.glob("events.out.tfevents.*"))) == 1
    assert (folder / "notes.txt").read_text() == "keep me"
    assert json.loads((folder / "config.json").read_text())["seed"] == 1


def test_a_directory_in_use_by_another_run_and_a_file_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ("train", *BRIEF, "--overwrite", "--run-dir")
    with claimed(Path("busy"), "", overwrite=False):
        line = refused(capsys, *argv, "busy")
        assert line == "imel: error: another process is writing a run to busy"
        assert names(Path("busy")) == set()
    assert main([*argv, "busy"]) == 0
    Path("file").write_text("precious")
    assert "file is not a folder" in refused(capsys, *argv, "file")
    assert Path("file").read_text() == "precious"


def test_what_a_killed_writer_left_is_no_run_and_goes() -> None:
    run = Path("run")
    (run / "checkpoints").mkdir(parents=True)
    left = (
        ".config.json.x1",
        ".monitor.csv.monitor.csv",
        "checkpoints/.iteration-02.safetensors.y",
    )
    mine = run / ".notes"
    for file in (*(run / name for name in left), mine):
        file.write_text("half")
    with claimed(run, "unused", overwrite=False):
        assert not any((run / name).exists() for name in left)
    assert mine.exists()


# --- runs that do not end well ---


@pytest.mark.parametrize(
    ("env", "reason", "iteration"),
    [
        # At 64 steps an iteration, step 200 is in the fourth; at 16, in the thirteenth
        ("ImelNan-v0 --n-envs 2", "environment 0 returned a non-finite reward nan at step 0 of", 3),
        ("ImelFailing-v0", "ArithmeticError: the motor is on fire (here/traceback.txt)", 12),
    ],
)
def test_an_environment_that_fails_ends_the_run_in_one_line_with_the_model_saved(
    env: str, reason: str, iteration: int, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, "train", *env.split(), *SMALL, "--run-dir", "here")
    assert reason in line
    assert line.endswith("is in here/model.safetensors")
    assert IMeL.load("here/model.safetensors").iteration == iteration
    told = {"traceback.txt"} if "traceback" in reason else set()
    assert names(Path("here")) - BEST == LOGS | told | {"model.safetensors"}
    assert all("in step" in Path("here", name).read_text() for name in told)


@pytest.mark.parametrize(
    ("env", "number"), [("ImelSigint-v0", signal.SIGINT), ("ImelSigterm-v0", signal.SIGTERM)]
)
def test_a_signal_ends_the_run_between_iterations_with_the_model_saved(
    env: str, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    assert main(["train", env, "--n-envs", "1", *SMALL, "--run-dir", "here"]) == 128 + number
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("imel: interrupted; the model as of step 300 is in here/model")
    model = IMeL.load("here/model.safetensors")
    assert model.iteration == 2  # the third iteration, from step 256 on, was dropped
    assert signal.getsignal(number) is before


def test_a_second_interrupt_ends_the_run_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    # Two environments send a signal each in the same step
    argv = ["train", "ImelSigint-v0", "--n-envs", "2", *SMALL, "--run-dir", "here"]
    assert main(argv) == 130
    assert capsys.readouterr().err == "imel: interrupted\n"
    assert "model.safetensors" not in names(Path("here"))


def test_an_interrupted_process_exits_130_after_saving_its_model(tmp_path: Path) -> None:
    Path("own_policies.py").write_text(OWN)  # found though the folder is not on the path
    script = [sys.executable, "-c", "import sys; from imel.cli.main import main; sys.exit(main())"]
    argv = ["train", "Pendulum-v1", "--total-timesteps", "10000000", "--run-dir", "run", *SMALL]
    process = subprocess.Popen(
        [*script, *argv, "--policy", "own_policies:Bold"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
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
    assert out.startswith("Pendulum-v1, Bold, seed 0, 8 environments\n")
    assert load_file("run/model.safetensors")


# --- eval ---


def test_eval_repeats_the_evaluation_after_training_and_says_both_kinds_of_return(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(run_dir)
    assert main(["eval", str(run_dir), "--episodes", "3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    stored = json.loads((run_dir / "evaluation.json").read_text())["deterministic"]
    assert document["deterministic"] == stored
    summary = document["stochastic"]
    assert summary["returns"] != stored["returns"]
    assert summary["lengths"] == stored["lengths"] == [16, 16, 16]
    assert summary["mean"] == pytest.approx(np.mean(summary["returns"]))
    assert summary["std"] == pytest.approx(np.std(summary["returns"]))
    assert (summary["min"], summary["max"]) == (min(summary["returns"]), max(summary["returns"]))

    assert main(["eval", str(run_dir), "--episodes", "3"]) == 0
    first, deterministic, stochastic = capsys.readouterr().out.splitlines()
    assert first == "ImelPoint-v0, 3 episodes, model after 512 steps"
    assert deterministic == (
        f"deterministic  return {stored['mean']:.2f} ± {stored['std']:.2f}  "
        f"(min {stored['min']:.2f}, max {stored['max']:.2f})"
    )
    assert stochastic.startswith("stochastic     return -")
    assert contents(run_dir) == before


def test_the_seed_of_an_evaluation_decides_its_episodes_and_its_noise(run_dir: Path) -> None:
    model = IMeL.load(run_dir / "model.safetensors")
    state = model.policy.generator.get_state()

    def returns(seed: int, deterministic: bool) -> list[float]:
        return evaluate(model.policy, "ImelPoint-v0", 2, seed, deterministic).returns

    for deterministic in (True, False):
        assert returns(1, deterministic) == returns(1, deterministic)
        assert returns(1, deterministic) != returns(2, deterministic)
    assert model.policy.generator.get_state().equal(state)


def test_eval_takes_a_model_file_and_refuses_what_is_no_run_or_another_environment(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("lone.safetensors").write_bytes((run_dir / "model.safetensors").read_bytes())
    Path("empty").mkdir()
    Path("text.safetensors").write_text("no model")
    point, run = ("--env", "ImelPoint-v0"), str(run_dir)
    assert "--env" in refused(capsys, "eval", "lone.safetensors")
    assert main(["eval", "lone", *point, "--episodes", "2"]) == 0
    assert "empty holds no model" in refused(capsys, "eval", "empty")
    assert "no model file at absent" in refused(capsys, "eval", "absent")
    assert "not an imel checkpoint" in refused(capsys, "eval", "text.safetensors", *point)
    assert "not made for Pendulum-v1" in refused(capsys, "eval", run, "--env", "Pendulum-v1")
    assert "episodes=0" in refused(capsys, "eval", run, "--episodes", "0")
    assert "did you mean '--episodes'" in refused(capsys, "eval", run, "--episode", "2")


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
    assert "action=1 is not between 0 and 0" in refused(capsys, "plot", "copy", "--action", "1")
    assert main(["plot", "copy"]) == 0
    assert set(capsys.readouterr().out.split()) == {"copy/curve.png", "copy/policy.png"}
    assert contents(folder) == contents(run_dir)


# --- the display of a run ---

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
    display = RunDisplay("my run", 1000, console)
    display.write(VALUES, {}, step=250)
    display.close()
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
    monkeypatch.setattr("imel.runs.running.time.monotonic", lambda: now[0])
    output = io.StringIO()
    display = RunDisplay("my run", 1000, Console(file=output, width=40), begun=5)

    def after(seconds: float, steps: int) -> int:
        now[0] += seconds
        display.write(VALUES, {}, step=steps)
        return len(output.getvalue().splitlines()) - 1

    assert after(1.0, 10) == 1  # the first
    assert after(1.0, 20) == 1  # too early
    assert after(4.5, 30) == 2  # five seconds later
    assert after(0.1, 130) == 3  # a tenth of the run later
    assert after(0.1, 140) == 3
    assert after(0.1, 1024) == 4  # the last
    title, first, *_, last = output.getvalue().splitlines()
    assert title == "my run"
    assert first == (  # five steps in the second of this process
        "  1%  10 steps  5/s  left 0:03:18  return -12.35  sigma 0.250  policy KL 0.062"
        "  memories 2048"
    )
    assert last.startswith("100%  1,024 steps")
