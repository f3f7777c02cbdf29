"""Policies explained by their memories: each one's share, and which it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from imel import Explanation, IMeL
from imel.distributions import Categorical, Gaussian
from imel.errors import ImelError
from imel.explain import explain, policy_without
from imel.explain.explanation import COLUMNS
from imel.learner import LearnerState
from imel.policies import Policy
from imel.policies.names import DimensionNames, Dimensions, names_for
from small import BATCH, STATES, answers, differing, small_model, tensors_of
from test_familiarity import policy_with_memories
from toy import ScriptedEnv

LOW, HIGH = -3.0, 1.0
LIVED = np.array([[0.0, 1.0], [3.0, 2.0], [11.0, 0.0]], np.float32)
"""Observations a `ScriptedEnv` made: (episode, step)."""
KINDS = {
    "MkiPolicy": "sum",
    "NearestPolicy": "sum",
    "AnpPolicy": "attention",
    "NpPolicy": "sensitivity",
    "RegressorPolicy": "none",
}


def scripted_model(policy: str) -> IMeL:
    # Small steps from zero, lest means leave the range: these states are far from the prior's
    steps: dict[str, Any] = {"kl_budget": 0.001}
    if policy != "RegressorPolicy":  # which has no prior context
        steps["prior_std"] = 0.0
    return small_model(policy, ScriptedEnv(bounds=(LOW, HIGH)), **steps).learn(2 * BATCH)


def table(**changes: Any) -> Explanation:
    fields: dict[str, Any] = {
        "observation": np.zeros(3),
        "mean": np.array([0.25]),
        "kind": "sum",
        "familiarity": 0.75,
        "effective_neighbours": 1.9,
        "weights": np.array([0.6, 0.4]),
        "contributions": np.array([[0.3], [-0.05]]),
        "rows": np.array([5, 1]),
        "improved_means": np.array([[0.5], [-0.125]]),
        "means": np.array([[0.125], [0.0]]),
        "actions": np.array([[0.25], [0.5]]),
        "advantages": np.array([1.5, -0.25]),
        "states": np.zeros((2, 3)),
        "episodes": np.array([12, 7]),
        "steps": np.array([3, 140]),
        "distribution": Gaussian(1),
        "names": names_for(None, Dimensions(3, 1)),
    }
    return Explanation(**{**fields, **changes})


def test_contributions_of_a_plain_sum_are_weights_times_improved_means() -> None:
    why = small_model("MkiPolicy", normalised=False).learn(BATCH).explain(STATES[0])
    np.testing.assert_allclose(why.contributions, why.weights[:, None] * why.improved_means)
    np.testing.assert_allclose(why.contributions.sum(axis=0), why.mean, rtol=1e-5, atol=1e-5)
    assert not np.isclose(why.weights.sum(), 1.0)


@pytest.mark.parametrize(("policy", "kind"), KINDS.items())
def test_each_row_is_a_memory_and_the_mean_is_what_the_model_does(policy: str, kind: str) -> None:
    model = scripted_model(policy)
    several = model.explain(LIVED)
    for state, action, why in zip(LIVED, answers(model, LIVED), several, strict=True):
        np.testing.assert_array_equal(why.rows, model.explain(state).rows)
        np.testing.assert_array_equal(why.observation, state)
        assert why.kind == kind
        assert abs(why.mean) < 1.0, "within the bounds, so that nothing is clipped"
        in_environment = LOW + (why.mean + 1.0) / 2.0 * (HIGH - LOW)
        np.testing.assert_allclose(in_environment, action, rtol=0, atol=1e-5)
        assert f"mean [{action[0]:+.2f}]" in why.sentence(), "in the environment's units"
        added = why.contributions.sum(axis=0)
        assert why.exact == (kind == "sum") == np.allclose(added, why.mean, rtol=0, atol=1e-5)
    memory = model.policy.memory
    assert sorted(why.rows) == list(range(2 * BATCH))
    # A scripted observation says in which episode and at which step it was made
    np.testing.assert_array_equal(why.states[:, 1], why.steps)
    assert np.ptp(why.episodes - why.states[:, 0]) == 0
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(why, name), memory.column(name)[why.rows].numpy())
    if kind == "none":
        assert "does not consult" in str(why)
        assert not why.weights.any() | why.contributions.any()
        apart = (why.states - LIVED[-1]) / model.policy.normaliser.scale.numpy()
        assert (np.diff(np.linalg.norm(apart, axis=1)) >= -1e-5).all(), "the nearest first"
    else:
        assert (np.diff(why.weights) <= 0).all(), "the largest first"
        np.testing.assert_allclose(why.weights.sum(), 1.0, rtol=1e-5)
        shares = why.weights[why.weights > 0].astype(np.float64)
        entropy = -(shares * np.log(shares)).sum()
        np.testing.assert_allclose(why.effective_neighbours, np.exp(entropy), rtol=1e-4)
    assert len(str(why).splitlines()) == 11, "short, however large the memory"


def nudged_mean(model: IMeL, row: int, by: float, state: NDArray[np.float64]) -> float:
    """How fast the policy's mean at a state moves with one memory's improved mean."""
    values, answered = model.policy.memory.column("improved_means"), []
    for sign in (1.0, -1.0):
        values[row] += sign * by
        model.policy.invalidate()
        answered.append(float(model.policy.act(torch.from_numpy(state)[None])[0]))
        values[row] -= sign * by
    model.policy.invalidate()
    return (answered[0] - answered[1]) / (2 * by)


@pytest.mark.parametrize("options", [{}, {"deterministic": "mean"}])
def test_a_neural_process_is_explained_by_its_sensitivity(options: dict[str, Any]) -> None:
    model = small_model("NpPolicy", **options).learn(BATCH)
    why = model.explain(STATES[0])
    assert "sensitive to" in str(why)
    model.policy.double()  # so that differences of answers are derivatives
    state = STATES[0].astype(np.float64)
    slopes = np.array([nudged_mean(model, int(row), 1e-4, state) for row in why.rows[:6]])
    np.testing.assert_allclose(
        why.contributions[:6, 0], slopes * why.improved_means[:6, 0], rtol=0.02, atol=1e-7
    )
    shares = np.abs(slopes) / np.abs(slopes).sum()
    np.testing.assert_allclose(why.weights[:6] / why.weights[:6].sum(), shares, rtol=0.02)


class Smoother(Policy):
    """A user's own policy: a smoother of its memory that says nothing of weights."""

    def _act(self, states: Tensor) -> tuple[Tensor, Tensor]:
        memory = self.memory
        distances = torch.cdist(self.normaliser(states), self.normaliser(memory.column("states")))
        means = (-distances).softmax(dim=1) @ memory.column("improved_means")
        return means, self.std.expand_as(means)

    def make_update(self, learner: LearnerState) -> Any:
        raise NotImplementedError


