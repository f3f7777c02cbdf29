"""Why an action is what it is, what it is without some memories, and the episodes it is part of."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from PIL import Image

from explorer.conftest import Page, train
from explorer.drawn import STEPS, DrawnEnv
from imel.explain import explain
from imel.explorer.episodes import Episode, record
from imel.explorer.insight import Insight
from imel.explorer.session import Session
from imel.policies import MkiPolicy
from imel.runs.evaluation import EVALUATION_SEED
from imel.runs.stored import find_run

STATE = np.array([0.3, -0.4], dtype=np.float32)


def kernel_average(
    insight: Insight, state: np.ndarray, kept: np.ndarray, values: np.ndarray
) -> np.ndarray:
    """MKI written down: softmax of negative squared distances in feature space."""
    features = insight.features(insight.column("states"))
    query = insight.features(state[None])
    assert features is not None
    assert query is not None
    logits = -np.square(features[kept].astype(np.float64) - query).sum(axis=1)
    weights = np.exp(logits - logits.max())
    result: np.ndarray = weights / weights.sum() @ values
    return result


@pytest.fixture(scope="module")
def asked(run: Path) -> Iterator[Insight]:
    """The policy of a run with MKI."""
    opened = Session(find_run(run))
    yield opened.prepare()
    opened.close()


def test_what_the_memories_add_is_the_action(asked: Insight) -> None:
    answer = asked.answer(STATE)
    assert answer.exact
    assert answer.contributions is not None
    np.testing.assert_allclose(answer.contributions.sum(axis=0), answer.mean, atol=1e-5)
    assert answer.weights is not None
    assert answer.anchor is not None
    every = np.arange(asked.rows)
    average = kernel_average(asked, STATE, every, asked.column("means"))
    np.testing.assert_allclose(answer.anchor, average, atol=1e-4)
    expected, _ = asked.policy.act(torch.as_tensor(STATE)[None])
    np.testing.assert_array_equal(answer.mean, expected[0].numpy())


def test_without_some_memories_the_mean_is_made_of_the_others(asked: Insight) -> None:
    weights = asked.answer(STATE).weights
    assert weights is not None
    gone = np.argsort(-weights)[:20]
    reduced = asked.without(gone)
    kept = np.setdiff1d(np.arange(asked.rows), gone)
    answer = reduced.answer(STATE)
    average = kernel_average(asked, STATE, kept, asked.column("improved_means")[kept])
    np.testing.assert_allclose(answer.mean, average, atol=1e-4)
    assert np.abs(answer.mean - asked.answer(STATE).mean).max() > 1e-3
    assert answer.weights is not None
    assert (answer.weights[gone] == 0).all()
    assert answer.weights.sum() == pytest.approx(1.0, abs=1e-5)
    (mean,), _ = reduced.act(STATE[None])
    np.testing.assert_allclose(mean, answer.mean, atol=1e-6)


def test_many_states_are_answered_as_each_of_them(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    insight = session.prepare()
    monkeypatch.setattr("imel.explorer.insight._WEIGHTS_AT_ONCE", 3 * insight.rows)
    states = insight.column("states")[:10]
    means, stds = insight.act(states)
    for state, mean, std in zip(states, means, stds, strict=True):
        np.testing.assert_allclose(insight.answer(state).mean, mean, atol=1e-5)
        np.testing.assert_allclose(insight.answer(state).std, std)


def test_a_step_lists_the_memories_behind_it_the_largest_share_first(page: Page) -> None:
    episode = page.played(page.newest, seed=3)
    document, arrays = page.step(episode, 5, page.newest)
    insight = page.session.insight(page.newest)
    state = page.session.episode(episode).observation(5)
    answer = insight.answer(state)
    assert answer.weights is not None
    np.testing.assert_allclose(document["mean"], answer.mean, atol=1e-6)
    rows = arrays["rows"].astype(int)
    np.testing.assert_allclose(arrays["weights"], answer.weights[rows], atol=1e-7)
    assert (np.diff(np.abs(arrays["weights"])) <= 0).all()
    assert rows[0] == np.abs(answer.weights).argmax()
    assert document["covered"] == pytest.approx(arrays["weights"].sum(), abs=1e-5)
    first = document["memories"][0]
    assert first["row"] == rows[0]
    np.testing.assert_allclose(first["improved"], insight.column("improved_means")[rows[0]])
    assert answer.contributions is not None
    np.testing.assert_allclose(first["adds"], answer.contributions[rows[0]])
    expected = explain(insight.policy, state).familiarity
    assert document["familiarity"] == pytest.approx(expected)
    assert first["episode"] == insight.column("episodes")[rows[0]]
    plane = page.session.plane(page.newest, "states", 0, 1)
    places = plane.points(state[None])
    assert places is not None
    np.testing.assert_allclose(document["position"], places[0], atol=1e-6)


def test_forgetting_changes_the_action_and_undoing_it_is_asking_for_the_old_model(
    page: Page,
) -> None:
    episode = page.played(page.newest, seed=3)
    before, arrays = page.step(episode, 0, page.newest)
    rows = [int(row) for row in arrays["rows"][:5]]
    made = page.post("forget", model=page.newest, rows=rows)
    assert made["forgotten"] == len(rows)
    after, lit = page.step(episode, 0, made["model"])
    assert after["mean"] != before["mean"]
    assert not set(rows) & set(lit["rows"].astype(int))
    again = page.post("forget", model=made["model"], rows=[int(lit["rows"][0])])
    assert again["forgotten"] == len(rows) + 1
    assert page.step(episode, 0, made["model"])[0]["mean"] == after["mean"]
    assert page.step(episode, 0, page.newest)[0]["mean"] == before["mean"]


def test_what_cannot_be_forgotten_is_refused(page: Page) -> None:
    rows = page.get("model", model=page.newest)["rows"]
    everything = page.refused_post("forget", model=page.newest, rows=list(range(rows)))
    assert "at least one memory has to be left" in everything
    assert f"from 0 to {rows - 1}" in page.refused_post("forget", model=page.newest, rows=[rows])
    assert f"from 0 to {rows - 1}" in page.refused_post("forget", model=page.newest, rows=[-1])
    assert "rows" in page.refused_post("forget", model=page.newest, rows=[])
    assert "no longer kept" in page.refusal("model", model=f"{page.newest}e77")


def test_exploring_changes_no_file(page: Page, run: Path) -> None:
    def digests() -> dict[Path, str]:
        files = (path for path in run.rglob("*") if path.is_file())
        return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = digests()
    model = page.post("forget", model=page.newest, rows=[0, 1, 2])["model"]
    page.played(model)
    page.finish(page.post("evaluate", model=model, episodes=2)["job"])
    assert digests() == before


def test_a_recording_is_the_policy_in_the_environment(page: Page) -> None:
    name = page.played(page.newest, seed=11)
    document, arrays = page.arrays("episode", episode=name)
    assert document["steps"] == STEPS
    assert document["frames"][0] == 0
    assert document["ended"] == "truncated by the time limit"
    env = gymnasium.make("explorer.drawn:Drawn-v0")
    policy = page.session.insight(page.newest).policy
    state, _ = env.reset(seed=11)
    rewards = []
    for step in range(STEPS):
        np.testing.assert_array_equal(page.session.episode(name).observation(step), state)
        action, _ = policy.predict(state, deterministic=True)
        state, reward, *_ = env.step(action)
        rewards.append(float(reward))
    np.testing.assert_allclose(arrays["rewards"], rewards, rtol=1e-5)
    assert document["return"] == pytest.approx(sum(rewards), rel=1e-5)


def test_sampled_actions_differ_from_the_mean_and_are_repeatable(page: Page) -> None:
    mean = page.arrays("episode", episode=page.played(page.newest, seed=1))[1]
    noisy = [
        page.arrays("episode", episode=page.played(page.newest, seed=1, noise=True))[1]
        for _ in range(2)
    ]
    np.testing.assert_array_equal(noisy[0]["actions"], noisy[1]["actions"])
    assert not np.allclose(noisy[0]["actions"], mean["actions"])


def test_frames_show_the_environment_at_their_step(page: Page) -> None:
    name = page.played(page.newest, seed=2)
    env = DrawnEnv()
    drawn = page.arrays("episode", episode=name)[0]["frames"]
    for step in {drawn[0], drawn[len(drawn) // 2], drawn[-1]}:
        answer = page.client.get("/api/frame", params={"episode": name, "step": step})
        picture = np.asarray(Image.open(io.BytesIO(answer.content)))
        env.place = page.session.episode(name).observation(step)
        column, row = env.pixel()
        assert picture[row, column].min() > 200
        assert picture.min() < 60


def test_slow_drawing_leaves_out_frames_and_shows_the_one_before(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(10_000))
    monkeypatch.setattr("imel.explorer.episodes.time.perf_counter", lambda: next(seconds) * 0.1)
    episode = Episode("slow")
    record(episode, session.prepare(), "explorer.drawn:Drawn-v0", 0, False, lambda _: None)
    assert len(episode) == STEPS
    assert 5 < len(episode.frames) < STEPS
    missing = next(step for step in range(STEPS) if step not in episode.frames)
    assert episode.frame(missing) == episode.frame(missing - 1)


def test_an_environment_that_cannot_draw_is_played_without_frames(session: Session) -> None:
    episode = Episode("blind")
    record(episode, session.prepare(), "explorer.drawn:Blind-v0", 0, False, lambda _: None)
    assert len(episode) == STEPS
    assert not episode.frames
    assert "no light" in str(episode.no_frames)


def test_a_remembered_episode_is_its_memories_in_order(page: Page) -> None:
    insight = page.session.insight(page.newest)
    number = int(insight.column("episodes")[100])
    name = page.post("remember", model=page.newest, episode=number)["episode"]
    document, arrays = page.arrays("episode", episode=name)
    rows = document["rows"]
    assert (insight.column("episodes")[rows] == number).all()
    assert len(rows) == (insight.column("episodes") == number).sum()
    assert (np.diff(insight.column("steps")[rows]) == 1).all()
    np.testing.assert_allclose(arrays["rewards"], insight.column("rewards")[rows], rtol=1e-6)
    assert "no memory of episode 123456" in page.refused_post(
        "remember", model=page.newest, episode=123456
    )


def test_a_trail_is_the_episode_on_the_map_with_the_policys_actions(page: Page) -> None:
    name = page.played(page.newest, seed=4)
    where = {"frame": page.newest, "projection": "states"}
    _, arrays = page.arrays("trail", episode=name, model=page.newest, **where)
    for step in (0, 7):
        document, _ = page.step(name, step, page.newest)
        np.testing.assert_allclose(arrays["means"][step], document["mean"], atol=1e-5)
        np.testing.assert_allclose(arrays["points"][step], document["position"], atol=1e-5)


def test_an_evaluation_plays_each_seed_once_with_the_mean_action(page: Page) -> None:
    job = page.finish(page.post("evaluate", model=page.newest, episodes=3)["job"])
    env = gymnasium.make("explorer.drawn:Drawn-v0")
    policy = page.session.insight(page.newest).policy
    for number, found in enumerate(job["result"]["returns"]):
        state, _ = env.reset(seed=EVALUATION_SEED + number)
        expected, over = 0.0, False
        while not over:
            action, _ = policy.predict(state, deterministic=True)
            state, reward, terminated, truncated, _ = env.step(action)
            expected, over = expected + float(reward), terminated or truncated
        assert found == pytest.approx(expected, rel=1e-4)
    assert job["progress"] == 1.0
    assert job["result"]["mean"] == pytest.approx(np.mean(job["result"]["returns"]))


def test_forgetting_changes_the_return(page: Page) -> None:
    whole = page.finish(page.post("evaluate", model=page.newest, episodes=3)["job"])
    insight = page.session.insight(page.newest)
    right = np.flatnonzero(insight.column("states")[:, 0] > 0)
    model = page.post("forget", model=page.newest, rows=right.tolist())["model"]
    reduced = page.finish(page.post("evaluate", model=model, episodes=3)["job"])
    assert reduced["result"]["mean"] != whole["result"]["mean"]


def test_a_policy_without_weights_still_has_a_map_and_actions(tmp_path: Path) -> None:
    folder = train(tmp_path / "np", "--policy", "np", "--total-timesteps", "384")
    session = Session(find_run(folder))
    page = Page(session)
    described = page.get("model", model=page.newest)
    assert not described["weighted"]
    assert not described["has_features"]
    where = {"model": page.newest, "frame": page.newest}
    page.arrays("map", **where, projection="states")
    assert "no learned features" in page.refusal("map", **where, projection="features")
    document, arrays = page.step(page.played(page.newest), 3, page.newest)
    assert len(document["mean"]) == 2
    assert document["anchor"] is None
    assert not document["memories"]
    assert not arrays
    session.close()


def test_a_model_that_remembers_nothing_yet_says_so(tmp_path: Path) -> None:
    env = DrawnEnv()
    path = tmp_path / "empty.safetensors"
    MkiPolicy(env.observation_space, env.action_space, memory_size=8).save(str(path))
    session = Session(find_run(path, "explorer.drawn:Drawn-v0"))
    page = Page(session)
    session.prepare()
    assert page.get("model", model="m0")["rows"] == 0
    for question in ({"path": "map", "projection": "states"}, {"path": "colour", "by": "age"}):
        assert "remembers nothing" in page.refusal(model="m0", frame="m0", **question)
    assert "remembers nothing" in page.refused_post("play", model="m0")
    session.close()
