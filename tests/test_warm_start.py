"""A policy that imitates logged data before its first step, and learns on from there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from imel import IMeL
from imel.cli.main import main
from imel.datasets import Episode
from imel.errors import ImelError
from imel.policies.paper.paper_policy import FitSettings
from logged import ENV, columns_in_time, register, trained_run, wide_model
from samples import mean_kl
from small import BATCH, POLICIES, STATES, answers, differing, points, small_model, tensors_of
from toy import PointEnv


@pytest.fixture(autouse=True, scope="module")
def _environment() -> Iterator[None]:
    register()
    yield
    del gym.registry[ENV]


def demonstrations(count: int = 8, length: int = 16) -> list[dict[str, Any]]:
    """Episodes of `PointEnv` with the best action, which is known; nothing but what was seen."""
    draws = np.random.default_rng(1)
    seen = draws.uniform(-1.0, 1.0, (count, length + 1, 2)).astype(np.float32)
    return [{"observations": each, "actions": PointEnv.best(each[:-1])} for each in seen]


def rewarded(count: int = 8, length: int = 16) -> list[dict[str, Any]]:
    """The same with noise around a mean of zero, and what it brought."""
    draws = np.random.default_rng(2)
    episodes = demonstrations(count, length)
    for episode in episodes:
        actions, best = draws.normal(0.0, 0.3, (length, 1)), episode["actions"]
        episode["actions"], episode["rewards"] = (
            actions.clip(-1.0, 1.0),
            -np.square(actions - best)[:, 0],
        )
    return episodes


def acted(count: int = 8) -> list[dict[str, Any]]:
    """The same by a policy whose mu and sigma are known."""
    known = {"means": np.zeros((16, 1)), "stds": np.full((16, 1), 0.3)}
    return [{**episode, **known} for episode in rewarded(count)]


def exported(run: Path, out: Path) -> Path:
    """The file of a run's memory."""
    assert main(["export", str(run), "--episodes", "0", "--out", str(out)]) == 0
    return out / "memory.parquet"


def error(model: IMeL) -> float:
    """How far the policy's actions are from the best ones."""
    return float(np.square(answers(model) - PointEnv.best(STATES)).mean())


def episodes_of(model: IMeL) -> list[int]:
    """The episodes it remembers something of."""
    found: list[int] = torch.unique(model.policy.memory.column("episodes")).tolist()
    return found


# --- what is remembered ---


@pytest.mark.parametrize("name", POLICIES)
def test_demonstrations_are_imitated_before_the_first_step(name: str) -> None:
    fitted = issubclass(POLICIES[name].Settings, FitSettings)
    model = small_model(name, **({"gradient_steps": 20} if fitted else {}))
    before = error(model)
    assert error(model.warm_start(demonstrations())) < before / 4
    assert model.num_timesteps == 0


def test_a_demonstrated_action_is_mean_and_improved_mean() -> None:
    model, episodes = small_model("MkiPolicy"), demonstrations(count=3)
    model.warm_start(episodes)

    column = model.policy.memory.column
    taken = np.concatenate([episode["actions"] for episode in episodes])
    for name in ("actions", "means", "behaviour_means", "improved_means"):
        np.testing.assert_allclose(column(name), taken, rtol=0, atol=1e-6)
    assert (column("advantages") == 0).all()
    assert torch.equal(column("stds"), model.policy.std.expand(48, 1))
    assert column("episodes").tolist() == [0] * 16 + [1] * 16 + [2] * 16
    assert column("steps").tolist() == 3 * list(range(16))
    np.testing.assert_array_equal(column("states")[16:32], episodes[1]["observations"][:-1])
    np.testing.assert_array_equal(column("next_states")[16:32], episodes[1]["observations"][1:])


def test_actions_are_taken_from_the_environments_units() -> None:
    model = wide_model()  # from -2 to 6
    seen = np.zeros((4, 2))
    given = [Episode(observations=seen, actions=np.array([[-2.0], [2.0], [4.0]]))]
    model.warm_start(given)
    assert model.policy.memory.column("actions").flatten().tolist() == [-1.0, 0.0, 0.5]

    model = wide_model()
    logged = {"observations": seen, "actions": [[3.0], [2.0], [9.0]], "rewards": [1.0, 0.0, 0.0]}
    model.warm_start([{**logged, "means": [[2.0], [2.0], [6.0]], "stds": np.full((3, 1), 2.0)}])
    column = model.policy.memory.column
    assert column("actions").flatten().tolist() == [0.25, 0.0, 1.75]  # as drawn, not clipped
    assert column("means").flatten().tolist() == [0.0, 0.0, 1.0]
    assert column("stds").flatten().tolist() == [0.5, 0.5, 0.5]


