"""The map: where memories lie and what colours them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import PCA

from explorer.conftest import Page
from imel.explorer.insight import Insight
from imel.explorer.memory_map import colouring, make_plane
from imel.explorer.session import Session
from imel.policies.names import DimensionNames


@pytest.fixture
def insight(session: Session) -> Insight:
    return session.prepare()


def test_two_chosen_dimensions_are_shown_as_they_are(insight: Insight) -> None:
    states = insight.column("states")
    points = make_plane(insight, "dimensions", 1, 0).points(states)
    for axis, dimension in ((0, 1), (1, 0)):
        slope, offset = np.polyfit(states[:, dimension], points[:, axis], 1)
        assert slope > 0
        np.testing.assert_allclose(
            points[:, axis], slope * states[:, dimension] + offset, atol=1e-5
        )
    inside = np.abs(points).max(axis=1) <= 1.0
    assert 0.98 < inside.mean() <= 1.0


def test_dimensions_of_states_and_actions_have_their_names(session: Session) -> None:
    names = DimensionNames(("east", "north"), ("push", "pull"))
    insight = Insight(session.prepare().policy, names)
    assert make_plane(insight, "dimensions", 1, 0).labels == ("north", "east")
    assert colouring(insight, insight, "action", 0).label == "action taken, push"
    assert colouring(insight, insight, "improved", 1).label == "improved mean μ*, pull"


@pytest.mark.parametrize("projection", ["features", "states"])
def test_components_are_those_of_principal_component_analysis(
    insight: Insight, projection: str
) -> None:
    states = insight.column("states")
    space = insight.features(states) if projection == "features" else insight.normalised(states)
    assert space is not None
    expected = PCA(2).fit(space)
    plane = make_plane(insight, projection)  # type: ignore[arg-type]
    points = plane.points(states)
    for axis, component in enumerate(expected.transform(space).T):
        assert abs(np.corrcoef(points[:, axis], component)[0, 1]) > 0.9999
        assert f"({expected.explained_variance_ratio_[axis]:.0%})" in plane.labels[axis]


def test_a_plane_places_states_that_are_no_memories(insight: Insight) -> None:
    states = insight.column("states")
    plane = make_plane(insight, "states")
    middle = plane.points((states[:1] + states[1:2]) / 2)
    np.testing.assert_allclose(middle, plane.points(states[:2]).mean(axis=0)[None], atol=1e-5)


def test_a_colour_that_parts_at_zero_has_zero_in_the_middle(insight: Insight) -> None:
    colour = colouring(insight, insight, "advantage")
    advantages = insight.column("advantages")
    assert colour.diverging
    assert colour.low == -colour.high
    np.testing.assert_array_equal(colour.values > 0.5, advantages > 0)
    assert colour.values.min() >= 0
    assert colour.values.max() <= 1


def test_returns_are_sums_over_the_remembered_part_of_each_episode(insight: Insight) -> None:
    colour = colouring(insight, insight, "return")
    episodes, rewards = insight.column("episodes"), insight.column("rewards")
    expected = np.array([rewards[episodes == number].sum() for number in episodes])
    scaled = np.clip((expected - colour.low) / (colour.high - colour.low), 0, 1)
    np.testing.assert_allclose(colour.values, scaled, atol=1e-5)


def test_age_and_actions_colour_too(insight: Insight) -> None:
    age = colouring(insight, insight, "age")
    assert np.corrcoef(age.values, insight.column("iterations"))[0, 1] > 0.99
    action = colouring(insight, insight, "action", 1)
    order = np.argsort(insight.column("actions")[:, 1])
    assert (np.diff(action.values[order]) >= 0).all()


def test_the_map_comes_as_float32_for_all_memories(page: Page) -> None:
    document, arrays = page.arrays(
        "map", model=page.newest, frame=page.newest, projection="features"
    )
    insight = page.session.insight(page.newest)
    assert arrays["points"].shape == (insight.rows, 2)
    expected = make_plane(insight, "features").points(insight.column("states"))
    np.testing.assert_allclose(arrays["points"], expected, atol=1e-6)
    assert len(document["labels"]) == 2


def test_memories_of_another_checkpoint_are_drawn_in_the_same_plane(page: Page) -> None:
    _, arrays = page.arrays("map", model="m0", frame=page.newest, projection="features")
    plane = make_plane(page.session.insight(page.newest), "features")
    states = page.session.insight("m0").column("states")
    np.testing.assert_allclose(arrays["points"], plane.points(states), atol=1e-6)
    own = make_plane(page.session.insight("m0"), "features").points(states)
    assert not np.allclose(arrays["points"], own, atol=1e-3)


def test_columns_tell_what_each_memory_is(page: Page) -> None:
    _, arrays = page.arrays("columns", model=page.newest)
    insight = page.session.insight(page.newest)
    for name in ("episodes", "steps", "iterations", "advantages", "rewards"):
        np.testing.assert_allclose(arrays[name], insight.column(name), rtol=1e-6)


def test_what_the_map_cannot_show_is_refused_with_a_reason(page: Page) -> None:
    where = {"model": page.newest, "frame": page.newest}
    assert "0 to 1, not 7" in page.refusal("map", **where, projection="dimensions", x=7)
    assert "projection" in page.refusal("map", **where, projection="sideways")
    assert "0 to 1, not 5" in page.refusal("colour", **where, by="action", dimension=5)
    assert "no model 'm99'" in page.refusal("model", model="m99")
    assert "no memory 99999" in page.refusal("memory", model=page.newest, row=99999)