class NumpySmoother(Smoother):
    def _act(self, states: Tensor) -> tuple[Tensor, Tensor]:
        means, stds = super()._act(states)
        return torch.from_numpy(1.0 * means.numpy()), stds


def test_a_policy_of_a_users_own_is_explained_by_its_memory() -> None:
    policy = policy_with_memories(Smoother, episodes=6, length=5)
    state = policy.memory.column("states")[7].numpy()
    why = explain(policy, state)
    assert why.kind == "sensitivity"
    assert why.rows[0] == 7, "the nearest has the largest share in it"
    np.testing.assert_allclose(why.contributions.sum(axis=0), why.mean, atol=1e-5)
    without = explain(policy, state, without_episodes=[1])
    assert 1 not in without.episodes
    assert abs(without.mean - why.mean) > 1e-3
    hidden = explain(policy_with_memories(NumpySmoother, episodes=6, length=5), state)
    np.testing.assert_allclose(hidden.mean, why.mean, atol=1e-6)
    assert (hidden.kind, hidden.rows[0], hidden.weights.any()) == ("unknown", 7, False)
    assert "hides what its 30 memories add" in hidden.sentence()


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1, 1, 2), None])
def test_what_is_no_observation_is_refused(shape: tuple[int, ...] | None) -> None:
    observation = np.array([np.nan, 0.0]) if shape is None else np.zeros(shape)
    with pytest.raises(ImelError, match=r"finite observations of shape \(2,\)") as refusal:
        small_model().explain(observation)
    assert "\n" not in str(refusal.value)


@pytest.fixture(scope="module")
def model() -> IMeL:
    return small_model("MkiPolicy").learn(2 * BATCH)


def rebuilt(policy: Policy, kept: np.ndarray) -> Policy:
    """A new policy with the same weights that has only ever had some of the rows."""
    settings = replace(policy.settings, memory_size=len(kept))
    made = type(policy)(policy.observation_space, policy.action_space, settings)
    state = policy.state_dict()
    for name in policy.memory.column_names:
        state[f"memory.{name}"] = policy.memory.column(name)[kept]
    state["memory._size"] = torch.tensor(len(kept))
    made.load_state_dict(state)
    return made


def means(policy: Policy) -> np.ndarray:
    return policy.act(torch.from_numpy(STATES))[0].numpy()


