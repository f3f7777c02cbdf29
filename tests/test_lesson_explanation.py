"""Why this action, of a `RidgePolicy`: its lessons, and the policy without some of them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from imel import IMeL, LessonExplanation
from imel.distributions import Categorical, Gaussian
from imel.errors import ImelError
from imel.explain import explain, policy_without
from imel.explain.by_lessons import LessonContributions
from imel.policies import Policy, RidgePolicy
from imel.policies.names import DimensionNames, Dimensions, names_for
from imel.policies.ridge.features import Features
from small import BATCH, STATES, answers, small_model


@pytest.fixture(scope="module")
def model() -> IMeL:
    return small_model().learn(6 * BATCH)


def hand_made(**changes: Any) -> LessonExplanation:
    """Four lessons along one action: +0.6, +0.5, +0.3 and -0.4 make 1.0."""
    table: dict[str, Any] = {
        "episodes": np.array([12, 7, 30, 2]),
        "counts": np.array([1, 1, 1, 1]),
        "steps": np.array([[41_000, 42_000], [9_000, 10_000], [57_000, 58_000], [0, 900]]),
        "lengths": np.array([1000, 1000, 1000, 900]),
        "returns": np.array([400.0, -20.0, 1900.0, -50.0]),
        "contributions": np.array([[0.6, 0.0], [0.5, 0.1], [0.3, -0.1], [-0.4, 0.0]]),
    }
    fields: dict[str, Any] = {
        "observation": np.zeros(3),
        "mean": np.array([1.0, 0.0]),
        "sensitivity": np.array([[0.0, 0.5, -0.2], [0.0, -2.0, 0.1]]),
        "familiarity": 0.75,
        "names": DimensionNames(("height", "angle", "speed"), ("thigh", "leg")),
        "distribution": Gaussian(2),
        "remembered": {},
    }
    lessons = LessonContributions(**{name: changes.pop(name, table[name]) for name in table})
    return LessonExplanation(lessons=lessons, **{**fields, **changes})


def test_contributions_sum_to_the_mean_and_the_largest_comes_first(model: IMeL) -> None:
    policy: Any = model.policy
    column, lessons = policy.lessons.column, policy.lessons
    for state, action, why in zip(STATES, answers(model), model.explain(STATES), strict=True):
        np.testing.assert_allclose(why.lessons.contributions.sum(axis=0), why.mean, atol=1e-5)
        np.testing.assert_allclose(np.clip(why.mean, -1, 1), action, atol=1e-5)
        assert (np.diff(np.linalg.norm(why.lessons.contributions, axis=1)) <= 0).all()
        np.testing.assert_array_equal(why.observation, state)
    assert sorted(why.lessons.episodes) == column("episodes").tolist()
    features = policy.features(policy.normaliser(torch.from_numpy(STATES[-1:])))
    for i in (0, 5):
        row = column("episodes").tolist().index(why.lessons.episodes[i])
        expected = (features @ column("coefficients")[row])[0].numpy()
        np.testing.assert_allclose(why.lessons.contributions[i], expected, atol=1e-6)
        assert why.lessons.steps[i].tolist() == [int(lessons.starts[row]), int(lessons.ends[row])]
        assert why.lessons.lengths[i] == 16
    steps, sums = why.cumulative_contributions
    assert (np.diff(steps) >= 0).all()
    np.testing.assert_allclose(sums[-1], why.mean, atol=1e-5)
    early = why.lessons.contributions[why.lessons.steps[:, 0] <= steps[7]].sum(axis=0)
    np.testing.assert_allclose(sums[np.flatnonzero(steps <= steps[7])[-1]], early, atol=1e-5)


def test_a_merged_period_has_means_of_returns_and_the_moments_of_all_its_episodes() -> None:
    model = small_model().learn(BATCH)
    policy: Any = model.policy
    rewards, episodes = (policy.memory.column(name) for name in ("rewards", "episodes"))
    sums = [float(rewards[episodes == episode].sum()) for episode in range(4, 8)]
    policy.lessons._merge_oldest()
    why = model.explain(STATES[0])
    order = np.argsort(why.lessons.episodes)
    expected = [(sums[0] + sums[1]) / 2, sums[2], sums[3]]
    np.testing.assert_allclose(why.lessons.returns[order], expected, rtol=1e-5)
    assert why.lessons.counts[order].tolist() == [2, 1, 1]
    assert [set(why.moments(episode).episodes) for episode in (4, 5, 6)] == [{4, 5}, {4, 5}, {6}]
    first, second = (answers(model.policy_without(lessons=[episode])) for episode in (4, 5))
    np.testing.assert_array_equal(first, second, "a period is taken back as a whole")
    assert np.abs(first - answers(model)).max() > 1e-5


def test_moments_are_what_is_remembered_of_the_lessons_episode(model: IMeL) -> None:
    why, memory = model.explain(STATES[0]), model.policy.memory
    newest = int(memory.column("episodes").max())
    moments = why.moments(newest)
    assert set(moments.episodes) == {newest}
    assert moments.steps.tolist() == list(range(16)), "in order of time"
    for name in ("states", "means", "improved_means", "advantages", "actions"):
        expected = memory.column(name)[moments.rows].numpy()
        np.testing.assert_array_equal(getattr(moments, name), expected)
    np.testing.assert_array_equal(moments.asked, moments.improved_means - moments.means)
    assert len(why.moments(4)) == 0, "forgotten since"
    with pytest.raises(ImelError, match="no lesson of episode 28; there are 24 lessons"):
        why.moments(28)
    learning = small_model().learn(BATCH)
    then = learning.explain(STATES[0])
    mean, states = then.mean.copy(), then.moments(6).states.copy()
    learning.learn(3 * BATCH, reset_num_timesteps=False)
    np.testing.assert_array_equal(then.mean, mean, "an explanation does not change")
    np.testing.assert_array_equal(then.moments(6).states, states)


class Waves(Features):
    """Features of a user's own, which torch cannot differentiate."""

    width = 8

    def forward(self, states: Tensor) -> Tensor:
        phases = states.numpy()[:, :1] * np.arange(8) + states.numpy()[:, 1:] * np.arange(8) ** 2
        return torch.from_numpy(np.cos(phases / 4.0).astype(np.float32))  # the first is constant