def test_what_has_mu_sigma_and_rewards_is_improved() -> None:
    model = small_model("MkiPolicy", kl_budget=2.0).warm_start(acted())

    column = model.policy.memory.column
    improved, means = column("improved_means"), column("means")
    assert (means == 0).all()
    assert mean_kl(improved, means, column("stds")) == pytest.approx(2.0, rel=1e-4)
    # Towards actions that did better than expected, away from others
    step = (improved - means) * (column("actions") - means)
    assert torch.equal(step.flatten() > 0, column("advantages") > 0)
    direction = torch.from_numpy(PointEnv.best(column("states").numpy()))
    assert float((improved * direction).mean()) > 0
    assert float(column("advantages").mean()) == pytest.approx(0.0, abs=1e-5)


def test_rewards_teach_the_critic_and_states_the_normaliser() -> None:
    model, without = (small_model(critic_epochs=20) for _ in range(2))
    model.warm_start(rewarded())
    without.warm_start(demonstrations())

    assert float(model.learner.return_scale.count) == 128
    assert float(without.learner.return_scale.count) == 0
    untaught = dict(small_model().critic.state_dict())
    assert differing(dict(without.critic.state_dict()), untaught) == []
    with torch.no_grad():
        values = model.critic(model.policy.normaliser(torch.from_numpy(STATES)))
    assert float(values.mean()) < -0.5  # all rewards are negative
    states = np.concatenate([episode["observations"][:-1] for episode in rewarded()])
    np.testing.assert_allclose(model.policy.normaliser.mean, states.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(model.policy.normaliser.variance, states.var(axis=0), rtol=1e-5)


# --- how it is forgotten, and learned on from ---


def test_own_experience_replaces_the_oldest_logged_one_first() -> None:
    model = small_model(memory_size=3 * BATCH)
    model.warm_start(rewarded(count=12))  # 192 rows: full
    assert episodes_of(model) == list(range(12))

    model.learn(BATCH)
    memory = model.policy.memory
    logged = memory.column("iterations") < 0
    assert torch.unique(memory.column("episodes")[logged]).tolist() == list(range(4, 12))
    assert int((~logged).sum()) == BATCH
    assert int(memory.column("episodes")[~logged].min()) >= 12

    model.learn(2 * BATCH, reset_num_timesteps=False)
    assert (model.policy.memory.column("iterations") >= 0).all()


def test_of_too_many_rows_the_newest_episodes_are_taken() -> None:
    with pytest.warns(RuntimeWarning, match="newest 100 of 128"):
        model = small_model(memory_size=100).warm_start(rewarded(count=8))
    assert episodes_of(model) == [1, 2, 3, 4, 5, 6, 7]
    with pytest.warns(RuntimeWarning, match="newest 100 of 150"):
        model = small_model(memory_size=100).warm_start(rewarded(count=1, length=150))
    assert model.policy.memory.column("steps").tolist() == list(range(50, 150))


@pytest.mark.parametrize("name", POLICIES)
def test_a_warm_start_is_reproducible_and_survives_a_file(name: str, tmp_path: Path) -> None:
    model, again = (small_model(name) for _ in range(2))
    answers(again)  # by the prior context, if there is one: that has no part in what follows
    for each in (model, again):
        each.warm_start(acted() if name == "MkiPolicy" else rewarded())
    model.save(tmp_path / "warm")
    loaded = IMeL.load(tmp_path / "warm", env=points(seed=0))
    assert differing(tensors_of(model), tensors_of(again)) == []
    assert differing(tensors_of(model), tensors_of(loaded)) == []
    assert loaded.learn(BATCH).policy.memory.column("episodes").max() > 7


def test_ridge_imitates_demonstrations_and_keeps_those_with_rewards_to_learn_from() -> None:
    model = small_model().warm_start(demonstrations())
    assert len(model.policy.memory) == 0, "without rewards there is nothing more to learn"
    assert model.policy.lessons is not None
    assert len(model.policy.lessons) == 8
    assert len(model.learn(BATCH).policy.memory) == BATCH

    unpaid = [{**episode, "rewards": np.zeros(16)} for episode in demonstrations()]
    model = small_model(memory_size=3 * BATCH)
    before = error(model)
    assert error(model.warm_start(unpaid)) < before / 4
    assert len(model.learn(BATCH).policy.memory) == 3 * BATCH


@pytest.mark.parametrize("name", ["MkiPolicy", "RidgePolicy"])
def test_a_policy_begins_with_the_improved_means_of_a_run(name: str, tmp_path: Path) -> None:
    trained, run = trained_run(tmp_path / "run")
    model = wide_model(seed=2, policy=name).warm_start(exported(run, tmp_path / "out"))

    logged, column = (columns_in_time(each.policy.memory) for each in (trained, model))
    for column_name in ("states", "actions", "behaviour_means", "improved_means", "rewards"):
        assert torch.equal(column[column_name], logged[column_name])
    improved = column["improved_means"]
    residual = (model.policy.act(column["states"])[0] - improved).square().mean()
    assert float(residual) < 0.5 * float(improved.var())


# --- what is refused ---


def changed(**changes: Any) -> list[dict[str, Any]]:
    episodes = acted(count=2)
    episodes[1] |= changes
    return episodes


REFUSED: list[tuple[Any, str]] = [
    ([], "holds no episodes"),
    (changed(actions=np.full((16, 1), np.nan)), "episode 1 has actions that are NaN .* in row 0"),
    (changed(observations=np.full((17, 2), np.inf)), "states that are NaN or too large"),
    (changed(rewards=np.full(16, 1e39)), "rewards that are NaN or too large"),
    (changed(rewards=np.zeros(15)), r"rewards are \(15,\), not \(16,\)"),
    (changed(observations=np.zeros((16, 2))), r"shape \(16, 2\) and 16 actions"),
    (changed(observations=np.zeros((17, 3))), "episode 1 does not fit this model: .* into shape"),
    (changed(observations=np.zeros((17, 4))), r"shape \(17, 4\) and 16"),
    (changed(actions=np.zeros((16, 2))), r"actions are \(16, 2\), not \(16, 1\)"),
    (changed(stds=np.zeros((16, 1))), "stds that are not above zero"),
    (changed(actions=np.full((16, 1), 1.5), means=None), "outside of Box"),
    (changed(observations={"a": 1}), "does not fit this model: .*'dict'"),
    (changed(actions=["x"] * 16), "does not fit this model: .*could not convert string"),
    (changed(reward=[1]), "did you mean 'rewards'"),
    ([{"observations": np.zeros((2, 2))}], "has no actions"),
    ([{"observations": np.zeros((1, 2)), "actions": np.zeros((0, 1))}], "no transitions"),
    (7, "holds no episodes: give a Parquet file"),
    ("missing.parquet", "there is no file missing.parquet"),
    ("imel/missing-v0", "no local Minari dataset 'imel/missing-v0'"),
    ("a name", "neither a file nor the id"),
]


@pytest.mark.parametrize(("dataset", "reason"), REFUSED)
def test_what_does_not_fit_is_refused_and_changes_nothing(
    dataset: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    model = small_model()
    before, random = tensors_of(model), model.learner.generator.get_state()
    with pytest.raises(ImelError, match=reason) as refusal:
        model.warm_start(dataset)
    assert "\n" not in str(refusal.value)
    assert differing(before, tensors_of(model)) == []
    assert torch.equal(random, model.learner.generator.get_state())
    assert model.learner.clock.next_episode == 4


def test_it_comes_before_the_first_step_and_once() -> None:
    for model in (small_model().warm_start(rewarded()), small_model().learn(BATCH)):
        with pytest.raises(ImelError, match="before the first step"):
            model.warm_start(rewarded())


def test_files_of_other_spaces_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    _, run = trained_run(tmp_path / "run")
    memory = exported(run, tmp_path / "out")
    argv = ["--format", "minari", "--episodes", "0", "--out", "imel/point"]
    assert main(["export", str(run), *argv]) == 0
    (tmp_path / "cut.parquet").write_bytes(memory.read_bytes()[:-100])
    other_range = r"from \[-2.0\] to \[6.0\], not from \[-1.0\]"
    for dataset in (memory, "imel/point/memory-v0", tmp_path / "cut.parquet"):
        damaged = "is no Parquet file of imel export, or is damaged"
        reason = damaged if "cut" in str(dataset) else other_range
        with pytest.raises(ImelError, match=reason):
            small_model().warm_start(dataset)


# --- the command line ---


def test_a_run_begins_with_the_memories_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    trained, run = trained_run(tmp_path / "run")
    exported(run, Path("out"))
    argv = ["train", ENV, "--total-timesteps", "64", "--n-envs", "4", "--rollout-size", "64"]
    # A policy of the paper's leaves memories as they are
    argv += ["--memory-size", "256", "--eval-episodes", "1", "--policy", "nearest"]
    warm = [*argv, "--warm-start", "out/memory.parquet"]
    assert main([*warm, "--run-dir", "warm"]) == 0

    memory = IMeL.load("warm/model.safetensors").policy.memory
    logged = memory.column("iterations") < 0
    assert int(logged.sum()) == len(trained.policy.memory) == 128
    assert int((~logged).sum()) == 64
    memory.forget_rows(torch.nonzero(~logged).flatten())
    expected = columns_in_time(trained.policy.memory)
    assert differing(columns_in_time(memory), expected) == []
    assert json.loads(Path("warm/config.json").read_text())["warm_start"] == "out/memory.parquet"

    # Killed before its first checkpoint, a run begins anew and comes to the same end
    again = Path("again")
    again.mkdir()
    (again / "config.json").write_bytes(Path("warm/config.json").read_bytes())
    assert main(["resume", "again"]) == 0
    resumed, whole = (IMeL.load(f"{run}/model.safetensors") for run in ("again", "warm"))
    assert differing(tensors_of(resumed), tensors_of(whole)) == []

    capsys.readouterr()
    assert main([*argv, "--warm-start", "nothing.parquet", "--run-dir", "none"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "imel: error: there is no file nothing.parquet"
    assert not Path("none").exists()
