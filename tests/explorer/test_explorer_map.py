"""The map: where memories lie and what colours them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import PCA

from explorer.conftest import Page
from imel.explorer.insight import Insight
from imel.explorer.memory_map import colouring, make_map
from imel.explorer.session import Session
from imel.policies.names import DimensionNames


@pytest.fixture
def insight(session: Session) -> Insight:
    return session.prepare()


def test_two_chosen_dimensions_are_shown_as_they_are(insight: Insight) -> None:
    states = insight.memory("states")
    points = make_map(insight, "dimensions-1-0").coordinates(insight.tensor(states))
    for axis, dimension in ((0, 1), (1, 0)):
        slope, offset = np.polyfit(states[:, dimension], points[:, axis], 1)
        assert slope > 0
        expected = slope * states[:, dimension] + offset
        np.testing.assert_allclose(points[:, axis], expected, atol=1e-5)
    assert 0.98 < (np.abs(points).max(axis=1) <= 1.0).mean() <= 1.0


def test_dimensions_of_states_and_actions_have_their_names(insight: Insight) -> None:
    named = Insight(insight.policy, DimensionNames(("east", "north"), ("push", "pull")))
    assert make_map(named, "dimensions-1-0").labels == ("north", "east")
    assert colouring(named, named, "action", 0)[0]["label"] == "action taken, push"
    assert colouring(named, named, "improved", 1)[0]["label"] == "improved mean μ*, pull"


@pytest.mark.parametrize("projection", ["features", "states"])
def test_components_are_those_of_principal_component_analysis(
    insight: Insight, projection: str
) -> None:
    place = insight.policy.embed if projection == "features" else insight.policy.normaliser
    space = place(insight.tensor(insight.memory("states"))).detach().numpy()
    expected = PCA(2).fit(space)
    found = make_map(insight, projection)
    points = found.rows(insight)
    for axis, component in enumerate(expected.transform(space).T):
        assert abs(np.corrcoef(points[:, axis], component)[0, 1]) > 0.9999
        assert f"({expected.explained_variance_ratio_[axis]:.0%})" in found.labels[axis]


def test_a_colour_that_parts_at_zero_has_zero_in_the_middle(insight: Insight) -> None:
    scale, arrays = colouring(insight, insight, "advantage")
    assert scale["diverging"]
    assert scale["low"] == -scale["high"]
    np.testing.assert_array_equal(arrays["values"] > 0.5, insight.memory("advantages") > 0)
    assert arrays["values"].min() >= 0
    assert arrays["values"].max() <= 1


def test_returns_are_sums_over_the_remembered_part_of_each_episode(insight: Insight) -> None:
    scale, arrays = colouring(insight, insight, "return")
    episodes, rewards = insight.memory("episodes"), insight.memory("rewards")
    expected = np.array([rewards[episodes == number].sum() for number in episodes])
    scaled = np.clip((expected - scale["low"]) / (scale["high"] - scale["low"]), 0, 1)
    np.testing.assert_allclose(arrays["values"], scaled, atol=1e-5)


def test_age_and_actions_colour_too(insight: Insight) -> None:
    age = colouring(insight, insight, "age")[1]["values"]
    assert np.corrcoef(age, insight.memory("iterations"))[0, 1] > 0.99
    action = colouring(insight, insight, "action", 1)[1]["values"]
    order = np.argsort(insight.memory("actions")[:, 1])
    assert (np.diff(action[order]) >= 0).all()


def test_memories_of_all_checkpoints_are_drawn_in_the_same_plane(page: Page) -> None:
    newest, oldest = page.session.insight(page.newest), page.session.insight("m0")
    found = make_map(newest, "features")
    for model, insight in ((page.newest, newest), ("m0", oldest)):
        on = {"frame": page.newest, "projection": "features"}
        document, arrays = page.arrays("map", model=model, **on)
        states = newest.tensor(insight.memory("states"))
        np.testing.assert_allclose(arrays["points"], found.coordinates(states), atol=1e-5)
        assert tuple(document["labels"]) == found.labels
    own = make_map(oldest, "features").rows(oldest)
    assert not np.allclose(arrays["points"], own, atol=1e-3)


def test_what_the_map_cannot_show_is_refused_with_a_reason(page: Page) -> None:
    where = {"model": page.newest, "frame": page.newest}
    assert "0 to 1, not 7" in page.refusal("map", **where, projection="dimensions-7-1")
    assert "memories have no map by 'run'" in page.refusal("map", **where, projection="run")
    for projection in ("sideways", "dimensions", "dimensions-0", "dimensions-0--1"):
        assert "no map by" in page.refusal("map", **where, projection=projection)
    assert "0 to 1, not 5" in page.refusal("colour", **where, by="action", dimension=5)
    assert "no colour by 'size'" in page.refusal("colour", **where, by="size")
    assert "no model 'm99'" in page.refusal("model", model="m99")
    assert "of row 99999" in page.refusal("picture", model=page.newest, row=99999)
    assert "have no samples" in page.refusal("picture", model=page.newest, row=0, number=0)
