"""What lessons are worth: against a return whose gradient is known, and from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from imel.cli.main import main
from imel.errors import ImelError
from imel.explain import policy_without
from imel.explain.reduced import largest_lessons, lesson_shares, lesson_sizes, similar_lessons
from imel.explain.worth import PlayedEpisode, Worth, lesson_worth
from imel.policies import Policy
from imel.runs.evaluation import evaluate
from small import BATCH, STATES, small_model


@pytest.fixture(scope="module")
def policy() -> Any:
    return small_model().learn(6 * BATCH).policy


def one_step(policy: Any, target: float, count: int) -> list[PlayedEpisode]:
    """Episodes of one step from random states, with the reward -(a - target)^2."""
    draws = np.random.default_rng(0)
    states = STATES[draws.integers(len(STATES), size=(count, 1))]
    mean, std = (part.numpy() for part in policy.act(torch.from_numpy(states[:, 0])))
    actions = (mean + std * draws.standard_normal(mean.shape))[:, None]
    rewards = -np.square(actions - target).sum(axis=2)
    return [PlayedEpisode(*row) for row in zip(states, actions, rewards, strict=True)]


def test_worth_is_the_slope_of_the_return_along_each_lesson(policy: Any) -> None:
    target, states = 2.0, torch.from_numpy(STATES)
    worth = lesson_worth(policy, one_step(policy, target, 4000), gamma=0.9)
    features = policy.features(policy.normaliser(states))
    added = torch.einsum("tp,lpa->lta", features, policy.lessons.column("coefficients"))
    slopes = -2.0 * (policy.act(states)[0] - target) * added
    expected = slopes.sum(dim=2).mean(dim=1).numpy()
    assert np.abs((worth.values - expected) / worth.errors).max() < 4.5
    assert np.abs(expected / worth.errors).max() > 10, "it is no test of noise alone"
    assert worth.episodes == 4000
    with pytest.raises(ImelError, match="at least four episodes"):
        lesson_worth(policy, one_step(policy, target, 3), gamma=0.9)


def test_shares_add_up_to_the_policy_and_decide_which_lessons_are_the_largest(policy: Any) -> None:
    shares, states = lesson_shares(policy), policy.memory.column("states")
    means, episodes = policy.act(states)[0], policy.lessons.column("episodes").tolist()
    for row in (0, len(episodes) // 2, len(episodes) - 1):
        taught = means - policy_without(policy, lessons=[episodes[row]]).act(states)[0]
        expected = float((taught * means).sum() / means.square().sum())
        assert shares[row] == pytest.approx(expected, abs=1e-4)
        size = taught.square().sum(dim=1).mean().sqrt()
        assert lesson_sizes(policy)[row] == pytest.approx(float(size), rel=1e-2)
    assert shares.sum() == pytest.approx(1.0)
    largest = [episodes.index(episode) for episode in largest_lessons(policy, 3)]
    assert sorted(shares)[:-4:-1] == pytest.approx(shares[largest])
    found = similar_lessons(policy, policy.lessons.column("samples")[9].numpy(), 3).tolist()
    assert found[0] == episodes[9], "the one that visited the states"
    assert len({*found}) == 3


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worth") / "run"
    size = "--n-envs 4 --rollout-size 256 --memory-size 512 --total-timesteps 1536"
    flags = [*size.split(), "--eval-episodes", "1", "--run-dir", str(folder)]
    assert main(["train", "Pendulum-v1", *flags]) == 0
    return folder


def test_harmful_lessons_are_dropped_and_what_comes_of_it_is_said(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy: Any = Policy.load(str(run_dir / "model.safetensors"))
    count = len(policy.lessons)
    worth = Worth(np.linspace(-3.0, 3.0, count), np.ones(count), 4)
    monkeypatch.setattr("imel.cli.lessons.lesson_worth", lambda *_: worth)
    flags = ["--drop-harmful", "--gradient-episodes", "4", "--episodes", "2", "--draws", "1"]
    assert main(["lessons", str(run_dir), *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    episodes = policy.lessons.column("episodes").numpy()
    harmful = episodes[worth.scores < -2.0].tolist()
    assert episodes[worth.harmful(least=2.5)].tolist() == episodes[worth.scores < -2.5].tolist()
    assert found["worth"]["harmful"] == found["dropped"]["lessons"] == harmful
    assert found["worth"]["helpful"] == episodes[worth.scores > 2.0].tolist()
    expected = evaluate(policy_without(policy, lessons=harmful), "Pendulum-v1", 2).returns
    assert found["dropped"]["without"] == pytest.approx(expected)
    change = np.mean(expected) - np.mean(found["dropped"]["whole"])
    assert found["dropped"]["change"] == pytest.approx(change)
    largest = int(lesson_sizes(policy).argmax())
    assert found["lessons"][0]["worth"] == pytest.approx(worth.values[largest])
    assert main(["lessons", str(run_dir), *flags]) == 0
    text = capsys.readouterr().out
    assert f"{len(harmful)} harm by more than two standard errors" in text
    assert f"without the {len(harmful)} that harm" in text
    assert "without them the policy is" in text


def test_worth_is_estimated_from_episodes_that_no_evaluation_plays(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[PlayedEpisode] = []

    def spied(policy: Any, played: list[PlayedEpisode], gamma: float) -> Worth:
        seen.extend(played)
        assert gamma == 0.995
        return lesson_worth(policy, played, gamma)

    monkeypatch.setattr("imel.cli.lessons.lesson_worth", spied)
    assert main(["lessons", str(run_dir), "--worth", "--gradient-episodes", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(seen) == found["worth"]["episodes"] == 4
    policy: Any = Policy.load(str(run_dir / "model.safetensors"))
    means = policy.act(torch.from_numpy(seen[0].states))[0].numpy()
    noise = (seen[0].actions - means) / policy.std.numpy()
    assert 0.7 < noise.std() < 1.3, "actions are sampled"
    assert len({tuple(episode.states[0]) for episode in seen}) == 4, "from different starts"
    assert len(found["worth"]["lessons"]) == len(policy.lessons)
