"""Why an action is what it is, what it is without some memories, and the episodes it is part of."""

from __future__ import annotations

import gc
import hashlib
import io
import weakref
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from PIL import Image

from explorer.conftest import Page, opened
from explorer.drawn import STEPS, DrawnEnv
from imel.explain import explain
from imel.explorer.episodes import Episode, record
from imel.explorer.insight import Insight
from imel.explorer.lesson_view import insight_of
from imel.explorer.session import Session
from imel.policies import MkiPolicy
from imel.runs.evaluation import evaluate
from imel.runs.stored import find_run

STATE = np.array([0.3, -0.4], dtype=np.float32)


def kernel_average(insight: Insight, kept: np.ndarray, values: np.ndarray) -> np.ndarray:
    """MKI written down: softmax of negative squared distances in feature space."""
    features, state = (
        insight.policy.embed(insight.tensor(states)).detach().double().numpy()
        for states in (insight.memory("states"), STATE[None])
    )
    logits = -np.square(features[kept] - state).sum(axis=1)
    weights = np.exp(logits - logits.max())
    result: np.ndarray = weights / weights.sum() @ values[kept]
    return result


@pytest.fixture(scope="module")
def asked(run: Path) -> Iterator[Insight]:
    """The policy of a run with MKI."""
    session = Session(find_run(run))
    yield session.prepare()
    session.close()


def test_without_some_memories_the_mean_is_made_of_the_others(asked: Insight) -> None:
    before, arrays = asked.step(STATE)
    anchor = kernel_average(asked, np.arange(asked.rows), asked.memory("means"))
    np.testing.assert_allclose(before["anchor"], anchor, atol=1e-4)
    expected, _ = asked.policy.act(torch.as_tensor(STATE)[None])
    np.testing.assert_array_equal(np.float32(before["mean"]), expected[0].numpy())
    gone = arrays["rows"][:20]
    forgotten = np.isin(np.arange(asked.rows), gone)
    reduced = insight_of(asked.policy, asked.names, forgotten)
    after, left = reduced.step(STATE)
    average = kernel_average(asked, np.flatnonzero(~forgotten), asked.memory("improved_means"))
    np.testing.assert_allclose(after["mean"], average, atol=1e-4)
    assert np.abs(np.subtract(after["mean"], before["mean"])).max() > 1e-3
    assert not set(left["rows"]) & set(gone)
    for weights in (arrays["weights"], left["weights"]):
        assert weights.sum() == pytest.approx(1.0, abs=0.02), "but for the smallest"


def test_a_step_lists_the_memories_behind_it_the_largest_share_first(page: Page) -> None:
    episode = page.played(page.newest, seed=3)
    document, arrays = page.step(episode, 5, page.newest)
    insight = page.session.insight(page.newest)
    state = page.session.episode(episode).observation(5)
    why = explain(insight.policy, state)
    np.testing.assert_allclose(document["mean"], why.mean, atol=1e-6)
    shown = len(arrays["rows"])
    np.testing.assert_array_equal(arrays["rows"], why.rows[:shown])
    np.testing.assert_allclose(arrays["weights"], why.weights[:shown], atol=1e-7)
    assert (np.diff(np.abs(arrays["weights"])) <= 0).all()
    first, row = document["memories"][0], int(why.rows[0])
    assert first["row"] == row
    for name in ("episode", "step", "iteration", "advantage", "mean", "improved_mean"):
        found = first[name.removesuffix("_mean")]
        np.testing.assert_allclose(found, insight.memory(f"{name}s")[row], rtol=1e-6)
    np.testing.assert_allclose(first["adds"], why.contributions[0])
    assert document["familiarity"] == pytest.approx(why.familiarity)
    place = page.session.map(page.newest, "states").coordinates(insight.tensor(state[None]))
    np.testing.assert_allclose(document["position"], place[0], atol=1e-6)


def test_forgetting_makes_a_copy_and_undoing_is_the_old_name(page: Page) -> None:
    episode = page.played(page.newest, seed=3)
    before, arrays = page.step(episode, 0, page.newest)
    rows = arrays["rows"][:5]
    made = page.forget(rows)
    assert made["forgotten"] == len(rows)
    after, lit = page.step(episode, 0, made["model"])
    assert after["mean"] != before["mean"]
    again = page.forget(lit["rows"][:1], made["model"])
    assert again["forgotten"] == len(rows) + 1
    assert page.step(episode, 0, made["model"])[0]["mean"] == after["mean"]
    assert page.step(episode, 0, page.newest)[0]["mean"] == before["mean"]


