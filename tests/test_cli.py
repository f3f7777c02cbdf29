"""The command line: what a run leaves behind, and how it refuses what it cannot do."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import signal
import sys
from collections.abc import Iterator
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
from imel.cli.main import COMMANDS, main
from imel.cli.train import plan_from_arguments
from imel.registry import policies, policy_names
from imel.runs.evaluation import evaluate
from imel.runs.layout import claimed
from imel.runs.running import RunDisplay
from imel.settings import setting_names
from toy import FloatArray, PointEnv

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
    """At a step of its life something happens; it has a picture, a grey square."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, step: int = 0, number: int = 0, render_mode: str | None = None) -> None:
        super().__init__()
        self.left, self.number, self.render_mode = step, number, render_mode

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        if self.left == 0 and not self.number:
            raise ArithmeticError("the motor is on fire")
        if self.left == 0:
            signal.raise_signal(self.number)
        return super().step(action)

    def render(self) -> NDArray[np.uint8]:
        return np.full((64, 64, 3), 128, dtype=np.uint8)


@pytest.fixture(autouse=True, scope="module")
def _environments() -> Iterator[None]:
    made: dict[str, Any] = {
        "ImelPoint-v0": PointEnv,
        "ImelFailing-v0": lambda: EventfulEnv(200),
        "ImelSigint-v0": lambda: EventfulEnv(300, signal.SIGINT),
        "ImelSigterm-v0": lambda: EventfulEnv(300, signal.SIGTERM),
        "ImelDrawn-v0": EventfulEnv,
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
    for command in ("train", "resume", "eval", "push", "pull"):
        assert main([command, "--help"]) == 0
        text = capsys.readouterr().out
        assert f"usage: imel {command}" in text
        assert f"  imel {command} " in text
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"imel {imel.__version__}\n"
    assert "unknown command 'trian'; did you mean 'train'?" in refused(capsys, "trian")


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


def test_a_flag_beats_a_toml_file_and_the_file_beats_the_policys_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("run.toml").write_text(
        'env = "Pendulum-v1"\npolicy = "np"\nseed = 7\nkl_budget = "3:1"\ncritic_hidden = [8]\n'
        "latent = 5\nhidden = [16, 12]\ntotal_timesteps = 1e5\n"
    )
    plan, _ = plan_from_arguments(["--config", "run.toml", "--seed", "8", "--latent", "6"])
    assert (plan.env, plan.run.policy, plan.run.seed) == ("Pendulum-v1", "np", 8)
    assert plan.run.total_timesteps == 100_000
    told = {"kl_budget": "3:1", "critic_hidden": (8,), "latent": 6, "hidden": (16, 12)}
    assert plan.settings == policies()["np"].make_settings(told)
    assert "(default: 5)" in help_of(capsys, "train", "--config", "run.toml")["--latent"]


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


def test_environments_may_be_as_many_as_cores_and_steps_are_written_as_1e5(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(12)))
    for flags in (["--n-envs", "auto"], ["--n-envs=auto"]):
        plan, _ = plan_from_arguments(["E-v0", "--total-timesteps", "2.5e3", *flags])
        assert (plan.settings.n_envs, plan.run.total_timesteps) == (12, 2500)


