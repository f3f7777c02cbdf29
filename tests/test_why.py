"""`imel why` and `imel lessons`: what made an action of an episode, and what it is without it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from matplotlib.image import imread

from imel import IMeL
from imel.cli.main import main
from imel.cli.why import choose_steps
from imel.explain import familiarity_of, policy_without
from imel.explain.reduced import largest_lessons, random_lessons, similar_lessons
from imel.policies import Policy
from imel.runs.evaluation import evaluate, visited_states
from small import POLICIES


class UnposedPendulum(PendulumEnv):
    """By its name an environment that nobody knows how to put into a state."""


def trained_run(folder: Path, policy: str, **settings: Any) -> Path:
    """A run directory with a small model of Pendulum."""
    small: dict[str, Any] = {"n_envs": 4, "rollout_size": 256, "memory_size": 512}
    model = IMeL(policy, "Pendulum-v1", seed=0, critic_epochs=1, **small, **settings)
    model.learn(1024).save(folder / "model")
    (folder / "config.json").write_text(json.dumps({"env": "Pendulum-v1"}))
    return folder


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory.mktemp("why"), "MkiPolicy", gradient_steps=2)


@pytest.fixture(scope="module")
def taught_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory.mktemp("taught"), "RidgePolicy")


@pytest.fixture(scope="module")
def policy(run_dir: Path) -> Policy:
    return Policy.load(str(run_dir / "model.safetensors"))


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["why", *argv]) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(capsys, *argv, "--json"))
    return found


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["why", *argv]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    return captured.err


def test_an_episode_is_that_of_the_mean_action(policy: Policy) -> None:
    states = visited_states(policy, "Pendulum-v1", 3)
    env = gymnasium.make("Pendulum-v1")
    observation, _ = env.reset(seed=3)
    for state in states:
        np.testing.assert_allclose(state, observation, atol=1e-6)
        observation, *_ = env.step(policy.predict(observation, deterministic=True)[0])
    assert len(states) == 200


def test_the_step_asked_for_is_explained_by_the_memories_behind_it(
    run_dir: Path, policy: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = document(capsys, str(run_dir), "--step", "7", "--memories", "600", "--seed", "3")
    assert (answer["env"], answer["steps"]) == ("Pendulum-v1", 200)
    (explained,) = answer["explained"]
    state = visited_states(policy, "Pendulum-v1", 3)[7]
    assert explained["step"] == 7
    np.testing.assert_allclose(explained["observation"], state, atol=1e-6)
    action, _ = policy.predict(state, deterministic=True)
    np.testing.assert_allclose(np.clip(explained["mean"], -1, 1) * 2.0, action, atol=1e-5)
    added = np.sum([memory["contributions"] for memory in explained["memories"]], axis=0)
    np.testing.assert_allclose(added, explained["mean"], atol=1e-5)
    assert explained["exact"]
    assert explained["without"] is None


def test_by_default_the_most_and_the_least_familiar_steps_are_explained(
    run_dir: Path, policy: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    explained = document(capsys, str(run_dir), "--seed", "3")["explained"]
    scores = familiarity_of(policy)(torch.from_numpy(visited_states(policy, "Pendulum-v1", 3)))
    assert [each["step"] for each in explained] == [scores.argmax(), scores.argmin()]
    assert [each["familiarity"] for each in explained] == pytest.approx(
        [scores.max(), scores.min()]
    )
    assert [len(each["memories"]) for each in explained] == [8, 8]


def test_without_an_episode_the_reduced_policys_answer_is_given(
    run_dir: Path, policy: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    first = document(capsys, str(run_dir), "--step", "7")["explained"][0]["memories"][0]
    number = first["episodes"]
    flags = ("--step", "7", "--without-episode", str(number))
    (explained,) = document(capsys, str(run_dir), *flags)["explained"]
    reduced = policy_without(policy, episodes=[number])
    observation = np.array(explained["observation"], np.float32)
    mean = np.array(explained["without"]["mean"])
    action, _ = reduced.predict(observation, deterministic=True)
    np.testing.assert_allclose(np.clip(mean, -1, 1) * 2.0, action, atol=1e-5)
    assert number not in [memory["episodes"] for memory in explained["without"]["memories"]]
    text = said(capsys, str(run_dir), *flags)
    assert f"without episode {number} (" in text
    change = 2.0 * (mean[0] - explained["mean"][0])  # the torque is in [-2, 2]
    assert f"mean [{2.0 * mean[0]:+.2f}], a change of [{change:+.2f}]" in text


def test_in_a_pipe_the_answer_is_plain_lines(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, str(run_dir), "--step", "0", "--memories", "3")
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[0].startswith("Pendulum-v1, MkiPolicy, an episode of 200 steps")
    assert "step 0 (asked for)" in lines
    head = next(i for i, line in enumerate(lines) if line.split()[:2] == ["share", "episode"])
    assert len(lines) == head + 4
    assert lines[head + 1].split()[0].endswith("%")
    assert any("is the sum of what 512 memories add" in line for line in lines)


def test_on_a_terminal_the_table_is_drawn(run_dir: Path) -> None:
    # A pseudo-terminal of 100 columns: rich asks the environment first
    main_end, other = pty.openpty()
    script = f"from imel.cli.main import main; main(['why', {str(run_dir)!r}, '--step', '0'])"
    variables = {**os.environ, "COLUMNS": "100", "TERM": "xterm"}
    with subprocess.Popen([sys.executable, "-c", script], stdout=other, env=variables) as process:
        os.close(other)
        text = b""
        while True:
            try:
                text += os.read(main_end, 4096)
            except OSError:  # the other end was closed
                break
    os.close(main_end)
    assert process.returncode == 0
    lines = text.decode().splitlines()
    assert any(line.startswith("\x1b[1mstep 0") for line in lines)
    assert any("share" in line and "\x1b[1m" in line for line in lines)


@pytest.mark.parametrize("name", list(POLICIES))
def test_every_policy_is_explained(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = IMeL(name, "Pendulum-v1", seed=0, n_envs=4, rollout_size=64, memory_size=128)
    model.learn(128).save(tmp_path / "model")
    flags = (str(tmp_path / "model"), "--env", "Pendulum-v1", "--step", "5")
    text = said(capsys, *flags)
    (explained,) = document(capsys, *flags)["explained"]
    kinds = {"NpPolicy": "sensitivity", "AnpPolicy": "attention", "RegressorPolicy": "none"}
    kinds["RidgePolicy"] = "lessons"
    assert explained["kind"] == kinds.get(name, "sum")
    assert name in text
    # The title, an empty line, the step, three lines, headings, and eight rows or all there are
    assert len(text.splitlines()) == 7 + min(8, len(explained.get("lessons", range(8))))
    if explained["kind"] == "none":
        assert "does not consult" in text


# --- lessons ---


def test_the_lessons_listed_are_those_behind_the_step(
    taught_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = Policy.load(str(taught_dir / "model.safetensors"))
    flags = (str(taught_dir), "--step", "7", "--memories", "600", "--seed", "3")
    (explained,) = document(capsys, *flags)["explained"]
    state = visited_states(policy, "Pendulum-v1", 3)[7]
    action, _ = policy.predict(state, deterministic=True)
    np.testing.assert_allclose(np.clip(explained["mean"], -1, 1) * 2.0, action, atol=1e-5)
    added = np.sum([lesson["contributions"] for lesson in explained["lessons"]], axis=0)
    np.testing.assert_allclose(added, explained["mean"], atol=1e-5)
    assert explained["state_names"] == ["cos angle", "sin angle", "angular velocity"]
    text = said(capsys, *flags)
    assert explained["sentence"] in text
    assert "torque" in text


def test_without_a_lesson_the_reduced_policys_answer_is_given(
    taught_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = document(capsys, str(taught_dir), "--step", "7")["explained"][0]
    episodes = [str(lesson["episodes"]) for lesson in first["lessons"][:2]]
    flags = ("--step", "7", "--without-lesson", *episodes)
    (explained,) = document(capsys, str(taught_dir), *flags)["explained"]
    taken = np.sum([lesson["contributions"] for lesson in first["lessons"][:2]], axis=0)
    mean = np.array(explained["without"]["mean"])
    np.testing.assert_allclose(mean, explained["mean"] - taken, atol=1e-5)
    text = said(capsys, str(taught_dir), *flags)
    assert f"without the lessons of {', '.join(episodes)}: mean [{2.0 * mean[0]:+.2f}]" in text


def test_a_frame_shows_lessons_that_are_still_remembered(
    taught_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pygame")
    path = tmp_path / "why.png"
    text = said(capsys, str(taught_dir), "--step", "3", "--frame", str(path))
    assert text.splitlines()[-1] == f"picture: {path}"
    pixels = imread(path)[..., :3]
    rod = np.array([204, 77, 77]) / 255  # the colour of Pendulum's rod
    drawn = np.abs(pixels - rod).sum(axis=2) < 0.02
    policy = Policy.load(str(taught_dir / "model.safetensors"))
    remembered = len(np.unique(policy.memory.column("episodes")))
    assert all(part.any() for part in np.array_split(drawn.any(axis=0), 1 + min(5, remembered)))


def test_the_largest_lessons_of_a_run_are_listed_and_drawn(
    taught_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lessons", str(taught_dir), "--json", "--count", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    policy = Policy.load(str(taught_dir / "model.safetensors"))
    assert policy.lessons is not None
    states = policy.memory.column("states")
    whole = policy.act(states)[0]
    changes = {
        int(episode): (whole - policy_without(policy, lessons=[int(episode)]).act(states)[0])
        for episode in policy.lessons.column("episodes")
    }
    sizes = {name: float(each.square().sum(dim=1).mean().sqrt()) for name, each in changes.items()}
    expected = sorted(sizes, key=lambda name: -sizes[name])[:3]
    assert [row["episodes"] for row in found["lessons"]] == expected
    for row in found["lessons"]:
        assert row["sizes"] == pytest.approx(sizes[row["episodes"]], rel=1e-3)
    assert imread(taught_dir / "lessons.png").std() > 0.05


def test_deletion_evaluates_the_policy_without_the_largest_and_without_random_lessons(
    taught_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["lessons", str(taught_dir), "--deletion", "--episodes", "2", "--draws", "2"]
    assert main([*flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    deletion = found["deletion"]
    count = [each["count"] for each in deletion["without"]]
    policy = Policy.load(str(taught_dir / "model.safetensors"))
    assert policy.lessons is not None
    assert count == [max(1, round(share * len(policy.lessons))) for share in (0.01, 0.05, 0.2)]
    reduced = policy_without(policy, lessons=largest_lessons(policy, count[0]))
    expected = evaluate(reduced, "Pendulum-v1", 2).returns
    assert deletion["without"][0]["largest"]["returns"] == pytest.approx(expected)
    drawn = [random_lessons(policy, count[2], seed) for seed in (10_000, 10_001)]
    played = [evaluate(policy_without(policy, lessons=each), "Pendulum-v1", 2) for each in drawn]
    means = [np.mean(each.returns) for each in played]
    assert deletion["without"][2]["random"]["returns"] == pytest.approx(means)
    visited = torch.from_numpy(visited_states(policy, "Pendulum-v1", 10_000))
    moved = (reduced.act(visited)[0] - policy.act(visited)[0]).square().sum(dim=1).mean().sqrt()
    assert deletion["without"][0]["largest"]["shift"] == pytest.approx(float(moved), rel=1e-4)
    alike = policy_without(policy, lessons=similar_lessons(policy, visited.numpy(), count[1]))
    expected = evaluate(alike, "Pendulum-v1", 2).returns
    assert deletion["without"][1]["similar"]["returns"] == pytest.approx(expected)
    assert deletion["whole"] == pytest.approx(evaluate(policy, "Pendulum-v1", 2).returns)
    assert main(flags) == 0
    text = capsys.readouterr().out
    assert f"{np.mean(deletion['whole']):,.0f} ±" in text
    assert imread(taught_dir / "deletion.png").std() > 0.02


@pytest.mark.parametrize(
    ("command", "flags", "reason"),
    [
        ("why", ("--without-episode", "5"), "leave some out by --without-lesson"),
        ("why", ("--without-lesson", "999"), "no lesson of episode 999"),
        ("lessons", ("--count", "0"), "count=0"),
        ("lessons", ("--deletions",), "did you mean '--deletion'"),
    ],
)
def test_what_cannot_be_asked_of_lessons_is_refused_in_one_line(
    taught_dir: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    flags: tuple[str, ...],
    reason: str,
) -> None:
    assert main([command, str(taught_dir), *flags]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


def test_a_policy_of_memories_has_no_lessons(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lessons", str(run_dir)]) == 2
    assert "MkiPolicy, which has memories and no lessons" in capsys.readouterr().err
    assert "--without-episode" in refused(capsys, str(run_dir), "--without-lesson", "5")


# --- pictures, and what is refused ---


def test_a_frame_shows_the_state_beside_those_of_its_memories(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pygame")
    path = tmp_path / "why.png"
    text = said(capsys, str(run_dir), "--step", "3", "--frame", str(path))
    assert text.splitlines()[-1] == f"picture: {path}"
    pixels = imread(path)[..., :3]
    height, width = pixels.shape[:2]
    assert width > 4 * height, "six pictures in a row"
    rod = np.array([204, 77, 77]) / 255  # the colour of Pendulum's rod
    drawn = np.abs(pixels - rod).sum(axis=2) < 0.02
    columns = np.array_split(drawn.any(axis=0), 6)
    assert all(part.any() for part in columns)


def test_where_memories_cannot_be_posed_the_state_alone_is_drawn(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pygame")
    gymnasium.register("UnposedPendulum-v0", "test_why:UnposedPendulum", max_episode_steps=20)
    path = tmp_path / "why.png"
    flags = ("--step", "3", "--frame", str(path), "--env", "UnposedPendulum-v0")
    text = said(capsys, str(run_dir), *flags)
    gymnasium.registry.pop("UnposedPendulum-v0")
    assert "memories are not drawn: UnposedPendulum cannot be put" in text.splitlines()[-1]
    assert path.is_file()


def test_a_single_remembered_episode_leaves_the_first_step(policy: Policy) -> None:
    alone = policy_without(policy)
    alone.memory.column("episodes").fill_(1)
    alone.invalidate()
    ((name, step),) = choose_steps(alone, np.zeros((4, 3), np.float32), None)
    assert step == 0
    assert "single episode" in name


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--step", "200"), "200 steps, 0 to 199"),
        (("--step", "-1"), "200 steps, 0 to 199"),
        (("--without-episode", "99999"), "no memory of episode 99999"),
        (("--env", "MountainCarContinuous-v0"), "not made for MountainCarContinuous-v0"),
        (("--env", "Nothing-v0"), "cannot make environment 'Nothing-v0'"),
        (("--memories", "0"), "memories=0"),
        (("--frame", "why.jpg"), "not the name of a .png"),
        (("--stpe", "1"), "did you mean '--step'"),
    ],
)
def test_what_cannot_be_explained_is_refused_in_one_line(
    run_dir: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], reason: str
) -> None:
    assert reason in refused(capsys, str(run_dir), *flags)


def test_a_model_alone_needs_the_name_of_its_environment(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.safetensors").write_bytes((run_dir / "model.safetensors").read_bytes())
    assert "--env" in refused(capsys, str(tmp_path / "m.safetensors"))
