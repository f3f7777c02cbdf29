"""The anchored update: all memories improved again, and a policy moved by a bounded step."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.wrappers import TransformReward

from imel import IMeL, MkiPolicy
from imel.improvement import (
    cooled,
    eased_share,
    held_share,
    importance_ratios,
    improved_means,
    mean_kl,
    settling_rate,
)
from imel.interpolators.anchored import Anchored, AnchoredTrend
from imel.interpolators.base import Weighted
from imel.policy import ImelPolicy, TrendedPolicy
from imel.updates import anchored
from small import STATES, LogBook, points, small_model

STEPS = 192
"""Three batches, of which the memory of a small model holds two."""


def learned(policy: str = "MkiPolicy", **settings: Any) -> IMeL:
    return small_model(policy, update="anchored", **settings).learn(STEPS)


def believing(policy: ImelPolicy, share: float) -> AnchoredTrend:
    """The policy conditioned with a share of its kernel that is given rather than found."""
    assert isinstance(policy, MkiPolicy)
    policy.kernel_share.fill_(share)
    policy.fitted()
    conditioned = policy.acting.interpolate
    assert isinstance(conditioned, AnchoredTrend)
    return conditioned


def batch_states(model: IMeL) -> torch.Tensor:
    memory = model.policy.memory
    return memory.column("states")[memory.column("iterations") == model.iteration - 1]


def test_the_policy_moves_by_the_trust_region_from_its_anchor() -> None:
    model = learned(trust_region=0.05, easing=0.0, peak_kl=0.0, std_mode="constant")
    acting = model.policy.acting
    assert isinstance(acting.interpolate, Anchored)
    states = model.policy.normaliser(batch_states(model))
    step = acting.interpolate.scale * acting.interpolate.step(states).mean
    assert mean_kl(step, torch.zeros_like(step), model.policy.std) == pytest.approx(0.05, rel=1e-4)


@pytest.mark.parametrize(
    ("policy", "std_mode"),
    [("MkiPolicy", "constant"), ("NpPolicy", "constant"), ("NpPolicy", "model")],
)
def test_no_improved_memory_is_moved_further_than_told(policy: str, std_mode: str) -> None:
    bound: dict[str, Any] = {"trust_region": 0.05, "cooling": 0, "easing": 0.0}
    bound |= {"std_mode": std_mode, "improved_size": 64}
    model = learned(policy, peak_kl=1.1, **bound)
    memory, conditioned = model.policy.memory, model.policy.acting.interpolate
    assert isinstance(conditioned, Anchored)
    young = memory.newest(64)
    assert len(memory) > 64
    states = model.policy.normaliser(memory.column("states"))
    step = conditioned.scale * conditioned.step(states).mean
    each = (step / memory.column("stds")).square().sum(dim=1) / 2
    # The mean alone would allow for more
    assert float(each[young].max()) == pytest.approx(1.1 * 0.05, rel=1e-3)
    assert float(each[young].mean()) < 0.045
    np.testing.assert_allclose(
        conditioned.scale * conditioned.step_at_memories(), step, rtol=1e-3, atol=1e-5
    )


def test_a_wide_bound_on_single_states_leaves_the_one_on_their_mean() -> None:
    bound: dict[str, Any] = {"trust_region": 0.05, "std_mode": "constant"}
    book = LogBook.of(model := small_model(update="anchored", peak_kl=1e6, **bound))
    free = LogBook.of(other := small_model(update="anchored", peak_kl=0.0, **bound))
    model.learn(STEPS)
    other.learn(STEPS)
    assert [page["improve/step_scale"] for page in book.pages] == [
        page["improve/step_scale"] for page in free.pages
    ]
    assert all(page["improve/step_peak"] > page["improve/step_kl"] for page in book.pages)


def test_steps_become_shorter_as_told() -> None:
    bound: dict[str, Any] = {"trust_region": 0.05, "cooling": 2, "easing": 0.0, "peak_kl": 0.0}
    model = small_model(update="anchored", std_mode="constant", **bound)
    book = LogBook.of(model)
    model.learn(6 * 64)
    moved = [page["improve/step_kl"] * page["improve/step_scale"] ** 2 for page in book.pages]
    expected = [0.05 * min(1.0, 2 / iteration) for iteration in range(1, 7)]
    np.testing.assert_allclose(moved, expected, rtol=1e-4)
    assert cooled(0.05, 1000, 0) == 0.05


@pytest.mark.parametrize("floor", [0.0, 0.95])
def test_steps_are_shorter_where_there_is_less_to_gain_but_not_below_a_share(floor: float) -> None:
    bound: dict[str, Any] = {"trust_region": 0.05, "cooling": 0, "easing": 2.0, "peak_kl": 0.0}
    model = small_model(update="anchored", std_mode="constant", easing_floor=floor, **bound)
    book = LogBook.of(model)
    model.learn(8 * 64)
    gains = np.array([page["improve/gain"] for page in book.pages])
    usual = np.cumsum(gains) / np.arange(1, 9)
    shares = np.minimum(1.0, gains / usual) ** 2
    assert shares.min() < 0.8  # there was less to gain at times
    expected = 0.05 * np.maximum(shares, floor)
    moved = [page["improve/step_kl"] * page["improve/step_scale"] ** 2 for page in book.pages]
    np.testing.assert_allclose(moved, expected, rtol=1e-4)
    np.testing.assert_allclose(float(model.usual_gain.mean), usual[-1])


def test_the_anchor_forgets_less_where_there_is_less_to_gain_and_later() -> None:
    shares = [held_share(iteration, 2.0) for iteration in (0, 9, 19, 99)]
    assert shares == pytest.approx([1.0, 1.0, 0.25, 0.01])
    assert held_share(99, 0.0) == 1.0
    model = small_model(update="anchored", easing=2.0, easing_floor=1.0)  # the floor is of steps
    book = LogBook.of(model)
    model.learn(16 * 64)
    gains = [page["improve/gain"] for page in book.pages]
    share = eased_share(gains[-1], sum(gains) / 16, 2.0) * (10 / 16) ** 2
    policy = model.policy
    assert isinstance(policy, TrendedPolicy)
    assert share < 0.35
    assert float(policy.anchor_penalty) == pytest.approx(1e-4 * share)
    trend = policy.trend
    assert trend.means.penalty == pytest.approx(1e-4 * share * trend.design.unit)
    policy.hold(0.0)
    policy.changed()
    # However little it may forget, there is one solution
    assert torch.isfinite(policy.act(torch.as_tensor(STATES))[0]).all()
    strict = learned(easing=0.0).policy
    assert isinstance(strict, TrendedPolicy)
    assert float(strict.anchor_penalty) == pytest.approx(1e-4)


def test_what_there_is_to_gain_is_told_in_units_of_the_rewards() -> None:
    def gains(factor: float) -> list[float]:
        scaled = {"func": lambda reward: factor * reward}
        model = small_model(env=points(wrapper_class=TransformReward, wrapper_kwargs=scaled))
        book = LogBook.of(model)
        model.learn(3 * 64)
        return [page["improve/gain"] for page in book.pages]

    np.testing.assert_allclose(gains(16.0), 16.0 * np.array(gains(1.0)), rtol=1e-3)


def test_a_gain_of_nothing_or_of_more_than_usual_does_not_lengthen_steps() -> None:
    assert eased_share(3.0, 2.0, 2.0) == 1.0
    assert eased_share(0.0, 0.0, 2.0) == 1.0  # never anything to gain: nothing to go by
    assert eased_share(0.0, 2.0, 2.0) == 0.0
    assert eased_share(1.0, 2.0, 2.0) == 0.25
    assert eased_share(1.0, 2.0, 0.0) == 1.0


def test_anchors_follow_the_policy() -> None:
    model = small_model(update="anchored")
    model.learn(128)
    before = copy.deepcopy(model.policy)
    model.learn(64, reset_num_timesteps=False)
    memory = model.policy.memory
    old = memory.column("iterations") == 1
    assert old.any()
    expected, _ = before.act(memory.column("states")[old])
    torch.testing.assert_close(memory.column("means")[old], expected)
    assert not torch.equal(memory.column("means")[old], memory.column("behaviour_means")[old])
    acted, _ = before.act(memory.column("states")[~old])
    torch.testing.assert_close(memory.column("behaviour_means")[~old], acted)


def test_every_memory_is_improved_from_its_new_anchor() -> None:
    model = small_model(update="anchored", std_mode="constant")
    book = LogBook.of(model)
    memory = model.learn(STEPS).policy.memory
    column = memory.column
    stds = model.policy.std.expand_as(column("means"))
    ratios = importance_ratios(
        column("actions"), column("means"), stds, column("behaviour_means"), column("stds")
    ).clamp_max(1.0)
    step = column("improved_means") - column("means")
    expected = improved_means(
        ratios * column("advantages"),
        column("actions"),
        column("means"),
        stds,
        book.pages[-1]["improve/step_size"],
    )
    assert float(step.abs().max()) > 0.0
    torch.testing.assert_close(column("improved_means"), expected)


def test_old_memories_hold_the_policy_and_ask_for_nothing() -> None:
    model = small_model(update="anchored", improved_size=64)
    model.learn(STEPS)
    policy, column = model.policy, model.policy.memory.column
    old = column("iterations") < model.iteration - 1
    assert 0 < int(old.sum()) == len(policy.memory) - 64
    assert torch.equal(column("improved_means")[old], column("means")[old])
    assert not column("advantages")[old].any()
    young = column("advantages")[~old]
    assert float(young.mean()) == pytest.approx(0.0, abs=1e-5)  # centred among themselves
    assert float(young.std(correction=0)) == pytest.approx(1.0, rel=0.02)
    moved = column("improved_means")[~old] - column("means")[~old]
    assert (moved.abs().sum(dim=1) > 0.0).float().mean() > 0.9
    # What they hold is where the policy is by now, not where it was when it met them
    assert not torch.equal(column("means")[old], column("behaviour_means")[old])


@pytest.mark.parametrize("size", [0, 64])
def test_how_much_is_usable_is_told_of_what_is_improved(size: int) -> None:
    model = small_model(update="anchored", std_mode="constant", improved_size=size)
    book = LogBook.of(model)
    memory = model.learn(STEPS).policy.memory
    column = memory.column
    stds = model.policy.std.expand_as(column("means"))
    acted = (column("behaviour_means"), column("stds"))
    ratios = importance_ratios(column("actions"), column("means"), stds, *acted)
    improved = ratios[memory.newest(size or len(memory))]
    expected = float(improved.sum() ** 2 / (improved.square().sum() * improved.numel()))
    assert book.pages[-1]["memory/usable_share"] == pytest.approx(expected, rel=1e-4)
    assert (expected < 0.999) == (size == 0)  # the newest batch is the acting policy's own


def test_the_anchor_is_made_of_the_newest_memories() -> None:
    model = learned("NearestPolicy", anchor_size=64)
    policy = model.policy
    rows = policy.anchor_rows()
    assert rows.numel() == 64
    assert (policy.memory.column("iterations")[rows] == model.iteration - 1).all()
    weights = policy.acting.interpolate
    assert isinstance(weights, Weighted)
    shares = weights.weights(policy.normaliser(torch.as_tensor(STATES)))
    others = torch.ones(len(policy.memory), dtype=torch.bool)
    others[rows] = False
    assert (shares[:, others] == 0.0).all()


def test_a_kernel_is_over_what_trends_leave_of_the_newest_memories() -> None:
    model = learned(anchor_size=64)
    policy, column = model.policy, model.policy.memory.column
    assert isinstance(policy, MkiPolicy)
    rows, states = policy.anchor_rows(), policy.normaliser(column("states"))
    assert rows.numel() == 64
    assert (column("iterations")[rows] == model.iteration - 1).all()
    trend = policy.trend
    improvements = column("improved_means") - column("means")
    left = improvements - trend.step(states).mean
    context = policy.context()
    torch.testing.assert_close(context.values, left[rows], atol=1e-5, rtol=0.0)
    assert torch.equal(context.states, states[rows])

    conditioned = believing(policy, 0.5)
    assert conditioned.kernel is not None
    assert torch.equal(conditioned.kernel.values, context.values)


@pytest.mark.parametrize("policy", ["MkiPolicy", "NearestPolicy", "RidgePolicy"])
def test_contributions_add_up_to_the_mean(policy: str) -> None:
    model = learned(policy, anchor_size=64)
    states = torch.as_tensor(STATES)
    conditioned = model.policy.acting.interpolate
    assert isinstance(conditioned, Weighted)
    assert conditioned.exact
    total = conditioned.contributions(model.policy.normaliser(states)).sum(dim=1)
    torch.testing.assert_close(total, model.policy.act(states)[0], atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("policy", ["MkiPolicy", "RidgePolicy"])
def test_a_policy_settles_on_the_mean_of_recent_ones(policy: str) -> None:
    model = small_model(policy, update="anchored", memory_size=640)
    # A normaliser that stays, for only then a mean of policies is in the span of the basis
    model.policy.normaliser.count.fill_(1e12)
    states, expected = torch.as_tensor(STATES), torch.zeros(())
    for iteration in range(8):
        model.learn(64, reset_num_timesteps=False)
        rate = settling_rate(iteration, 20)
        expected = torch.lerp(expected, model.policy.act(states)[0], rate)
        # Fitted again at every iteration, it drifts a little: by far less than policies differ
        torch.testing.assert_close(model.policy.decide(states)[0], expected, atol=1e-2, rtol=0.0)
    assert float((model.policy.act(states)[0] - expected).abs().max()) > 0.05
    actions, _ = model.predict(STATES, deterministic=True)
    np.testing.assert_allclose(actions, model.policy.to_environment(expected.numpy()), atol=2e-2)
    settled, decided = model.policy.settled.interpolate, model.policy.decide(states)[0]
    assert isinstance(settled, Weighted)
    total = settled.contributions(model.policy.normaliser(states)).sum(dim=1)
    torch.testing.assert_close(total, decided, atol=1e-5, rtol=0.0)


def test_settling_takes_in_all_of_the_first_policy_and_less_of_later_ones() -> None:
    rates = [settling_rate(iteration, 20) for iteration in range(200)]
    assert rates[0] == 1.0
    assert rates == sorted(rates, reverse=True)
    assert rates[5] == 0.5
    assert rates[95:] == [pytest.approx(0.05)] * 105
    assert settling_rate(50, 1) == 1.0


def test_without_settling_the_policy_decides_as_it_explores() -> None:
    model = learned(settling=1)
    states = torch.as_tensor(STATES)
    assert torch.equal(model.policy.decide(states)[0], model.policy.act(states)[0])
    still = learned("RegressorPolicy")  # has no trends to take the mean of
    assert torch.equal(still.policy.decide(states)[0], still.policy.act(states)[0])


@pytest.mark.parametrize("policy", ["MkiPolicy", "RidgePolicy"])
def test_what_a_policy_does_at_its_memories_is_known(policy: str) -> None:
    trained = learned(policy, policy_kwargs={"waves": 8}).policy
    if policy == "MkiPolicy":
        believing(trained, 0.5)
    conditioned = trained.acting.interpolate
    assert isinstance(conditioned, AnchoredTrend)
    mean, _ = trained.act(trained.memory.column("states"))
    torch.testing.assert_close(conditioned.at_memories(), mean, atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_kernel_on_trends_is_a_linear_smoother(share: float, normalised: bool) -> None:
    options = {"normalised": normalised, "waves": 8}  # few, lest the trends leave nothing
    model = learned(anchor_size=64, policy_kwargs=options)
    policy, states = model.policy, torch.as_tensor(STATES)
    policy.step_scale.fill_(1.5)
    conditioned, normal = believing(policy, share), policy.normaliser(states)
    assert conditioned.exact
    assert (conditioned.kernel is not None) == (share > 0.0)
    mean = policy.act(states)[0]
    total = conditioned.contributions(normal).sum(dim=1)
    torch.testing.assert_close(total, mean, atol=1e-5, rtol=0.0)
    weights = conditioned.weights(normal)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(len(STATES)), atol=1e-5, rtol=0.0)
    # The weights are the shares in the anchor
    anchor = conditioned.anchor(normal).mean
    torch.testing.assert_close(weights @ conditioned.values, anchor, atol=1e-5, rtol=0.0)
    parts = anchor + 1.5 * conditioned.step(normal).mean
    torch.testing.assert_close(parts, mean, atol=1e-6, rtol=0.0)


def test_a_kernel_speaks_as_far_as_it_is_believed() -> None:
    policy = learned(policy_kwargs={"waves": 8}).policy
    policy.step_scale.fill_(1.0)
    states = torch.as_tensor(STATES)
    means = {}
    for share in (0.0, 0.3, 1.0):
        believing(policy, share)
        means[share] = policy.act(states)[0]
    added = means[1.0] - means[0.0]
    assert float(added.abs().max()) > 1e-3
    torch.testing.assert_close(means[0.3], means[0.0] + 0.3 * added, atol=1e-5, rtol=0.0)


def test_a_trend_and_a_believed_kernel_give_an_improvement_back() -> None:
    # A sharp kernel at a memory is that memory: it adds all that the trend left of it
    policy = learned(policy_kwargs={"waves": 0, "kernel_scale": 300.0}).policy
    column = policy.memory.column
    column("improved_means").copy_(column("means") + torch.randn(len(policy.memory), 1))
    grid = torch.cartesian_prod(torch.linspace(-1.0, 1.0, 16), torch.linspace(-1.0, 1.0, 8))
    states = column("states").copy_(grid)  # no two of them alike
    policy.changed()
    normal = policy.normaliser(states)
    asked = column("improved_means") - column("means")
    assert float((believing(policy, 0.0).step(normal).mean - asked).abs().max()) > 0.5
    torch.testing.assert_close(believing(policy, 1.0).step(normal).mean, asked)


@pytest.mark.parametrize("truth", ["waves", "noise"])
def test_a_kernel_is_believed_where_it_predicts_other_episodes(truth: str) -> None:
    model = learned(
        policy_kwargs={"waves": 0, "kernel_scale": 10.0}, gradient_steps=0, memory_size=1024
    )
    model.learn(1024, reset_num_timesteps=False)
    policy, column = model.policy, model.policy.memory.column
    assert isinstance(policy, MkiPolicy)
    if truth == "waves":  # no trend in the state alone has them
        improvements = torch.sin(4.0 * column("states").sum(dim=1, keepdim=True))
    else:
        improvements = torch.randn(len(policy.memory), 1)
    column("improved_means").copy_(column("means") + improvements)
    policy.changed()
    share = anchored.weigh_kernel(policy, model.generator)
    assert share == pytest.approx(float(policy.kernel_share))
    assert share > 0.5 if truth == "waves" else share < 0.2


def test_a_kernel_in_a_memory_of_one_episode_is_not_believed() -> None:
    model = small_model(env=points(n_envs=1), batch_size=8, memory_size=8)
    book = LogBook.of(model)
    model.learn(8)
    policy = model.policy
    assert torch.unique(policy.memory.column("episodes")).numel() == 1
    assert isinstance(policy, MkiPolicy)
    assert float(policy.kernel_share) == 0.0
    assert book.pages[-1]["train/kernel_share"] == 0.0
    assert torch.isfinite(policy.act(torch.as_tensor(STATES))[0]).all()


def test_without_waves_trends_are_linear_in_the_state() -> None:
    model = learned(policy_kwargs={"waves": 0})
    conditioned = believing(model.policy, 0.0)
    states = torch.tensor([[-1.0, 0.5], [0.0, 0.0], [1.0, -0.5]])
    mean = conditioned(states).mean
    assert float((mean[0] - mean[2]).abs()) > 1e-3
    torch.testing.assert_close(mean[0] + mean[2], 2.0 * mean[1], atol=1e-5, rtol=0.0)


def test_the_trust_region_may_follow_a_schedule() -> None:
    model = small_model(trust_region="0.05:0.01", easing=0.0)
    book = LogBook.of(model)
    model.learn(4 * 64)
    kls = [page["improve/step_kl"] * page["improve/step_scale"] ** 2 for page in book.pages]
    assert kls == pytest.approx([0.05, 0.04, 0.03, 0.02], rel=1e-4)
    assert model.trust_region == pytest.approx(0.02)


def test_sigma_follows_its_natural_gradient_as_fast_as_it_is_told_to() -> None:
    moved = {}
    for rate in (0.0, 0.1, 0.2):
        model = small_model(std="0.5:0.5", std_rate=rate, entropy_bonus=0.0)
        model.policy.std.fill_(0.4)
        moved[rate] = model.learn(64).policy.std.clone().log() - math.log(0.4)
    assert float(moved[0.0].abs().max()) < 1e-6
    assert 1e-4 < float(moved[0.1].abs().min()) < 0.1  # not cut off, nor at the most it may be
    torch.testing.assert_close(moved[0.2], 2.0 * moved[0.1], atol=1e-6, rtol=1e-4)


def test_a_ridge_policy_is_not_changed_by_being_anchored_again() -> None:
    # 128 memories and 20 coefficients: what the policy is, its basis can say
    model = learned("RidgePolicy", policy_kwargs={"waves": 16})
    policy, states = model.policy, torch.as_tensor(STATES)
    before = policy.act(states)[0]
    means = policy.act(policy.memory.column("states"))[0]
    assert float(policy.step_scale) != 0.0
    for column in ("means", "improved_means"):
        policy.memory.column(column).copy_(means)
    policy.changed()
    after = policy.act(states)[0]
    assert float(before.std()) > 0.0
    torch.testing.assert_close(after, before, atol=1e-2 * float(before.abs().max()), rtol=0.0)


def test_all_memories_are_anchors_of_a_ridge_policy() -> None:
    policy = learned("RidgePolicy", anchor_size=64).policy
    assert torch.equal(policy.anchor_rows(), torch.arange(len(policy.memory)))


@pytest.mark.parametrize("policy", ["NpPolicy", "RegressorPolicy", "AnpPolicy"])
def test_every_interpolator_can_be_the_anchor(policy: str) -> None:
    model = learned(policy)
    assert isinstance(model.policy.acting.interpolate, Anchored)
    assert torch.isfinite(model.policy.act(torch.as_tensor(STATES))[0]).all()


def test_without_improvements_the_policy_stays_at_its_anchor() -> None:
    model = learned()
    model.policy.memory.column("improved_means").copy_(model.policy.memory.column("means"))
    model.policy.changed()
    conditioned = model.policy.acting.interpolate
    assert isinstance(conditioned, Anchored)
    states = model.policy.normaliser(torch.as_tensor(STATES))
    torch.testing.assert_close(conditioned(states).mean, conditioned.anchor(states).mean)


def test_sigma_never_exceeds_its_setting() -> None:
    model = learned(std=0.3, entropy_bonus=5.0)
    stds = model.policy.memory.column("stds")
    assert float(stds.max()) == pytest.approx(0.3)
    assert (model.policy.std <= 0.3).all()


def test_sigma_falls_where_noise_costs() -> None:
    model = learned(std=0.8, entropy_bonus=0.0)
    assert (model.policy.std < 0.8).all()


def test_the_critic_learns_from_the_whole_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def spy(critic: Any, optimizer: Any, states: Any, *rest: Any) -> float:
        seen.append(states.shape[0])
        return 0.0

    monkeypatch.setattr("imel.updates.anchored.fit_critic", spy)
    learned()
    assert seen == [64, 128, 128]


def test_nothing_is_expected_beyond_a_termination() -> None:
    model = learned(gamma=0.5, gae_lambda=0.0)
    memory = model.policy.memory
    for parameter in model.critic.parameters():
        parameter.data.zero_()
    list(model.critic.parameters())[-1].data.fill_(2.0)  # V(s) = 2 everywhere
    memory.column("terminated")[::2] = 1.0
    advantages = anchored._advantages(model, torch.ones(len(memory)), torch.arange(len(memory)))
    rewards = model.return_scale.scale(memory.column("rewards"))
    beyond = 0.5 * 2.0 * (1.0 - memory.column("terminated"))
    torch.testing.assert_close(advantages, rewards + beyond - 2.0)


def test_young_memories_have_the_advantages_they_have_among_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = learned(gae_lambda=0.9)
    monkeypatch.setattr(anchored, "fit_critic", lambda *_: 0.0)  # the same critic both times
    memory = model.policy.memory
    ratios = torch.rand(len(memory))
    among_all = anchored._advantages(model, ratios, torch.arange(len(memory)))
    rows = memory.newest(64)[torch.randperm(64)]  # in no order of time
    among_them = anchored._advantages(model, ratios[rows], rows)
    torch.testing.assert_close(among_them, among_all[rows])
    # Traces do reach beyond single steps: without every other row they are cut
    some = rows[::2]
    assert not torch.allclose(anchored._advantages(model, ratios[some], some), among_them[::2])


@pytest.mark.parametrize("policy", ["MkiPolicy", "RidgePolicy"])
def test_few_states_and_many_are_answered_alike_far_out_too(policy: str) -> None:
    conditioned = learned(policy).policy.acting.interpolate
    assert isinstance(conditioned, AnchoredTrend)
    states = 20.0 * torch.randn(64, 2)  # trends are cut off at 5
    parts = conditioned.anchor(states).mean + conditioned.scale * conditioned.step(states).mean
    torch.testing.assert_close(conditioned(states).mean, parts, atol=1e-4, rtol=1e-4)
    few = torch.cat([conditioned(some).mean for some in torch.split(states, 8)])
    torch.testing.assert_close(few, parts, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(conditioned(5.0 * states.sign()), conditioned(50.0 * states.sign()))


def test_the_dimensions_of_an_action_share_its_deviation() -> None:
    whole, each = (
        IMeL("MkiPolicy", "HalfCheetah-v5", n_envs=2, std_of=of, std=0.9)
        for of in ("action", "dimension")
    )
    assert whole.policy.std.tolist() == pytest.approx([0.15] * 6)
    assert each.policy.std.tolist() == pytest.approx([0.9] * 6)
    floored = IMeL("MkiPolicy", "HalfCheetah-v5", n_envs=2, std=0.9, min_std=0.5)
    assert floored.policy.std.tolist() == pytest.approx([0.5] * 6)
    few = IMeL("MkiPolicy", "Pendulum-v1", n_envs=2, std_of="action", std=3.0)
    assert few.policy.std.tolist() == [1.0]  # more would only be cut off
