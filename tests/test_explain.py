"""The paper's policies explained by their memories: each one's share, and which it is."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from imel import Explanation, IMeL
from imel.distributions import Categorical, Gaussian
from imel.errors import ImelError
from imel.policies.names import DimensionNames, Dimensions, names_for
from imel.policies.paper.neural_process import NeuralProcess
from small import BATCH, POLICIES, STATES, answers, small_model
from toy import ScriptedEnv

LOW, HIGH = -3.0, 1.0
LIVED = np.array([[0.0, 1.0], [3.0, 2.0], [11.0, 0.0]], np.float32)
"""Observations a `ScriptedEnv` made: (episode, step)."""
exact_policies = pytest.mark.parametrize("policy", ["MkiPolicy", "NearestPolicy"])
weighted_policies = pytest.mark.parametrize("policy", ["MkiPolicy", "NearestPolicy", "AnpPolicy"])
every_policy = pytest.mark.parametrize("policy", sorted({*POLICIES} - {"RidgePolicy"}))


def scripted_model(policy: str) -> IMeL:
    # Small steps from zero, lest means leave the range: these states are far from the prior's
    steps: dict[str, Any] = {"kl_budget": 0.001}
    if policy != "RegressorPolicy":  # which has no prior context
        steps["prior_std"] = 0.0
    return small_model(policy, ScriptedEnv(bounds=(LOW, HIGH)), **steps).learn(2 * BATCH)


def table(**changes: Any) -> Explanation:
    why = Explanation(
        observation=np.zeros(3),
        mean=np.array([0.25]),
        kind="sum",
        familiarity=0.75,
        effective_neighbours=1.9,
        weights=np.array([0.6, 0.4]),
        contributions=np.array([[0.3], [-0.05]]),
        rows=np.array([5, 1]),
        improved_means=np.array([[0.5], [-0.125]]),
        means=np.array([[0.125], [0.0]]),
        actions=np.array([[0.25], [0.5]]),
        advantages=np.array([1.5, -0.25]),
        states=np.zeros((2, 3)),
        episodes=np.array([12, 7]),
        steps=np.array([3, 140]),
        distribution=Gaussian(1),
        names=names_for(None, Dimensions(3, 1)),
    )
    return replace(why, **changes)


@exact_policies
def test_contributions_sum_to_the_mean(policy: str) -> None:
    model = scripted_model(policy)
    for state in LIVED:
        why = model.explain(state)

        assert why.exact
        np.testing.assert_allclose(why.contributions.sum(axis=0), why.mean, rtol=0, atol=1e-5)


@exact_policies
def test_contributions_are_weights_times_improved_means(policy: str) -> None:
    model = small_model(policy).learn(2 * BATCH)
    why = model.explain(STATES[0])

    np.testing.assert_allclose(why.contributions, why.weights[:, None] * why.improved_means)
    np.testing.assert_allclose(why.contributions.sum(axis=0), why.mean, rtol=0, atol=1e-5)


def test_contributions_sum_to_the_mean_where_weights_are_not_normalised() -> None:
    model = small_model("MkiPolicy", policy_kwargs={"normalised": False}).learn(BATCH)
    why = model.explain(STATES[0])

    assert not np.isclose(why.weights.sum(), 1.0)
    np.testing.assert_allclose(why.contributions.sum(axis=0), why.mean, rtol=1e-5, atol=1e-5)


@every_policy
def test_the_explained_mean_is_what_the_model_does(policy: str) -> None:
    model = scripted_model(policy)
    for state, action in zip(LIVED, answers(model, LIVED), strict=True):
        mean = model.explain(state).mean

        assert abs(mean) < 1.0, "within the bounds, so that nothing is clipped"
        rescaled = LOW + (mean + 1.0) / 2.0 * (HIGH - LOW)
        np.testing.assert_allclose(rescaled, action, rtol=0, atol=1e-5)


@every_policy
def test_each_row_is_a_memory_with_everything_it_holds(policy: str) -> None:
    model = scripted_model(policy)
    why, memory = model.explain(LIVED[0]), model.policy.memory

    assert len(why.weights) == len(memory) == 2 * BATCH
    # A scripted observation says in which episode and at which step it was made
    np.testing.assert_array_equal(why.states[:, 1], why.steps)
    offsets = why.episodes - why.states[:, 0]
    assert (offsets == offsets[0]).all()
    assert sorted(why.rows) == list(range(len(memory)))
    for name in Explanation.columns():
        np.testing.assert_array_equal(getattr(why, name), memory.column(name)[why.rows].numpy())


@weighted_policies
def test_the_largest_share_comes_first(policy: str) -> None:
    why = scripted_model(policy).explain(LIVED[1])

    sizes = np.abs(why.weights)
    assert (np.diff(sizes) <= 0).all()
    assert why.weights[0] > sizes[-1]
    assert why.weights[-1] >= 0
    np.testing.assert_allclose(why.weights.sum(), 1.0, rtol=1e-5)
    shares = sizes[sizes > 0].astype(np.float64) / sizes.sum(dtype=np.float64)
    entropy = -(shares * np.log(shares)).sum()
    np.testing.assert_allclose(why.effective_neighbours, np.exp(entropy), rtol=1e-4)


def test_nearest_neighbours_name_the_closest_memories() -> None:
    model = small_model("NearestPolicy", policy_kwargs={"neighbours": 5}).learn(BATCH)
    why = model.explain(STATES[0])

    deviation = model.policy.normaliser.variance.sqrt().numpy()
    distances = np.linalg.norm((why.states - STATES[0]) / deviation, axis=1)
    np.testing.assert_allclose(why.weights, [0.2] * 5 + [0.0] * (BATCH - 5), rtol=1e-6)
    assert distances[:5].max() < distances[5:].min()


def test_attention_is_flagged_as_no_account_of_the_mean() -> None:
    why = scripted_model("AnpPolicy").explain(LIVED[0])

    assert why.kind == "attention"
    assert not why.exact
    assert not np.allclose(why.contributions.sum(axis=0), why.mean, rtol=0, atol=1e-5)
    assert "attention" in str(why)


def nudged_means(model: IMeL, row: int, by: float, state: NDArray[np.float32]) -> float:
    """How fast the policy's mean at a state moves with one memory's improved mean."""
    policy = model.policy
    values = policy.memory.column("improved_means")
    answered = []
    for sign in (1.0, -1.0):
        values[row] += sign * by
        policy.invalidate()
        answered.append(float(policy.act(torch.from_numpy(state)[None])[0]))
        values[row] -= sign * by
    policy.invalidate()
    return (answered[0] - answered[1]) / (2 * by)


@pytest.mark.parametrize("options", [{}, {"deterministic": "mean"}])
def test_a_neural_process_is_explained_by_its_sensitivity(options: dict[str, Any]) -> None:
    model = small_model("NpPolicy", policy_kwargs=options).learn(BATCH)
    assert isinstance(model.policy.interpolator, NeuralProcess)
    why = model.explain(STATES[0])

    assert why.kind == "sensitivity"
    assert "sensitive to" in str(why)
    assert not why.exact
    np.testing.assert_allclose(why.weights.sum(), 1.0, rtol=1e-5)
    model.policy.double()  # so that differences of answers are derivatives
    state = STATES[0].astype(np.float64)
    slopes = np.array([nudged_means(model, int(row), 1e-4, state) for row in why.rows[:6]])
    np.testing.assert_allclose(
        why.contributions[:6, 0], slopes * why.improved_means[:6, 0], rtol=0.02, atol=1e-7
    )
    shares = np.abs(slopes) / np.abs(slopes).sum()
    np.testing.assert_allclose(why.weights[:6] / why.weights[:6].sum(), shares, rtol=0.02)


def test_a_regressor_says_that_its_memories_have_no_part() -> None:
    model = small_model("RegressorPolicy").learn(BATCH)
    why = model.explain(STATES[0])

    assert why.kind == "none"
    assert "does not consult" in str(why)
    assert not why.weights.any()
    assert not why.contributions.any()
    assert why.effective_neighbours == 0.0
    deviation = model.policy.normaliser.variance.sqrt().numpy()
    distances = np.linalg.norm((why.states - STATES[0]) / deviation, axis=1)
    assert (np.diff(distances) >= -1e-5).all(), "the nearest first"


def test_several_observations_are_explained_as_each_of_them() -> None:
    model = small_model("MkiPolicy").learn(BATCH)
    explained = model.explain(STATES[:3])

    assert isinstance(explained, list)
    assert len(explained) == 3
    for state, why in zip(STATES, explained, strict=False):
        alone = model.explain(state)
        np.testing.assert_array_equal(why.observation, state)
        np.testing.assert_allclose(why.weights, alone.weights)
        np.testing.assert_array_equal(why.rows, alone.rows)
        assert why.familiarity == alone.familiarity


@pytest.mark.parametrize("observation", [np.zeros(3), np.zeros((2, 3)), np.zeros((1, 1, 2))])
def test_what_is_no_observation_is_refused(observation: NDArray[Any]) -> None:
    with pytest.raises(ImelError, match=r"shape \(2,\)") as refusal:
        small_model().explain(observation)
    assert "\n" not in str(refusal.value)


def test_an_observation_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ImelError, match="not finite"):
        small_model().explain(np.array([np.nan, 0.0]))


def test_an_explanation_reads_as_a_table() -> None:
    sentence, familiar, header, first, second = str(table()).splitlines()

    assert sentence.startswith("mean [+0.25] is the sum of what 2 memories add")
    assert sentence.endswith("about 1.9 of them")
    assert familiar.startswith("familiarity 75 %")
    assert header.split()[:4] == ["share", "episode", "step", "advantage"]
    assert first.split() == ["60.0%", "12", "3", "+1.50", "[+0.12]", "->", "[+0.50]", "([+0.300])"]
    assert second.split()[:4] == ["40.0%", "7", "140", "-0.25"]
    assert first.index("12") + 2 == header.index("episode") + len("episode")


def test_a_table_of_discrete_actions_names_the_options_behind_the_logits() -> None:
    why = table(
        mean=np.log([0.2, 0.8]),
        distribution=Categorical([2], [0], ()),
        names=DimensionNames(("x", "y", "speed"), ("push left", "push right")),
    )
    sentence, _, header, *_ = str(why).splitlines()
    assert sentence.startswith("push right (80 %), push left (20 %) is the sum of")
    assert header.endswith("mu -> mu*  (what it adds), logits of push left, push right")
    assert "of the logit of push left, the mean dashed" in why._repr_html_()


def test_only_exact_parts_are_said_to_add_something() -> None:
    assert "adds" in str(table()).splitlines()[2]
    assert not any("(" in line for line in str(table(kind="attention")).splitlines()[2:])


def test_how_familiar_a_state_is_stands_in_words() -> None:
    assert "unlike anything" in table(familiarity=0.0).familiarity_sentence()
    assert "unknown" in table(familiarity=float("nan")).familiarity_sentence()


def test_the_table_of_a_large_memory_is_short() -> None:
    assert len(str(scripted_model("MkiPolicy").explain(LIVED[0])).splitlines()) == 11


def test_a_notebook_shows_a_drawing_of_the_memories() -> None:
    html = table()._repr_html_()
    drawn = ElementTree.fromstring(html.replace("<br>", "<br/>"))

    texts = [element.text for element in drawn.iter("text")]
    assert "12 · 3" in texts
    assert "60.0%" in texts
    widths = [float(bar.attrib["width"]) for bar in drawn.iter("rect")]
    assert widths[1] / widths[0] == pytest.approx(0.4 / 0.6, abs=1e-2)
    steps = [line for line in drawn.iter("line") if "stroke-dasharray" not in line.attrib]
    moved = [float(line.attrib["x2"]) - float(line.attrib["x1"]) for line in steps]
    assert moved[0] > 0 > moved[1]
    assert moved[0] / moved[1] == pytest.approx(0.375 / -0.125, rel=1e-2)
    assert re.search("mean .+ is the sum", html)


@every_policy
def test_every_policy_can_be_drawn(policy: str) -> None:
    why = small_model(policy).learn(BATCH).explain(STATES[0])
    ElementTree.fromstring(why._repr_html_().replace("<br>", "<br/>"))
    assert f"<Explanation: mean {str(why).splitlines()[0].partition('mean ')[2]}>" == repr(why)