POINT = "ImelPoint-v0 "
REFUSED = {
    POINT + "--trust-regoin 3": "did you mean '--trust-region'?",
    POINT + "--policy mki --kl-bugdet=3": "did you mean '--kl-budget'?",
    POINT + "--kl-budget 3": "RidgePolicy does not use 'kl_budget'; ",
    POINT + "--policy np --trust-region=3": "does not use 'trust_region'; RidgePolicy",
    POINT + "--policy regresor": "unknown policy 'regresor'; did you mean 'regressor'?",
    POINT + "--policy absent_module:Mine": "No module named 'absent_module'",
    POINT + "--policy json:JSONDecoder": "'json:JSONDecoder' is no policy of imel",
    POINT + "--gamma much": "--gamma: could not convert string to float: 'much'",
    POINT + "--gamma": "Missing value for argument '--gamma'",
    POINT + "--policy np --std-mode free": "invalid choice 'free' for argument '--std-mode'",
    POINT + "--total-timesteps 0": "total_timesteps=0 is not between 1",
    POINT + "--total-timesteps 1.5e0": "--total-timesteps: invalid literal for int",
    POINT + "--device tea": "device 'tea' cannot be used",
    POINT + "--memory-size 10": "memory_size=10 is smaller than one rollout",
    POINT + "--track wandd": "unknown tracker 'wandd'; did you mean 'wandb'?",
    POINT + "another": "Unrecognized options: another",
    "": "Missing from imel train: ENV",
    "ImelPiont-v0": "cannot make environment 'ImelPiont-v0'",
    "absent_module:Env-v0": "ModuleNotFoundError: No module named 'absent_module'",
    "Blackjack-v1": "MultiBinary or a Dict of these, not Tuple(Discrete(32)",
    "--config absent.json": "there is no file absent.json",
}
BAD_FILES = {
    '{"trust_regoin": 3}': "file.json: RidgePolicy has no 'trust_regoin'; did you mean",
    '{"kl_budget": 3}': "RidgePolicy does not use 'kl_budget'; ",
    '{"gamma": "much"}': "gamma='much' is not of type float",
    '{"seed": true}': "seed=True is not of type int",
    '{"track": 3}': "track=3 is not of type str | None",
    '{"env": 3}': "env=3 is not the id of an environment",
    '{"gamma": 3}': "gamma=3 is not between 0.0 and 1.0",
    '{"policy": "nq"}': "unknown policy 'nq'",
    "[]": "holds no table of settings",
    "{": "is not valid JSON",
}


