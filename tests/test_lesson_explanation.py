"""Why this action, of a `RidgePolicy`: its lessons, and the policy without some of them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from imel import IMeL, LessonExplanation
from imel.distributions import Categorical, Gaussian
from imel.errors import ImelError
from imel.explain import explain, policy_without
from imel.explain.by_lessons import LessonContributions
from imel.policies import Policy, RidgePolicy
from imel.policies.names import DimensionNames, Dimensions, names_for
from small import BATCH, STATES, answers
from test_lessons import ridge_model


@pytest.fixture(scope="module")
def model() -> IMeL:
    return ridge_model().learn(6 * BATCH)


@pytest.fixture
def policy(model: IMeL) -> RidgePolicy:
    assert isinstance(model.policy, RidgePolicy)
    return model.policy


def hand_made(**changes: Any) -> LessonExplanation:
    """Four lessons along one action: +0.6, +0.5, +0.3 and -0.4 make 1.0."""
    lessons = LessonContributions(
        episodes=np.array([12, 7, 30, 2]),
        counts=np.array([1, 1, 1, 1]),
        steps=np.array([[41_000, 42_000], [9_000, 10_000], [57_000, 58_000], [0, 900]]),
        lengths=np.array([1000, 1000, 1000, 900]),
        returns=np.array([400.0, -20.0, 1900.0, -50.0]),
        contributions=np.array([[0.6, 0.0], [0.5, 0.1], [0.3, -0.1], [-0.4, 0.0]]),
    )
    why = LessonExplanation(
        observation=np.zeros(3),
        mean=np.array([1.0, 0.0]),
        lessons=lessons,
        sensitivity=np.array([[0.0, 0.5, -0.2], [0.0, -2.0, 0.1]]),
        familiarity=0.75,
        names=DimensionNames(("height", "angle", "speed"), ("thigh", "leg")),
        distribution=Gaussian(2),
        remembered={},
    )
    return replace(why, **changes)


def test_contributions_sum_to_the_mean_and_the_largest_comes_first(
    model: IMeL, policy: RidgePolicy
) -> None:
    for state, action in zip(STATES, answers(model), strict=True):
        why = model.explain(state)

        np.testing.assert_allclose(why.lessons.contributions.sum(axis=0), why.mean, atol=1e-5)
        np.testing.assert_allclose(np.clip(why.mean, -1, 1), action, atol=1e-5)
        sizes = np.linalg.norm(why.lessons.contributions, axis=1)
        assert (np.diff(sizes) <= 0).all()
    assert sorted(why.lessons.episodes) == policy.lessons.column("episodes").tolist()


def test_a_lesson_is_the_effect_of_its_episodes_coefficients(
    model: IMeL, policy: RidgePolicy
) -> None:
    why = model.explain(STATES[3])
    features = policy.features(policy.normaliser(torch.from_numpy(STATES[3:4])))
    for i in (0, 5):
        row = policy.lessons.column("episodes").tolist().index(why.lessons.episodes[i])
        expected = features @ policy.lessons.column("coefficients")[row]
        np.testing.assert_allclose(why.lessons.contributions[i], expected[0].numpy(), atol=1e-6)
        assert why.lessons.steps[i].tolist() == [
            int(policy.lessons.starts[row]),
            int(policy.lessons.ends[row]),
        ]
        assert why.lessons.lengths[i] == 16


def test_returns_are_those_of_an_episode_on_average() -> None:
    model = ridge_model().learn(BATCH)
    assert isinstance(model.policy, RidgePolicy)
    column = model.policy.lessons.column
    rewards, episodes = (model.policy.memory.column(name) for name in ("rewards", "episodes"))
    sums = [float(rewards[episodes == episode].sum()) for episode in range(4, 8)]
    model.policy.lessons._merge_oldest()
    lessons = model.explain(STATES[0]).lessons

    order = np.argsort(lessons.episodes)
    expected = [(sums[0] + sums[1]) / 2, sums[2], sums[3]]
    np.testing.assert_allclose(lessons.returns[order], expected, rtol=1e-5)
    assert lessons.counts[order].tolist() == column("counts").tolist() == [2, 1, 1]


def test_moments_are_what_is_remembered_of_the_lessons_episode(model: IMeL) -> None:
    why, memory = model.explain(STATES[0]), model.policy.memory
    remembered = memory.column("episodes").numpy()
    newest = int(remembered.max())
    moments = why.moments(newest)

    assert len(moments) == 16
    assert set(moments.episodes) == {newest}
    assert moments.steps.tolist() == list(range(16)), "in order of time"
    for name in ("states", "means", "improved_means", "advantages", "actions"):
        expected = memory.column(name)[moments.rows].numpy()
        np.testing.assert_array_equal(getattr(moments, name), expected)
    np.testing.assert_array_equal(moments.asked, moments.improved_means - moments.means)
    assert len(why.moments(4)) == 0, "forgotten since"
    with pytest.raises(ImelError, match="no lesson of episode 28; there are 24 lessons"):
        why.moments(28)


def test_moments_of_a_period_are_those_of_all_its_episodes() -> None:
    model = ridge_model().learn(BATCH)
    assert isinstance(model.policy, RidgePolicy)
    model.policy.lessons._merge_oldest()
    why = model.explain(STATES[0])

    for episode in (4, 5):
        assert set(why.moments(episode).episodes) == {4, 5}
    assert set(why.moments(6).episodes) == {6}


def test_an_explanation_does_not_change_when_the_model_goes_on_learning() -> None:
    model = ridge_model().learn(BATCH)
    why = model.explain(STATES[0])
    mean, states = why.mean.copy(), why.moments(6).states.copy()
    model.learn(3 * BATCH, reset_num_timesteps=False)

    np.testing.assert_array_equal(why.mean, mean)
    np.testing.assert_array_equal(why.moments(6).states, states)


def test_the_making_adds_up_lessons_in_the_order_of_the_run(model: IMeL) -> None:
    why = model.explain(STATES[1])
    making = why.making

    assert (np.diff(making.steps) >= 0).all()
    np.testing.assert_allclose(making.means[-1], why.mean, atol=1e-5)
    early = why.lessons.steps[:, 0] <= making.steps[7]
    np.testing.assert_allclose(
        making.means[np.flatnonzero(making.steps <= making.steps[7])[-1]],
        why.lessons.contributions[early].sum(axis=0),
        atol=1e-5,
    )


def test_sensitivity_is_the_slope_of_the_mean_for_one_deviation(model: IMeL) -> None:
    why = model.explain(STATES[2])
    deviations = model.policy.normaliser.scale.numpy()
    for dimension in range(2):
        step = np.zeros(2, np.float32)
        step[dimension] = 1e-2 * deviations[dimension]
        up, down = (model.explain(STATES[2] + sign * step).mean for sign in (1, -1))
        slope = (up - down) / 2e-2
        np.testing.assert_allclose(why.sensitivity[:, dimension], slope, rtol=0.01, atol=1e-3)


def test_several_observations_are_explained_as_each_of_them(model: IMeL) -> None:
    explained = model.explain(STATES[:3])
    assert len(explained) == 3
    for state, why in zip(STATES, explained, strict=False):
        alone = model.explain(state)
        np.testing.assert_allclose(why.mean, alone.mean, atol=1e-6)
        np.testing.assert_array_equal(why.lessons.episodes[:3], alone.lessons.episodes[:3])
        assert why.familiarity == alone.familiarity


# --- words ---


def test_mostly_is_half_of_what_speaks_for_the_mean() -> None:
    why = hand_made()
    np.testing.assert_allclose(why.along, [0.6, 0.5, 0.3, -0.4])
    assert why.mostly.tolist() == [0, 1], "0.6 of 1.4 is less than half, 1.1 is more"
    assert why.against.tolist() == [3]
    assert why.taken_back == pytest.approx(0.4 / 1.4)


def test_a_slight_contradiction_is_not_counted() -> None:
    lessons = hand_made().lessons
    slight = lessons.contributions.copy()
    slight[3] = [-0.01, 0.0]
    why = hand_made(lessons=replace(lessons, contributions=slight))
    assert len(why.against) == 0
    assert "; no single lesson speaks against it (1 % is taken back in all)" in why.sentence()


def test_an_explanation_reads_as_a_sentence_a_table_and_what_it_depends_on() -> None:
    sentence, familiar, header, first, *rest, depends = str(hand_made()).splitlines()

    assert sentence == (
        "mean [+1.00 +0.00]: mostly taught by 2 of 4 episodes between steps 9k and 42k, when "
        "returns rose from -20 to 400; 1 lesson speaks against it (29 % is taken back in all)"
    )
    assert familiar.startswith("familiarity 75 %")
    assert header.split()[:2] == ["episode", "steps"]
    assert first.split() == ["12", "41k", "to", "42k", "400", "+42.9%", "[+0.600", "+0.000]"]
    assert rest[2].split()[:2] == ["2", "0"]
    assert rest[2].split()[5] == "-28.6%"
    assert depends.endswith("angle (leg -2.00), speed (thigh -0.20), height (thigh +0.00)")
    assert repr(hand_made()) == f"<LessonExplanation: {sentence}>"


def test_periods_are_named_as_such() -> None:
    lessons = replace(hand_made().lessons, counts=np.array([5, 1, 1, 1]))
    why = hand_made(lessons=lessons)
    assert "mostly taught by 2 of 4 lessons (6 episodes)" in why.sentence()
    assert "12 (+4)" in str(why)


@pytest.mark.parametrize("several", [False, True])
def test_a_table_of_discrete_actions_names_the_options_behind_the_logits(several: bool) -> None:
    sizes = [2, 6] if several else [8]
    distribution = Categorical(sizes, [0] * len(sizes), (2,) if several else ())
    choices = [range(n) for n in sizes]
    why = hand_made(
        mean=np.array([0.0, 1.0, *[0.0] * 5, 1.0]),
        lessons=replace(hand_made().lessons, contributions=np.eye(4, 8)),
        sensitivity=np.zeros((8, 3)),
        names=names_for(None, Dimensions(3, 8, choices)),
        distribution=distribution,
    )
    sentence, _, header, *_ = str(why).splitlines()
    if several:
        options = "choice 0: 0, choice 0: 1, choice 1: 0, choice 1: 1, choice 1: 2, choice 1: 3"
        assert sentence.startswith("choice 0: 1 (73 %), choice 1: 5 (35 %): mostly taught")
    else:
        options = "action 0, action 1, action 2, action 3, action 4, action 5"
        assert sentence.startswith("action 1 (24 %), action 7 (24 %), action 0 (9 %), ")
    assert header.endswith(f"adds to the logits of {options} ...")


@pytest.mark.parametrize(
    ("returns", "words"),
    [
        ([400.0, 900.0, 0.0, 0.0], "when returns fell from 900 to 400"),
        ([400.0, 410.0, 0.0, 1900.0], "when returns were about 405"),
    ],
)
def test_what_returns_did_meanwhile_is_said(returns: list[float], words: str) -> None:
    lessons = replace(hand_made().lessons, returns=np.array(returns))
    assert words in hand_made(lessons=lessons).sentence()


def test_a_mean_that_nobody_taught_is_said_to_be_so() -> None:
    lessons = replace(hand_made().lessons, contributions=np.zeros((4, 2)))
    why = hand_made(lessons=lessons, mean=np.zeros(2), sensitivity=np.zeros((2, 3)))
    assert "no lesson has taught" in why.sentence()
    assert "does not depend on the state" in str(why)
    ElementTree.fromstring(why._repr_html_().replace("<br>", "<br/>"))


def test_a_notebook_shows_bars_for_lessons_and_the_making() -> None:
    drawn = ElementTree.fromstring(hand_made()._repr_html_().replace("<br>", "<br/>"))
    widths = [float(bar.attrib["width"]) for bar in drawn.iter("rect")]
    np.testing.assert_allclose(np.array(widths) / widths[0], [1, 5 / 6, 0.5, 4 / 6], atol=0.01)
    left = [float(bar.attrib["x"]) for bar in drawn.iter("rect")]
    assert left[3] < left[0] == left[1]
    (line,) = drawn.iter("polyline")
    heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    assert len(heights) == 5
    assert heights[1] > heights[0] > heights[-1], "down by the first lesson, up in the end"


def test_names_can_be_set_and_are_those_of_the_environment(model: IMeL) -> None:
    assert model.explain(STATES[0]).names.state == ("state 0", "state 1")
    named = ridge_model().learn(BATCH)
    named.dimension_names = DimensionNames(("east", "north"), ("push",))
    assert "push" in str(named.explain(STATES[0]))
    with pytest.raises(ImelError, match="the action has 1 dimensions, not 2 names"):
        named.dimension_names = DimensionNames(("east", "north"), ("push", "pull"))
    pendulum = IMeL("RidgePolicy", "Pendulum-v1", n_envs=2, rollout_size=64, memory_size=64, seed=0)
    pendulum.learn(64)
    assert "sin angle" in str(pendulum.explain(np.array([1.0, 0.0, 0.0], np.float32)))


# --- without some lessons ---


def test_without_lessons_the_policy_lacks_what_they_added(model: IMeL) -> None:
    why = model.explain(STATES[0])
    taken = why.lessons.episodes[:3]
    before = answers(model)
    reduced = model.policy_without(lessons=taken)

    mean = reduced.act(torch.from_numpy(STATES[:1]))[0].numpy()[0]
    np.testing.assert_allclose(
        why.mean - mean, why.lessons.contributions[:3].sum(axis=0), atol=1e-5
    )
    otherwise = model.explain(STATES[0], without_lessons=taken.tolist())
    np.testing.assert_allclose(otherwise.mean, mean, atol=1e-6)
    np.testing.assert_allclose(otherwise.lessons.contributions.sum(axis=0), mean, atol=1e-5)
    np.testing.assert_array_equal(answers(model), before)


def test_the_exploring_policy_lacks_them_as_well(policy: RidgePolicy) -> None:
    states = torch.from_numpy(STATES)
    row = 4
    episode = int(policy.lessons.column("episodes")[row])
    reduced = policy_without(policy, lessons=[episode, episode])
    added = policy.features(policy.normaliser(states)) @ policy.lessons.column("coefficients")[row]
    torch.testing.assert_close(policy.act(states)[0] - reduced.act(states)[0], added)
    assert added.abs().max() > 1e-4


def test_without_all_lessons_nothing_is_left(policy: RidgePolicy) -> None:
    nothing = policy_without(policy, lessons=policy.lessons.column("episodes").tolist())
    assert policy.act(torch.from_numpy(STATES))[0].abs().max() > 0.05
    for means in (
        nothing.act(torch.from_numpy(STATES))[0],
        nothing.act(torch.from_numpy(STATES))[0],
    ):
        assert means.abs().max() < 1e-5


def test_a_period_is_taken_back_as_a_whole() -> None:
    model = ridge_model().learn(2 * BATCH)
    assert isinstance(model.policy, RidgePolicy)
    model.policy.lessons._merge_oldest()
    first, second = (answers(model.policy_without(lessons=[episode])) for episode in (4, 5))
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - answers(model)).max() > 1e-5


def test_a_policy_without_lessons_is_saved_and_loaded(model: IMeL, tmp_path: Path) -> None:
    reduced = model.policy_without(lessons=[4, 5, 6])
    reduced.save(str(tmp_path / "reduced"))
    again = Policy.load(str(tmp_path / "reduced.safetensors"))
    np.testing.assert_array_equal(answers(again), answers(reduced))
    assert explain(again, STATES[0]).lessons.contributions[-3:].tolist() == [[0.0]] * 3


@pytest.mark.parametrize(
    ("lessons", "reason"),
    [
        ([28], "no lesson of episode 28; there are 24 lessons, of episodes 4 to 27"),
        ([3], "no lesson of episode 3"),
        ([0.5], "by the numbers of their episodes"),
    ],
)
def test_a_lesson_that_there_is_not_is_refused(model: IMeL, lessons: Any, reason: str) -> None:
    with pytest.raises(ImelError, match=reason):
        model.policy_without(lessons=lessons)


def test_memories_are_not_left_out_of_a_sum_of_lessons(model: IMeL) -> None:
    for arguments in ({"without": [0]}, {"without_episodes": [20]}):
        with pytest.raises(ImelError, match="without_lessons") as refusal:
            model.explain(STATES[0], **arguments)
        assert "\n" not in str(refusal.value)
    with pytest.raises(ImelError, match=r"policy_without\(lessons"):
        policy_without(model.policy, episodes=[20])


def test_a_policy_that_was_taught_nothing_says_so() -> None:
    with pytest.raises(ImelError, match="has not been trained"):
        ridge_model().explain(STATES[0])
    with pytest.raises(ImelError, match="has not been trained"):
        ridge_model().policy_without(lessons=[0])
