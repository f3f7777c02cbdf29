"""A run with lessons: which ones make an action, what they looked like, the policy without some."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.decomposition import PCA

from explorer.conftest import Page, opened
from explorer.drawn import HEIGHT, WIDTH
from imel.explain import explain
from imel.explorer import DEMO
from imel.explorer.lesson_view import LessonInsight
from imel.explorer.memory_map import colouring, make_map
from imel.pictures.curve import spread


@pytest.fixture
def lessons(taught: Path) -> Iterator[Page]:
    """The page of a run with lessons."""
    yield from opened(taught)


@pytest.fixture
def insight(lessons: Page) -> LessonInsight:
    found = lessons.session.prepare()
    assert isinstance(found, LessonInsight)
    return found


def test_a_step_has_the_share_of_every_lesson_and_the_largest_in_words(
    lessons: Page, insight: LessonInsight
) -> None:
    episode = lessons.played(lessons.newest, seed=3)
    document, arrays = lessons.step(episode, 5, lessons.newest, "run")
    state = lessons.session.episode(episode).observation(5)
    why = explain(insight.policy, state)
    by_episode = dict(zip(why.lessons.episodes, why.shares, strict=True))
    episodes = insight.column("episodes")
    expected = [by_episode[number] for number in episodes]
    np.testing.assert_allclose(arrays["shares"], expected, atol=1e-6)
    np.testing.assert_allclose(document["mean"], why.mean, atol=1e-6)
    first = document["lessons"][0]
    assert first["row"] == np.abs(expected).argmax() == arrays["rows"][0]
    place = why.lessons.episodes.tolist().index(episodes[first["row"]])
    np.testing.assert_allclose(first["adds"], why.lessons.contributions[place], atol=1e-6)
    assert first["return"] == pytest.approx(why.lessons.returns[place])
    assert document["sentence"] in why.sentence()
    assert document["position"] is None


def test_taking_lessons_back_changes_the_action_by_what_they_added(
    lessons: Page, insight: LessonInsight
) -> None:
    episode = lessons.played(lessons.newest, seed=3)
    before, arrays = lessons.step(episode, 2, lessons.newest, "run")
    gone = [each["row"] for each in before["lessons"][:3]]
    made = lessons.forget(gone)
    assert (made["kind"], made["forgotten"]) == ("lessons", 3)
    after, left = lessons.step(episode, 2, made["model"], "run")
    lost = np.sum([each["adds"] for each in before["lessons"][:3]], axis=0)
    np.testing.assert_allclose(np.subtract(before["mean"], after["mean"]), lost, atol=1e-5)
    assert not {each["row"] for each in after["lessons"]} & set(gone)
    assert (left["shares"][gone] == 0).all()
    assert (arrays["shares"][gone] != 0).all()


def test_a_map_over_the_run_has_the_returns_of_episodes_in_their_order(
    lessons: Page, insight: LessonInsight
) -> None:
    on = {"frame": lessons.newest, "projection": "run"}
    document, arrays = lessons.arrays("map", model=lessons.newest, **on)
    returns = insight.column("returns")  # of single episodes: nothing is merged yet
    for axis, values in ((0, spread(insight.column("ends"))), (1, returns)):
        assert np.corrcoef(arrays["points"][:, axis], values)[0, 1] > 0.9999
    assert document["labels"] == ["steps of the run", "return"]
    assert np.abs(arrays["points"]).max() <= 0.9 + 1e-5


def test_a_map_by_what_was_taught_is_that_of_principal_component_analysis(
    insight: LessonInsight,
) -> None:
    remembered = insight.memory("states")
    states = remembered[:: -(-len(remembered) // 64)]
    explained = [explain(insight.policy, state) for state in states]
    taught = np.array(
        [why.lessons.contributions[np.argsort(why.lessons.episodes)] for why in explained]
    )  # [n, L, d_a]
    rows = taught.transpose(1, 0, 2).reshape(insight.rows, -1)
    points = make_map(insight, "taught").rows(insight)
    for axis, component in enumerate(PCA(2).fit_transform(rows).T):
        assert abs(np.corrcoef(points[:, axis], component)[0, 1]) > 0.999


def test_lessons_are_coloured_by_size_return_or_age(insight: LessonInsight) -> None:
    sizes = colouring(insight, insight, "size")[1]["values"]
    order = np.argsort(insight.column("sizes"))
    assert (np.diff(sizes[order]) >= 0).all()
    assert sizes.min() == 0.0
    assert sizes.max() == 1.0
    assert colouring(insight, insight, "age")[0]["label"] == "steps of the run"


def test_columns_hold_numbers_of_episodes_exactly(lessons: Page, insight: LessonInsight) -> None:
    numbers = torch.arange(insight.rows) + 2**24 + 1  # which float32 would round
    insight.policy.lessons.column("episodes").copy_(numbers)
    _, arrays = lessons.arrays("columns", model=lessons.newest)
    np.testing.assert_array_equal(arrays["episodes"], numbers)
    np.testing.assert_allclose(arrays["returns"], insight.column("returns"), rtol=1e-6)


def test_a_lesson_shows_the_kept_state_most_like_the_one_at_hand(
    lessons: Page, insight: LessonInsight, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pose(env: object, state: np.ndarray) -> None:
        env.unwrapped.place = state  # type: ignore[attr-defined]

    monkeypatch.setattr("imel.explorer.session.pose", pose)
    row = 7
    kept = insight.column("samples")[row]
    for number in (0, 5):
        assert insight.alike(kept[number] + 1e-4, np.array([row])).tolist() == [number]
        answer = lessons.ask("picture", model=lessons.newest, row=row, number=number)
        with Image.open(io.BytesIO(answer.content)) as image:
            pixels = np.asarray(image.convert("L"))
        assert pixels.shape == (HEIGHT, WIDTH)
        bright = np.argwhere(pixels > 200).mean(axis=0)
        share = (kept[number] + 1.5) / 3.0
        expected = (1.0 - share[1]) * (HEIGHT - 1), share[0] * (WIDTH - 1)
        np.testing.assert_allclose(bright, expected, atol=2.0)


def test_what_a_run_with_lessons_does_not_have_is_refused(lessons: Page) -> None:
    newest = {"model": lessons.newest, "frame": lessons.newest}
    reason = lessons.refusal("map", projection="states", **newest)
    assert "lessons have no map by 'states'" in reason
    assert "no colour by 'advantage'" in lessons.refusal("colour", by="advantage", **newest)
    assert "no state 8" in lessons.refusal("picture", model=lessons.newest, row=0, number=8)
    rows = lessons.get("model", model=lessons.newest)["rows"]
    assert f"0 to {rows - 1}" in lessons.forget([rows], status=400)["error"]


def test_the_policy_without_lessons_is_the_one_that_is_played(
    lessons: Page, insight: LessonInsight
) -> None:
    made = lessons.forget(range(insight.rows))
    episode = lessons.session.episode(lessons.played(made["model"], seed=1))
    assert np.abs(episode.columns()[1]).max() < 1e-5, "it was taught nothing"
    whole = lessons.session.episode(lessons.played(lessons.newest, seed=1))
    expected = insight.policy.act(torch.from_numpy(whole.columns()[0]))[0]
    np.testing.assert_allclose(whole.columns()[1], expected, atol=1e-5)


def test_the_demo_that_ships_with_the_package_opens_and_is_small() -> None:
    for page in opened(DEMO):
        insight = page.session.prepare()
        assert insight.kind == "lessons"
        assert insight.rows >= 10
        assert page.session.curve is not None
    assert sum(path.stat().st_size for path in DEMO.iterdir()) < 1 << 20