class WavyPolicy(RidgePolicy):
    """A user's own policy."""

    def make_features(self) -> Features:
        return Waves()


@pytest.mark.parametrize("kind", [RidgePolicy, WavyPolicy])
def test_sensitivity_is_the_slope_of_the_mean_for_one_deviation(kind: type[RidgePolicy]) -> None:
    policy = small_model(kind).learn(2 * BATCH).policy
    why = explain(policy, STATES[2])
    np.testing.assert_allclose(why.lessons.contributions.sum(axis=0), why.mean, atol=1e-5)
    for dimension, deviation in enumerate(policy.normaliser.scale.tolist()):
        step = np.zeros(2, np.float32)
        step[dimension] = 2e-2 * deviation
        up, down = (explain(policy, STATES[2] + sign * step).mean for sign in (1, -1))
        slope = (up - down) / 4e-2
        np.testing.assert_allclose(why.sensitivity[:, dimension], slope, rtol=0.02, atol=1e-3)
    assert np.abs(why.sensitivity).max() > 0.05


def test_top_lessons_make_up_half_of_what_speaks_for_the_mean() -> None:
    why = hand_made()
    np.testing.assert_allclose(why.projection, [0.6, 0.5, 0.3, -0.4])
    assert why.top_lessons.tolist() == [0, 1], "0.6 of 1.4 is less than half, 1.1 is more"
    assert why.opposing.tolist() == [3]
    assert "(29 % cancels out)" in why.sentence()
    slight = why.lessons.contributions.copy()
    slight[3] = [-0.01, 0.0]
    why = hand_made(contributions=slight)
    assert len(why.opposing) == 0
    assert "; no single lesson speaks against it (1 % cancels out)" in why.sentence()


def test_an_explanation_reads_as_sentences_and_a_table() -> None:
    sentence, familiar, depends, header, first, *rest = str(hand_made()).splitlines()
    assert sentence == (
        "mean [+1.00 +0.00]: mostly taught by 2 of 4 episodes between steps 9k and 42k, when "
        "returns rose from -20 to 400; 1 lesson speaks against it (29 % cancels out)"
    )
    assert repr(hand_made()) == f"<LessonExplanation: {sentence}>"
    assert familiar.startswith("familiarity 75 %")
    assert depends == (
        "one standard deviation more of angle lowers leg by 2, of speed lowers thigh by 0.2 "
        "(slope at this state, before clipping)"
    )
    assert header.split()[:2] == ["episode", "steps"]
    assert first.split() == ["12", "41k", "to", "42k", "400", "+42.9%", "[+0.600", "+0.000]"]
    assert rest[2].split()[:2] == ["2", "0"]
    assert rest[2].split()[5] == "-28.6%"


def test_words_have_the_environments_units() -> None:
    why = hand_made(middle=np.array([2.0, 0.0]), scale=np.array([2.0, 10.0]))
    assert why.sentence().startswith("mean [+4.00 +0.00]: ")
    assert why.headings[-1] == "adds to the mean ([+2.00 +0.00] without lessons)"
    assert why.table(2)[1][-1] == "[+1.000 +1.000]"
    assert "of angle lowers leg by 20, of speed lowers thigh by 0.4 " in why.sensitivity_sentence()