@pytest.mark.parametrize("name", KINDS)
def test_it_is_the_policy_rebuilt_from_what_is_left(name: str) -> None:
    model = small_model(name).learn(2 * BATCH)
    policy, memory = model.policy, model.policy.memory
    rows = model.explain(STATES[0]).rows[:40]
    kept = np.setdiff1d(np.arange(len(memory)), rows)
    before, held = means(policy), tensors_of(model)
    reduced = policy_without(policy, rows)
    np.testing.assert_allclose(means(reduced), means(rebuilt(policy, kept)), rtol=0, atol=1e-6)
    assert len(reduced.memory) == len(kept)
    if name != "RegressorPolicy":  # which needs no memories to answer
        assert np.abs(means(reduced) - before).max() > 1e-4
    why = model.explain(STATES[0], without=rows)
    np.testing.assert_allclose(why.mean, means(reduced)[0], rtol=0, atol=1e-6)
    assert sorted(why.rows) == kept.tolist(), "numbers in the whole memory"
    np.testing.assert_array_equal(why.states, memory.column("states")[why.rows].numpy())
    with torch.no_grad():
        for parameter in reduced.parameters():
            parameter.add_(1.0)
    reduced.normaliser.update(torch.full((9, 2), 50.0))
    assert differing(held, tensors_of(model)) == [], "the model itself is not changed"
    np.testing.assert_array_equal(means(policy), before)


def test_a_mask_rows_and_episodes_say_the_same(model: IMeL) -> None:
    episodes = model.policy.memory.column("episodes").numpy()
    chosen = np.unique(episodes)[1:3]
    mask = np.isin(episodes, chosen)
    by_mask = model.explain(STATES[1], without=mask)
    by_rows = model.explain(STATES[1], without=np.flatnonzero(mask).tolist())
    by_episodes = model.explain(STATES[1], without_episodes=chosen)
    for why in (by_rows, by_episodes):
        np.testing.assert_array_equal(why.rows, by_mask.rows)
        np.testing.assert_array_equal(why.mean, by_mask.mean)
    assert not np.isin(by_episodes.episodes, chosen).any()
    nothing = model.explain(STATES[0], without=[])
    np.testing.assert_array_equal(nothing.mean, model.explain(STATES[0]).mean)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"without": [128]}, "by their rows, 0 to 127, .+ 128 is out of bounds"),
        ({"without": [0.5]}, "by their rows"),
        ({"without": [True, False]}, r"mask over 128 memories"),
        ({"without": list(range(128))}, "at least one"),
        ({"without_episodes": [999]}, "no memory of episode 999"),
        ({"without_lessons": [0]}, "MkiPolicy has memories and no lessons: .+ without_episodes"),
    ],
)
def test_what_cannot_be_left_out_is_refused(
    model: IMeL, arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ImelError, match=reason) as refusal:
        model.explain(STATES[0], **arguments)
    assert "\n" not in str(refusal.value)


def test_an_explanation_reads_as_sentences_and_a_table() -> None:
    sentence, familiar, header, first, second = str(table()).splitlines()
    assert sentence.startswith("mean [+0.25] is the sum of what 2 memories add")
    assert sentence.endswith("about 1.9 of them")
    assert repr(table()) == f"<Explanation: {sentence}>"
    assert familiar == "familiarity 75 %: 75 % of remembered states are at least this unusual"
    assert "the policy extrapolates" in str(table(familiarity=0.0))
    assert "unknown: fewer than two" in str(table(familiarity=float("nan")))
    assert header.split()[:4] == ["share", "episode", "step", "advantage"]
    assert first.split() == ["60.0%", "12", "3", "+1.50", "[+0.12]", "->", "[+0.50]", "([+0.300])"]
    assert second.split()[:4] == ["40.0%", "7", "140", "-0.25"]
    assert first.index("12") + 2 == header.index("episode") + len("episode")
    inexact = str(table(kind="attention")).splitlines()[2:]
    assert not any("(" in line for line in inexact), "only exact parts are said to add something"


@pytest.mark.parametrize(
    ("low", "high", "answer", "heading", "cells"),
    [
        (-2.0, 2.0, "[+2.50] before", "(what it adds)", "[+0.25] -> [+1.00]  ([+0.600])"),
        (0.0, 4.0, "[+4.50] before", "(what it adds to [+2.00])", "[+2.25] -> [+3.00]  ([+0.600])"),
        (-0.02, 0.02, "[+0.0250] be", "(what it adds)", "[+0.0025] -> [+0.0100]  ([+0.00600])"),
    ],
)
def test_actions_are_shown_in_the_environments_units(
    low: float, high: float, answer: str, heading: str, cells: str
) -> None:
    units = {"middle": np.array([(low + high) / 2]), "scale": np.array([(high - low) / 2])}
    why = table(mean=np.array([1.25]), **units)
    assert why.sentence().startswith(f"mean {answer}")
    assert why.headings[-1] == f"mu -> mu*  {heading}"
    assert why.table(1)[0][-1] == cells


def test_a_table_of_discrete_actions_names_the_options_behind_the_logits() -> None:
    why = table(
        mean=np.log([0.2, 0.8]),
        distribution=Categorical([2], [0], ()),
        names=DimensionNames(("x", "y", "speed"), ("push left", "push right")),
    )
    sentence, _, header, *_ = str(why).splitlines()
    assert sentence.startswith("push right (80 %), push left (20 %) is the sum of")
    assert header.endswith("mu -> mu*  (what it adds), logits of push left, push right")
