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

from explorer.conftest import Page
from explorer.drawn import HEIGHT, WIDTH
from imel.explain import explain
from imel.explorer import DEMO
from imel.explorer.lessons import LessonInsight, lesson_colours, make_lesson_plane
from imel.explorer.session import Session
from imel.pictures.curve import spread
from imel.runs.stored import find_run

ON = {"projection": "run"}


@pytest.fixture
def lessons(taught: Path) -> Iterator[Page]:
    """The page of a run with lessons."""
    session = Session(find_run(taught))
    yield Page(session)
    session.close()


@pytest.fixture
def insight(lessons: Page) -> LessonInsight:
    found = lessons.session.prepare()
    assert isinstance(found, LessonInsight)
    return found


def test_a_step_has_the_share_of_every_lesson_and_the_largest_in_words(
    lessons: Page, insight: LessonInsight
) -> None:
    episode = lessons.played(lessons.newest, seed=3)
    document, arrays = lessons.arrays(
        "step", episode=episode, step=5, model=lessons.newest, frame=lessons.newest, **ON
    )
    state = lessons.session.episode(episode).observation(5)
    why = explain(insight.policy, state)
    by_episode = dict(zip(why.lessons.episodes, why.shares, strict=True))
    episodes = insight.lessons("episodes")
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
    query = {"episode": episode, "step": 2, "frame": lessons.newest, **ON}
    before, arrays = lessons.arrays("step", model=lessons.newest, **query)
    gone = [each["row"] for each in before["lessons"][:3]]
    made = lessons.post("forget", model=lessons.newest, rows=gone)
    assert (made["kind"], made["forgotten"]) == ("lessons", 3)
    after, left = lessons.arrays("step", model=made["model"], **query)
    lost = np.sum([each["adds"] for each in before["lessons"][:3]], axis=0)
    np.testing.assert_allclose(np.subtract(before["mean"], after["mean"]), lost, atol=1e-5)
    assert not {each["row"] for each in after["lessons"]} & set(gone)
    assert (left["shares"][gone] == 0).all()
    assert (arrays["shares"][gone] != 0).all()


def test_a_map_over_the_run_has_the_returns_of_episodes_in_their_order(
    lessons: Page, insight: LessonInsight
) -> None:
    document, arrays = lessons.arrays("map", model=lessons.newest, frame=lessons.newest, **ON)
    returns = insight.lessons("returns")  # of single episodes: nothing is merged yet
    for axis, values in ((0, spread(insight.lessons("ends"))), (1, returns)):
        assert np.corrcoef(arrays["points"][:, axis], values)[0, 1] > 0.9999
    assert document["labels"] == ["steps of the run", "return"]
    assert np.abs(arrays["points"]).max() <= 0.9 + 1e-5


def test_a_map_by_what_was_taught_is_that_of_principal_component_analysis(
    insight: LessonInsight,
) -> None:
    states = insight.column("states")[:: -(-len(insight.column("states")) // 64)]
    explained = [explain(insight.policy, state) for state in states]
    taught = np.array(
        [why.lessons.contributions[np.argsort(why.lessons.episodes)] for why in explained]
    )  # [n, L, d_a]
    rows = taught.transpose(1, 0, 2).reshape(insight.rows, -1)
    plane = make_lesson_plane(insight, "taught")
    for axis, component in enumerate(PCA(2).fit_transform(rows).T):
        assert abs(np.corrcoef(plane.rows(insight)[:, axis], component)[0, 1]) > 0.999


def test_lessons_are_coloured_by_size_return_or_age(insight: LessonInsight) -> None:
    sizes = lesson_colours(insight, insight, "size")
    order = np.argsort(insight.sizes)
    assert (np.diff(sizes.values[order]) >= 0).all()
    assert sizes.values.min() == 0.0
    assert sizes.values.max() == 1.0
    assert lesson_colours(insight, insight, "age").label == "steps of the run"


def test_a_lesson_shows_the_kept_state_most_like_the_one_at_hand(
    lessons: Page, insight: LessonInsight, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pose(env: object, state: np.ndarray) -> None:
        env.unwrapped.place = state  # type: ignore[attr-defined]

    monkeypatch.setattr("imel.explorer.session.pose", pose)
    row = 7
    kept = insight.lessons("samples")[row]
    for number in (0, 5):
        assert insight.alike(kept[number] + 1e-4, np.array([row])).tolist() == [number]
        address = f"/api/moment?model={lessons.newest}&row={row}&number={number}"
        answer = lessons.client.get(address)
        with Image.open(io.BytesIO(answer.content)) as image:
            pixels = np.asarray(image.convert("L"))
        assert pixels.shape == (HEIGHT, WIDTH)
        bright = np.argwhere(pixels > 200).mean(axis=0)
        share = (kept[number] + 1.5) / 3.0
        expected = (1.0 - share[1]) * (HEIGHT - 1), share[0] * (WIDTH - 1)
        np.testing.assert_allclose(bright, expected, atol=2.0)


def test_what_a_run_with_lessons_does_not_have_is_refused(lessons: Page) -> None:
    newest = {"model": lessons.newest, "frame": lessons.newest}
    assert "lessons have no map by 'states'" in lessons.refusal(
        "map", projection="states", **newest
    )
    assert "no colour by 'advantage'" in lessons.refusal("colour", by="advantage", **newest)
    assert "no state 8 of lesson 0" in lessons.refusal(
        "moment", model=lessons.newest, row=0, number=8
    )
    rows = lessons.get("model", model=lessons.newest)["rows"]
    assert f"0 to {rows - 1}" in lessons.refused_post("forget", model=lessons.newest, rows=[rows])


def test_what_a_run_with_memories_does_not_have_is_refused(page: Page) -> None:
    newest = {"model": page.newest, "frame": page.newest}
    assert "memories have no map by 'run'" in page.refusal("map", projection="run", **newest)
    assert "memories have none" in page.refusal("colour", by="size", **newest)
    assert "MkiPolicy has no lessons" in page.refusal("moment", model=page.newest, row=0, number=0)


def test_the_policy_without_lessons_is_the_one_that_is_played(
    lessons: Page, insight: LessonInsight
) -> None:
    made = lessons.post("forget", model=lessons.newest, rows=list(range(insight.rows)))
    episode = lessons.session.episode(lessons.played(made["model"], seed=1))
    assert np.abs(episode.arrays()[1]).max() < 1e-5, "it was taught nothing"
    whole = lessons.session.episode(lessons.played(lessons.newest, seed=1))
    expected = insight.policy.act(torch.from_numpy(whole.arrays()[0]))[0]
    np.testing.assert_allclose(whole.arrays()[1], expected, atol=1e-5)


def test_the_demo_that_ships_with_the_package_opens_and_is_small() -> None:
    session = Session(find_run(DEMO))
    insight = session.prepare()
    session.close()
    assert isinstance(insight, LessonInsight)
    assert insight.rows >= 10
    assert session.curve is not None
    assert sum(path.stat().st_size for path in DEMO.iterdir()) < 1 << 20