def test_fault_28_what_cannot_be_forgotten_is_refused(page: Page) -> None:
    rows = page.get("model", model=page.newest)["rows"]
    for wrong, reason in (
        (range(rows), "at least one memory has to be left"),
        ([rows], f"from 0 to {rows - 1}"),
        ([], "rows"),
        *(([row], "rows") for row in (-1, 2**31, 2**70, -(2**70))),
    ):
        assert reason in page.forget(wrong, status=400)["error"]
    assert "no longer kept" in page.refusal("model", model=f"{page.newest}e77")


def test_what_was_not_used_for_long_is_dropped_and_its_memory_freed(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imel.explorer.session._EDITS", 3)
    episode = f"{page.newest}-remembered-{page.session.prepare().memory('episodes')[0]}"
    page.ask("episode", episode=episode)
    first = page.forget([0])["model"]
    page.step(episode, 0, first)
    policy = weakref.ref(page.session.insight(first).left)
    gc.disable()
    try:
        for row in range(1, 8):
            page.step(episode, 0, page.forget([row])["model"])
        assert policy() is None, "freed without the collector of cycles"
    finally:
        gc.enable()
    assert "no longer kept" in page.refusal("model", model=first)


def test_exploring_changes_no_file(page: Page, run: Path) -> None:
    def digests() -> dict[Path, str]:
        files = (path for path in run.rglob("*") if path.is_file())
        return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = digests()
    model = page.forget([0, 1, 2])["model"]
    page.played(model)
    page.evaluated(model, 2)
    assert digests() == before


def test_a_recording_is_the_policy_in_the_environment(page: Page) -> None:
    name = page.played(page.newest, seed=11)
    document, arrays = page.arrays("episode", episode=name)
    assert document["steps"] == STEPS
    assert document["ended"] == "truncated by the time limit"
    env = gymnasium.make("explorer.drawn:Drawn-v0")
    policy = page.session.insight(page.newest).policy
    state, _ = env.reset(seed=11)
    for step in range(STEPS):
        np.testing.assert_array_equal(page.session.episode(name).observation(step), state)
        action, _ = policy.predict(state, deterministic=True)
        state, reward, *_ = env.step(action)
        assert arrays["rewards"][step] == pytest.approx(float(reward), rel=1e-5)


def test_sampled_actions_differ_from_the_mean_and_are_repeatable(page: Page, run: Path) -> None:
    def actions(asked: Page, kind: str) -> np.ndarray:
        return asked.arrays("episode", episode=asked.played(page.newest, 1, kind))[1]["actions"]

    for other in opened(run):
        np.testing.assert_array_equal(actions(page, "sampled"), actions(other, "sampled"))
    assert not np.allclose(actions(page, "sampled"), actions(page, "mean"))


def test_an_episode_is_played_only_while_a_page_asks_and_keeps_nobody_waiting(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imel.explorer.episodes._MOMENT", 0.0)
    names = [f"{page.newest}-mean-{seed}" for seed in range(12)]
    first = f"{page.newest}-mean-100"
    page.ask("episode", episode=first)
    for name in names:
        document, _ = page.arrays("episode", episode=name)
        assert document["steps"] == 1, "each has its first step at once"
        page.step(first, 0, page.newest)
    for name in names[-2:]:
        assert page.arrays("episode", episode=name)[0]["steps"] == 2, "nobody asked meanwhile"
    assert "no longer kept" in page.refusal("frame", episode=names[0], step=0)


def test_frames_show_the_environment_at_their_step(page: Page) -> None:
    name = page.played(page.newest, seed=2)
    env = DrawnEnv()
    drawn = page.arrays("episode", episode=name)[0]["frames"]
    assert drawn[0] == 0
    for step in {0, drawn[len(drawn) // 2], drawn[-1]}:
        answer = page.ask("frame", episode=name, step=step)
        picture = np.asarray(Image.open(io.BytesIO(answer.content)))
        env.place = page.session.episode(name).observation(step)
        column, row = env.pixel()
        assert picture[row, column].min() > 200
        assert picture.min() < 60


def test_slow_drawing_leaves_out_frames_and_shows_the_one_before(
    asked: Insight, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(10_000))
    monkeypatch.setattr("imel.explorer.episodes.time.perf_counter", lambda: next(seconds) * 0.1)
    episode = Episode()
    list(record(episode, asked.left, "explorer.drawn:Drawn-v0", 0, False))
    assert len(episode.steps) == STEPS
    assert 5 < len(episode.frames) < STEPS
    missing = next(step for step in range(STEPS) if step not in episode.frames)
    assert episode.frame(missing) == episode.frame(missing - 1)


@pytest.mark.parametrize(("env", "reason"), [("Blind", "no light"), ("Undrawn", "render_mode")])
def test_an_environment_that_cannot_draw_is_played_without_frames(
    asked: Insight, env: str, reason: str
) -> None:
    episode = Episode()
    list(record(episode, asked.left, f"explorer.drawn:{env}-v0", 0, False))
    assert len(episode.steps) == STEPS
    assert not episode.frames
    assert reason in str(episode.no_frames)


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_environment_that_fails_is_named_and_the_explorer_goes_on(
    page: Page, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail(self: DrawnEnv, action: object) -> None:
        raise error("it rained")

    with monkeypatch.context() as patch:
        patch.setattr(DrawnEnv, "step", fail)
        assert "it rained" in page.refusal("episode", episode=f"{page.newest}-mean-0")
        assert "it rained" in page.refusal("evaluation", model=page.newest)
    assert page.arrays("episode", episode=page.played(page.newest))[0]["steps"] == STEPS


def test_a_remembered_episode_is_its_memories_in_order(page: Page) -> None:
    insight = page.session.insight(page.newest)
    number = int(insight.memory("episodes")[100])
    document, arrays = page.arrays("episode", episode=f"{page.newest}-remembered-{number}")
    rows = document["rows"]
    assert sorted(rows) == np.flatnonzero(insight.memory("episodes") == number).tolist()
    assert (np.diff(insight.memory("steps")[rows]) == 1).all()
    np.testing.assert_allclose(arrays["rewards"], insight.memory("rewards")[rows], rtol=1e-6)
    unknown = f"{page.newest}-remembered-123456"
    assert "no memory of episode 123456" in page.refusal("episode", episode=unknown)


def test_a_trail_is_the_episode_on_the_map_with_the_policys_actions(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imel.explorer.insight._WEIGHTS_AT_ONCE", 3 * 384)  # in several parts
    name = page.played(page.newest, seed=4)
    where = {"frame": page.newest, "projection": "states"}
    _, arrays = page.arrays("trail", episode=name, model=page.newest, **where)
    for step in (0, 7):
        document, _ = page.step(name, step, page.newest)
        np.testing.assert_allclose(arrays["means"][step], document["mean"], atol=1e-5)
        np.testing.assert_allclose(arrays["points"][step], document["position"], atol=1e-5)


def test_an_evaluation_is_that_of_imel_eval_and_changes_with_what_is_forgotten(
    page: Page,
) -> None:
    insight = page.session.insight(page.newest)
    whole = page.evaluated(page.newest, 3)
    expected = evaluate(insight.policy, "explorer.drawn:Drawn-v0", 3).returns
    np.testing.assert_allclose(whole, expected, rtol=1e-4)
    right = np.flatnonzero(insight.memory("states")[:, 0] > 0)
    assert page.evaluated(page.forget(right)["model"], 3) != whole


def test_a_model_that_remembers_nothing_yet_says_so(tmp_path: Path) -> None:
    env = DrawnEnv()
    path = tmp_path / "empty.safetensors"
    MkiPolicy(env.observation_space, env.action_space, memory_size=8).save(str(path))
    for page in opened(path, "explorer.drawn:Drawn-v0"):
        page.session.prepare()
        assert page.get("model", model="m0")["rows"] == 0
        for question in (
            {"path": "map", "projection": "states"},
            {"path": "colour", "by": "age"},
        ):
            assert "remembers nothing" in page.refusal(model="m0", frame="m0", **question)
        assert "remembers nothing" in page.refusal("episode", episode="m0-mean-0")