@pytest.mark.parametrize(("argv", "reason"), REFUSED.items())
def test_what_cannot_be_run_is_refused_in_one_line_before_anything_is_written(
    argv: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reason in refused(capsys, "train", *argv.split(), "--run-dir", "here")
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(("text", "reason"), BAD_FILES.items())
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
    assert main(["train", *BRIEF, *bold, "--boldness", "0.5", "--checkpoint-every", "2"]) == 0
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


def test_a_run_leaves_its_model_settings_pictures_and_logs_and_nothing_else(run_dir: Path) -> None:
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


def test_a_run_is_not_overwritten_unless_asked_and_then_only_its_own_files_go(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for _ in range(3):  # by default each run gets a folder of its own
        with claimed(None, "Name/space:Env-v0", overwrite=False) as new:
            assert list(new.iterdir()) == []
    assert new == Path("runs/Name-space-Env-v0-3")
    folder, argv = Path("mine"), ("train", *BRIEF, "--run-dir", "mine")
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


def test_a_file_is_no_folder_for_a_run_and_what_a_killed_writer_left_goes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("file").write_text("precious")
    assert "file is not a folder" in refused(capsys, "train", *BRIEF, "--run-dir", "file")
    assert Path("file").read_text() == "precious"
    Path("run/checkpoints").mkdir(parents=True)
    left = (".config.json.x1", ".monitor.csv.monitor.csv", "checkpoints/.iteration-2.safetensors.y")
    for name in (*left, ".notes"):
        Path("run", name).write_text("half")
    with claimed(Path("run"), "unused", overwrite=False):
        assert names(Path("run")) == {"checkpoints", ".notes"}
        assert not list(Path("run/checkpoints").iterdir())


# --- runs that do not end well ---


def test_an_environment_that_fails_ends_the_run_in_one_line_with_the_model_saved(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = refused(capsys, "train", "ImelFailing-v0", *SMALL, "--run-dir", "here")
    assert "ArithmeticError: the motor is on fire (here/traceback.txt)" in line
    assert line.endswith("is in here/model.safetensors")
    assert IMeL.load("here/model").iteration == 12  # of 16 steps each; it failed at step 200
    assert names(Path("here")) == LOGS | {"traceback.txt", "model.safetensors"}
    assert "in step" in Path("here/traceback.txt").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_between_iterations_with_the_model_saved(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    before, env = signal.getsignal(number), f"Imel{number.name.title()}-v0"
    assert main(["train", env, "--n-envs", "1", *SMALL, "--run-dir", "here"]) == 128 + number
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("imel: interrupted; the model as of step 300 is in here/model")
    assert IMeL.load("here/model").iteration == 2  # the third, from step 256 on, was dropped
    assert signal.getsignal(number) is before


def test_a_second_interrupt_ends_the_run_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    # Two environments send a signal each in the same step
    assert main(["train", "ImelSigint-v0", "--n-envs", "2", *SMALL, "--run-dir", "here"]) == 130
    assert capsys.readouterr().err == "imel: interrupted\n"
    assert "model.safetensors" not in names(Path("here"))


# --- eval ---


def test_eval_repeats_the_evaluation_after_training_and_plot_its_pictures(
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

    shutil.copytree(run_dir, "copy")
    Path("copy/curve.png").unlink()
    Path("copy/policy.png").write_bytes(b"")
    assert "action=1 is not between 0 and 0" in refused(capsys, "plot", "copy", "--action", "1")
    assert main(["plot", "copy"]) == 0
    assert set(capsys.readouterr().out.split()) == {"copy/curve.png", "copy/policy.png"}
    assert contents(Path("copy")) == before


def test_the_seed_of_an_evaluation_decides_its_episodes_and_its_noise(run_dir: Path) -> None:
    policy = IMeL.load(run_dir / "model.safetensors").policy
    state = policy.generator.get_state()
    for deterministic in (True, False):
        one, again, other = (
            evaluate(policy, "ImelPoint-v0", 2, seed, deterministic).returns for seed in (1, 1, 2)
        )
        assert one == again != other
    assert policy.generator.get_state().equal(state)


def test_eval_takes_a_model_file_and_refuses_what_is_no_run_or_another_environment(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("lone.safetensors").write_bytes((run_dir / "model.safetensors").read_bytes())
    Path("text.safetensors").write_text("no model")
    point, run = ("--env", "ImelPoint-v0"), str(run_dir)
    assert "--env" in refused(capsys, "eval", "lone.safetensors")
    assert main(["eval", "lone", *point, "--episodes", "2"]) == 0
    for place in (".", "absent"):
        assert f"{place} holds no model" in refused(capsys, "eval", place)
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


# --- the display of a run ---


def test_on_a_terminal_the_metrics_stand_in_a_table_elsewhere_a_line_is_printed_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, values = [100.0], {"rollout/ep_rew_mean": -12.345, "memory/size": 2048, "note": "text"}
    monkeypatch.setattr("imel.runs.running.time.monotonic", lambda: now[0])
    screen, output = io.StringIO(), io.StringIO()
    table = RunDisplay("my run", 1000, Console(file=screen, force_terminal=True, width=100))
    table.write(values, {}, step=250)
    table.close()
    for shown in ("my run", r" 25%  250 steps", r"rollout/ep_rew_mean.* -12\.345 ", r"2,048 "):
        assert re.search(shown, screen.getvalue()), shown
    assert "note" not in screen.getvalue()

    lines = RunDisplay("my run", 1000, Console(file=output, width=40), begun=5)
    moments = (
        (1.0, 10, 1),
        (1.0, 20, 1),
        (4.5, 30, 2),
        (0.1, 130, 3),
        (0.1, 140, 3),
        (0.1, 1024, 4),
    )
    for (
        seconds,
        steps,
        said,
    ) in moments:  # at first, after five seconds, a tenth of the run, at last
        now[0] += seconds
        lines.write(values, {}, step=steps)
        assert len(output.getvalue().splitlines()) == 1 + said
    title, first, *_, last = output.getvalue().splitlines()
    assert title == "my run"
    # Five steps in the second of this process
    assert first == "  1%  10 steps  5/s  left 0:03:18  ep_rew_mean -12.35"
    assert last.startswith("100%  1,024 steps")
