"""An explanation is the computation: each memory's share, and which memory it is."""

from __future__ import annotations

import numpy as np
import pytest

from imel import Explanation, IMeL
from imel.errors import ImelError
from small import BATCH, STATES, answers, small_model
from toy import ScriptedEnv

LOW, HIGH = -3.0, 1.0
LIVED = np.array([[0.0, 1.0], [3.0, 2.0], [11.0, 0.0]], np.float32)
"""Observations a `ScriptedEnv` made: (episode, step)."""
exact_policies = pytest.mark.parametrize("policy", ["MkiPolicy", "NearestPolicy"])
weighted_policies = pytest.mark.parametrize("policy", ["MkiPolicy", "NearestPolicy", "AnpPolicy"])


def scripted_model(policy: str) -> IMeL:
    return small_model(policy, ScriptedEnv(bounds=(LOW, HIGH)), kl_budget=0.05).learn(2 * BATCH)


@exact_policies
def test_contributions_sum_to_the_mean(policy: str) -> None:
    model = scripted_model(policy)
    for state in LIVED:
        why = model.explain(state)

        assert why.exact
        np.testing.assert_allclose(why.contributions.sum(axis=0), why.mean, rtol=0, atol=1e-5)


@exact_policies
def test_in_the_papers_form_contributions_are_weights_times_improved_means(policy: str) -> None:
    model = small_model(policy, update="plain").learn(2 * BATCH)
    why = model.explain(STATES[0])

    np.testing.assert_allclose(why.contributions, why.weights[:, None] * why.improved_means)
    np.testing.assert_allclose(why.contributions.sum(axis=0), why.mean, rtol=0, atol=1e-5)


@pytest.mark.parametrize("update", ["plain", "anchored"])
def test_contributions_sum_to_the_mean_of_the_papers_plain_sum(update: str) -> None:
    model = small_model(policy_kwargs={"normalised": False}, update=update).learn(BATCH)
    why = model.explain(STATES[0])

    assert not np.isclose(why.weights.sum(), 1.0)
    np.testing.assert_allclose(why.contributions.sum(axis=0), why.mean, rtol=1e-5, atol=1e-5)


@weighted_policies
def test_the_explained_mean_is_what_the_model_does(policy: str) -> None:
    model = scripted_model(policy)
    for state, action in zip(LIVED, answers(model, LIVED), strict=True):
        mean = model.explain(state).mean

        assert abs(mean) < 1.0, "within the bounds, so that nothing is clipped"
        rescaled = LOW + (mean + 1.0) / 2.0 * (HIGH - LOW)
        np.testing.assert_allclose(rescaled, action, rtol=0, atol=1e-5)


@weighted_policies
def test_each_row_is_a_memory_with_everything_it_holds(policy: str) -> None:
    model = scripted_model(policy)
    why, memory = model.explain(LIVED[0]), model.policy.memory

    assert len(why.weights) == len(memory) == 2 * BATCH
    # A scripted observation says in which episode and at which step it was made
    np.testing.assert_array_equal(why.states[:, 1], why.steps)
    offsets = why.episodes - why.states[:, 0]
    assert (offsets == offsets[0]).all()
    place = {
        key: row
        for row, key in enumerate(
            zip(memory.column("episodes").tolist(), memory.column("steps").tolist(), strict=True)
        )
    }
    rows = [place[key] for key in zip(why.episodes.tolist(), why.steps.tolist(), strict=True)]
    assert sorted(rows) == list(range(len(memory)))
    for name in ("states", "actions", "means", "improved_means", "advantages"):
        np.testing.assert_array_equal(getattr(why, name), memory.column(name)[rows].numpy())


@weighted_policies
def test_the_largest_share_comes_first(policy: str) -> None:
    why = scripted_model(policy).explain(LIVED[1])

    assert (np.diff(why.weights) <= 0).all()
    assert why.weights[0] > why.weights[-1] >= 0
    np.testing.assert_allclose(why.weights.sum(), 1.0, rtol=1e-5)
    shares = why.weights[why.weights > 0].astype(np.float64)
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

    assert not why.exact
    assert not np.allclose(why.contributions.sum(axis=0), why.mean, rtol=0, atol=1e-5)
    assert "attention" in str(why)


def test_an_explanation_reads_as_a_table() -> None:
    why = Explanation(
        mean=np.array([0.25]),
        exact=True,
        effective_neighbours=1.9,
        weights=np.array([0.6, 0.4]),
        contributions=np.array([[0.3], [-0.05]]),
        improved_means=np.array([[0.5], [-0.125]]),
        means=np.array([[0.125], [0.0]]),
        actions=np.array([[0.25], [0.5]]),
        advantages=np.array([1.5, -0.25]),
        states=np.zeros((2, 3)),
        episodes=np.array([12, 7]),
        steps=np.array([3, 140]),
    )

    title, header, first, second = str(why).splitlines()

    assert title.startswith("mean [+0.25] ")
    assert title.endswith(" about 2 memories")
    assert header.split()[:4] == ["share", "episode", "step", "advantage"]
    assert first.split() == ["60.0%", "12", "3", "+1.50", "[+0.12]", "->", "[+0.50]"]
    assert second.split() == ["40.0%", "7", "140", "-0.25", "[+0.00]", "->", "[-0.12]"]
    assert len(header) >= len("  share  episode   step  advantage")
    assert first.index("12") + 2 == header.index("episode") + len("episode")


def test_the_table_of_a_large_memory_is_short() -> None:
    assert len(str(scripted_model("MkiPolicy").explain(LIVED[0])).splitlines()) == 10


@pytest.mark.parametrize("policy", ["NpPolicy", "RegressorPolicy"])
def test_a_policy_without_weights_says_so(policy: str) -> None:
    with pytest.raises(ImelError, match=f"no weights in a {policy}; MkiPolicy") as refusal:
        scripted_model(policy).explain(LIVED[0])
    assert "\n" not in str(refusal.value)