@pytest.mark.parametrize("sizes", [[8], [2, 6]])
def test_a_table_of_discrete_actions_names_the_options_behind_the_logits(sizes: list[int]) -> None:
    why = hand_made(
        mean=np.array([0.0, 1.0, *[0.0] * 5, 1.0]),
        contributions=np.eye(4, 8),
        sensitivity=np.eye(8, 3),
        names=names_for(None, Dimensions(3, 8, [range(n) for n in sizes])),
        distribution=Categorical(sizes, [0] * len(sizes), (len(sizes),)),
    )
    sentence, _, depends, header, *_ = str(why).splitlines()
    if len(sizes) > 1:
        assert sentence.startswith("choice 0: 1 (73 %), choice 1: 5 (35 %): mostly taught")
    else:
        assert sentence.startswith("action 1 (24 %), action 7 (24 %), action 0 (9 %), ")
        assert "more of state 0 raises the logit of action 0 by 1, of state 1 raises" in depends
        assert depends.endswith("(slope at this state)")
    assert header.endswith(f"adds to the logits of {', '.join(why.names.action[:6])} ...")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"returns": np.array([400.0, 900, 0, 0])}, "when returns fell from 900 to 400"),
        ({"returns": np.array([400.0, 410, 0, 1900])}, "when returns were about 405"),
        ({"counts": np.array([5, 1, 1, 1])}, "mostly taught by 2 of 4 lessons (6 episodes)"),
        ({"counts": np.array([5, 1, 1, 1])}, "\n    12 (+4)  "),
        ({"contributions": np.zeros((4, 2)), "mean": np.zeros(2)}, "no lesson has taught"),
        ({"sensitivity": np.zeros((2, 3))}, "does not depend on the state"),
    ],
)
def test_returns_periods_and_what_nobody_taught_are_said(changes: Any, words: str) -> None:
    assert words in str(hand_made(**changes))
    ElementTree.fromstring(hand_made(**changes)._repr_html_())


def test_a_notebook_shows_a_table_with_bars_for_and_against_the_mean() -> None:
    drawn = ElementTree.fromstring(hand_made()._repr_html_())
    assert {"+42.9%", "41k to 42k", "12"} <= {element.text for element in drawn.iter("td")}
    bars = [bar.attrib for bar in drawn.iter("rect")]
    widths = np.array([float(bar["width"]) for bar in bars])
    np.testing.assert_allclose(widths / widths[0], [1, 5 / 6, 0.5, 4 / 6], atol=0.01)
    assert float(bars[3]["x"]) < float(bars[0]["x"]) == float(bars[1]["x"])


def test_names_can_be_set_and_are_those_of_the_environment() -> None:
    model = IMeL("RidgePolicy", "Pendulum-v1", n_envs=2, rollout_size=64, memory_size=64, seed=0)
    observation = np.array([1.0, 0.0, 0.0], np.float32)
    why = model.learn(64).explain(observation)
    assert "sin angle" in str(why)
    assert f"mean [{2.0 * why.mean[0]:+.2f}]" in str(why), "the torque is in [-2, 2]"
    model.dimension_names = DimensionNames(("east", "north", "up"), ("push",))
    assert "push" in str(model.explain(observation))
    with pytest.raises(ImelError, match="the action has 1 dimensions, not 2 names"):
        model.dimension_names = DimensionNames(("east", "north", "up"), ("push", "pull"))


def test_without_lessons_the_policy_lacks_what_they_added(model: IMeL, tmp_path: Path) -> None:
    why, before = model.explain(STATES[0]), answers(model)
    taken = why.lessons.episodes[:3]
    reduced = model.policy_without(lessons=[*taken, taken[0]])
    mean = reduced.act(torch.from_numpy(STATES[:1]))[0].numpy()[0]
    lost = why.lessons.contributions[:3].sum(axis=0)
    assert np.abs(lost).max() > 1e-4
    np.testing.assert_allclose(why.mean - mean, lost, atol=1e-5)
    otherwise = model.explain(STATES[0], without_lessons=taken.tolist())
    np.testing.assert_allclose(otherwise.mean, mean, atol=1e-6)
    np.testing.assert_allclose(otherwise.lessons.contributions.sum(axis=0), mean, atol=1e-5)
    np.testing.assert_array_equal(answers(model), before)
    reduced.save(str(tmp_path / "reduced"))
    again = Policy.load(str(tmp_path / "reduced.safetensors"))
    np.testing.assert_array_equal(answers(again), answers(reduced))
    assert explain(again, STATES[0]).lessons.contributions[-3:].tolist() == [[0.0]] * 3
    nothing = model.policy_without(lessons=why.lessons.episodes)
    assert nothing.act(torch.from_numpy(STATES))[0].abs().max() < 1e-5 < np.abs(before).max() / 1e3


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"lessons": [28]}, "no lesson of episode 28; there are 24 lessons, of episodes 4 to 27"),
        ({"lessons": [0.5]}, "by the numbers of their episodes"),
        ({"rows": [0]}, r"policy_without\(lessons.+without_lessons"),
        ({"episodes": [20]}, "RidgePolicy is a sum of lessons"),
    ],
)
def test_what_cannot_be_taken_back_is_refused(model: IMeL, arguments: Any, reason: str) -> None:
    with pytest.raises(ImelError, match=reason) as refusal:
        policy_without(model.policy, **arguments)
    assert "\n" not in str(refusal.value)


def test_a_policy_that_was_taught_nothing_says_so() -> None:
    with pytest.raises(ImelError, match="has not been trained"):
        small_model().explain(STATES[0])
    with pytest.raises(ImelError, match="has not been trained"):
        small_model().policy_without(lessons=[0])
