"""`imel why` and `imel lessons`: what made an action of an episode, and what it is without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from matplotlib.image import imread
from numpy.typing import NDArray

from imel import IMeL
from imel.cli.main import main
from imel.cli.why import choose_steps
from imel.explain import familiarity_of, policy_without
from imel.explain.reduced import largest_lessons, random_lessons, similar_lessons
from imel.policies import NearestPolicy, Policy, RidgePolicy
from imel.runs.evaluation import EVALUATION_SEED, evaluate
from small import POLICIES

Capsys = pytest.CaptureFixture[str]


class UnposedPendulum(PendulumEnv):
    """By its name an environment that nobody knows how to put into a state."""


class OwnRidge(RidgePolicy):
    """A user's own policy, made of lessons."""


class OwnNearest(NearestPolicy):
    """A user's own policy, made of memories."""


def trained_run(folder: Path, policy: Any, steps: int = 1024, **settings: Any) -> Path:
    """A run directory with a small model of Pendulum."""
    small: dict[str, Any] = {"n_envs": 4, "rollout_size": steps // 4, "memory_size": steps // 2}
    model = IMeL(policy, "Pendulum-v1", seed=0, critic_epochs=1, **small, **settings)
    model.learn(steps).save(folder / "model")
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
    return Policy.load(run_dir / "model.safetensors")


@pytest.fixture(scope="module")
def taught(taught_dir: Path) -> Any:
    return Policy.load(taught_dir / "model.safetensors")


def said(capsys: Capsys, *argv: object) -> str:
    assert main(["why", *map(str, argv)]) == 0
    return capsys.readouterr().out


def document(capsys: Capsys, *argv: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(capsys, *argv, "--json"))
    return found


def visited(policy: Policy, seed: int) -> NDArray[np.float32]:
    """The states of an episode of Pendulum with the mean action."""
    env = gymnasium.make("Pendulum-v1")
    states = [env.reset(seed=seed)[0]]
    for _ in range(199):
        states.append(env.step(policy.predict(states[-1], deterministic=True)[0])[0])
    return np.array(states)


# --- the steps of an episode ---


@pytest.mark.parametrize("part", ["memories", "lessons"])
def test_the_step_asked_for_is_the_sum_of_what_is_behind_it(
    part: str, run_dir: Path, taught_dir: Path, capsys: Capsys
) -> None:
    folder = run_dir if part == "memories" else taught_dir
    policy = Policy.load(folder / "model.safetensors")
    flags = (folder, "--step", "7", "--memories", "600", "--seed", "3")
    answer = document(capsys, *flags)
    assert (answer["env"], answer["steps"], answer["seed"]) == ("Pendulum-v1", 200, 3)
    (explained,) = answer["explained"]
    state = visited(policy, 3)[7]
    assert (explained["step"], explained["exact"], explained["without"]) == (7, True, None)
    np.testing.assert_allclose(explained["observation"], state, atol=1e-5)
    action, _ = policy.predict(state, deterministic=True)
    np.testing.assert_allclose(np.clip(explained["mean"], -1, 1) * 2.0, action, atol=1e-4)
    added = np.sum([row["contributions"] for row in explained[part]], axis=0)
    np.testing.assert_allclose(added, explained["mean"], atol=1e-5)
    assert explained["state_names"] == ["cos angle", "sin angle", "angular velocity"]
    if part == "lessons":
        text = said(capsys, *flags)
        assert explained["sentence"] in text
        assert "torque" in text


def test_by_default_the_most_and_the_least_familiar_steps_are_explained(
    run_dir: Path, policy: Policy, capsys: Capsys
) -> None:
    explained = document(capsys, run_dir, "--seed", "3")["explained"]
    scores = familiarity_of(policy)(torch.from_numpy(visited(policy, 3)))
    assert [each["step"] for each in explained] == [scores.argmax(), scores.argmin()]
    found = [each["familiarity"] for each in explained]
    assert found == pytest.approx([scores.max(), scores.min()], abs=0.01)
    assert [len(each["memories"]) for each in explained] == [8, 8]


def test_a_single_remembered_episode_leaves_the_first_step(policy: Policy) -> None:
    alone = policy_without(policy)
    alone.memory.column("episodes").fill_(1)
    alone.invalidate()
    ((name, step),) = choose_steps(alone, np.zeros((4, 3), np.float32), None)
    assert step == 0
    assert "single episode" in name


def test_without_an_episode_the_reduced_policys_answer_is_given(
    run_dir: Path, policy: Policy, capsys: Capsys
) -> None:
    first = document(capsys, run_dir, "--step", "7")["explained"][0]["memories"][0]
    number = first["episodes"]
    flags = (run_dir, "--step", "7", "--without-episode", number)
    (explained,) = document(capsys, *flags)["explained"]
    reduced = policy_without(policy, episodes=[number])
    observation = np.array(explained["observation"], np.float32)
    action, _ = reduced.predict(observation, deterministic=True)
    mean = explained["without"]["mean"]
    np.testing.assert_allclose(np.clip(mean, -1, 1) * 2.0, action, atol=1e-5)
    assert number not in [memory["episodes"] for memory in explained["without"]["memories"]]
    assert f"without episode {number} (" in said(capsys, *flags)


def test_without_lessons_what_they_added_is_gone(taught_dir: Path, capsys: Capsys) -> None:
    first = document(capsys, taught_dir, "--step", "7")["explained"][0]
    episodes = [lesson["episodes"] for lesson in first["lessons"][:2]]
    flags = (taught_dir, "--step", "7", "--without-lesson", *episodes)
    (explained,) = document(capsys, *flags)["explained"]
    taken = np.sum([lesson["contributions"] for lesson in first["lessons"][:2]], axis=0)
    (mean,) = explained["without"]["mean"]
    np.testing.assert_allclose([mean], explained["mean"] - taken, atol=1e-5)
    words = f"without the lessons of {episodes[0]}, {episodes[1]}: mean [{2.0 * mean:+.2f}]"
    assert words in said(capsys, *flags), "in the environment's units: torques are in [-2, 2]"


# --- how it is said ---


def test_in_a_pipe_the_answer_is_plain_lines(run_dir: Path, capsys: Capsys) -> None:
    text = said(capsys, run_dir, "--step", "0", "--memories", "3")
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[0].startswith("Pendulum-v1, MkiPolicy, an episode of 200 steps")
    assert "step 0 (asked for)" in lines
    head = next(i for i, line in enumerate(lines) if line.split()[:2] == ["share", "episode"])
    assert len(lines) == head + 4
    assert lines[head + 1].split()[0].endswith("%")


@pytest.mark.parametrize("name", [*POLICIES, "OwnRidge", "OwnNearest"])
def test_every_policy_is_explained_drawn_and_exported(
    name: str, tmp_path: Path, capsys: Capsys
) -> None:
    policy: Any = {"OwnRidge": OwnRidge, "OwnNearest": OwnNearest}.get(name, name)
    run = trained_run(tmp_path, policy, steps=256)
    text = said(capsys, run, "--step", "5")
    (explained,) = document(capsys, run, "--step", "5")["explained"]
    kinds = {"NpPolicy": "sensitivity", "AnpPolicy": "attention", "RegressorPolicy": "none"}
    kinds |= dict.fromkeys(("RidgePolicy", "OwnRidge"), "lessons")
    assert explained["kind"] == kinds.get(name, "sum")
    assert name in text
    listed = len(explained.get("lessons", explained.get("memories")))
    assert len(text.splitlines()) >= 5 + listed
    taught = explained["kind"] == "lessons"
    assert main(["lessons", str(run)]) == (0 if taught else 2)
    assert taught or "no lessons" in capsys.readouterr().err
    for command in (["plot"], ["plot", "update"], ["export", "--episodes", "0"]):
        assert main([*command, str(run)]) == 0
    assert (run / "policy.png").is_file()


# --- pictures ---


@pytest.mark.parametrize("kind", ["memories", "lessons"])
def test_a_frame_shows_the_state_beside_those_behind_it(
    kind: str, run_dir: Path, taught_dir: Path, tmp_path: Path, capsys: Capsys
) -> None:
    pytest.importorskip("pygame")
    path, folder = tmp_path / "why.png", run_dir if kind == "memories" else taught_dir
    text = said(capsys, folder, "--step", "3", "--frame", path)
    assert text.splitlines()[-1] == f"picture: {path}"
    pixels = imread(path)[..., :3]
    height, width = pixels.shape[:2]
    shown = 5
    if kind == "lessons":  # those that are still remembered
        memory = Policy.load(folder / "model.safetensors").memory
        shown = min(5, len(np.unique(memory.column("episodes"))))
    assert width > (shown - 1) * height, "pictures in a row"
    rod = np.array([204, 77, 77]) / 255  # the colour of Pendulum's rod
    drawn = np.abs(pixels - rod).sum(axis=2) < 0.02
    assert all(part.any() for part in np.array_split(drawn.any(axis=0), 1 + shown))


def test_where_memories_cannot_be_posed_the_state_alone_is_drawn(
    run_dir: Path, tmp_path: Path, capsys: Capsys
) -> None:
    pytest.importorskip("pygame")
    gymnasium.register("UnposedPendulum-v0", "test_why:UnposedPendulum", max_episode_steps=20)
    path = tmp_path / "why.png"
    text = said(capsys, run_dir, "--step", "3", "--frame", path, "--env", "UnposedPendulum-v0")
    gymnasium.registry.pop("UnposedPendulum-v0")
    assert "memories are not drawn: UnposedPendulum cannot be put" in text.splitlines()[-1]
    assert imread(path).std() > 0.05


# --- the lessons of a run ---


def test_the_largest_lessons_of_a_run_are_listed_and_drawn(
    taught_dir: Path, taught: Any, capsys: Capsys
) -> None:
    assert main(["lessons", str(taught_dir), "--json", "--count", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    states = taught.memory.column("states")
    whole = taught.act(states)[0]
    sizes = {}
    for episode in taught.lessons.column("episodes").tolist():
        change = whole - policy_without(taught, lessons=[episode]).act(states)[0]
        sizes[episode] = float(change.square().sum(dim=1).mean().sqrt())
    expected = sorted(sizes, key=lambda name: -sizes[name])[:3]
    assert [row["episodes"] for row in found["lessons"]] == expected
    for row in found["lessons"]:
        assert row["sizes"] == pytest.approx(sizes[row["episodes"]], rel=1e-3)
    assert imread(taught_dir / "lessons.png").std() > 0.05


def test_deletion_evaluates_the_policy_without_some_lessons(
    taught_dir: Path, taught: Any, capsys: Capsys
) -> None:
    flags = ["lessons", str(taught_dir), "--deletion", "--episodes", "2", "--draws", "2"]
    assert main([*flags, "--json"]) == 0
    deletion = json.loads(capsys.readouterr().out)["deletion"]
    removed, counts = deletion["without"], [each["count"] for each in deletion["without"]]
    total = len(taught.lessons)
    assert counts == [max(1, round(share * total)) for share in (0.01, 0.05, 0.2)]
    states = visited(taught, EVALUATION_SEED)

    def returns(lessons: Any) -> list[float]:
        reduced = policy_without(taught, lessons=lessons)
        return list(evaluate(reduced, "Pendulum-v1", 2).returns)

    assert deletion["whole"] == pytest.approx(returns([]))
    largest = largest_lessons(taught, counts[0])
    assert removed[0]["largest"]["returns"] == pytest.approx(returns(largest))
    alike = similar_lessons(taught, states, counts[1])
    assert removed[1]["similar"]["returns"] == pytest.approx(returns(alike))
    drawn = [random_lessons(taught, counts[2], EVALUATION_SEED + draw) for draw in range(2)]
    means = [np.mean(returns(lessons)) for lessons in drawn]
    assert removed[2]["random"]["returns"] == pytest.approx(means)
    tensors = torch.from_numpy(states)
    moved = policy_without(taught, lessons=largest).act(tensors)[0] - taught.act(tensors)[0]
    shift = float(moved.square().sum(dim=1).mean().sqrt())
    assert removed[0]["largest"]["shift"] == pytest.approx(shift, rel=1e-3)
    assert main(flags) == 0
    assert f"{np.mean(deletion['whole']):,.0f} ±" in capsys.readouterr().out
    assert imread(taught_dir / "deletion.png").std() > 0.02


# --- what is refused, in one line ---


@pytest.mark.parametrize(
    ("command", "run", "flags", "reason"),
    [
        ("why", "mki", ("--step", "200"), "200 steps, 0 to 199"),
        ("why", "mki", ("--step", "-1"), "200 steps, 0 to 199"),
        ("why", "mki", ("--without-episode", "99999"), "no memory of episode 99999"),
        ("why", "mki", ("--without-lesson", "5"), "--without-episode"),
        ("why", "ridge", ("--without-episode", "5"), "--without-lesson"),
        ("why", "ridge", ("--without-lesson", "999"), "no lesson of episode 999"),
        ("why", "mki", ("--env", "MountainCarContinuous-v0"), "not made for MountainCar"),
        ("why", "mki", ("--env", "Nothing-v0"), "cannot make environment 'Nothing-v0'"),
        ("why", "mki", ("--memories", "0"), "memories=0"),
        ("why", "mki", ("--frame", "why.jpg"), "not the name of a .png"),
        ("why", "mki", ("--stpe", "1"), "did you mean '--step'"),
        ("why", "alone", (), "--env"),
        ("lessons", "mki", (), "MkiPolicy, which has memories and no lessons"),
        ("lessons", "ridge", ("--count", "0"), "count=0"),
        ("lessons", "ridge", ("--deleton",), "did you mean '--deletion'"),
    ],
)
def test_what_cannot_be_said_is_refused(
    run_dir: Path,
    taught_dir: Path,
    tmp_path: Path,
    capsys: Capsys,
    command: str,
    run: str,
    flags: tuple[str, ...],
    reason: str,
) -> None:
    places = {"mki": run_dir, "ridge": taught_dir, "alone": tmp_path / "m.safetensors"}
    places["alone"].write_bytes((run_dir / "model.safetensors").read_bytes())
    assert main([command, str(places[run]), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line
