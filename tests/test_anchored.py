"""The anchored update: all memories improved again, and a policy moved by a bounded step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from imel import IMeL
from imel.improvement import importance_ratios, improved_means, mean_kl
from imel.interpolators.anchored import Anchored
from imel.interpolators.base import Weighted
from imel.updates import anchored
from small import STATES, LogBook, small_model

STEPS = 192
"""Three batches, of which the memory of a small model holds two."""


def learned(policy: str = "MkiPolicy", **settings: Any) -> IMeL:
    return small_model(policy, update="anchored", **settings).learn(STEPS)


def batch_states(model: IMeL) -> torch.Tensor:
    memory = model.policy.memory
    return memory.column("states")[memory.column("iterations") == model.iteration - 1]


def test_the_policy_moves_by_the_trust_region_from_its_anchor() -> None:
    model = learned(trust_region=0.05, std_mode="constant")
    acting = model.policy.acting
    assert isinstance(acting.interpolate, Anchored)
    states = model.policy.normaliser(batch_states(model))
    step = acting.interpolate.scale * acting.interpolate.step(states).mean
    assert mean_kl(step, torch.zeros_like(step), model.policy.std) == pytest.approx(0.05, rel=1e-4)


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


def test_the_anchor_is_made_of_the_newest_memories() -> None:
    model = learned(anchor_size=64)
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


@pytest.mark.parametrize("policy", ["MkiPolicy", "NearestPolicy", "RidgePolicy"])
def test_contributions_add_up_to_the_mean(policy: str) -> None:
    model = learned(policy, anchor_size=64)
    states = torch.as_tensor(STATES)
    conditioned = model.policy.acting.interpolate
    assert isinstance(conditioned, Weighted)
    assert conditioned.exact
    total = conditioned.contributions(model.policy.normaliser(states)).sum(dim=1)
    torch.testing.assert_close(total, model.policy.act(states)[0], atol=1e-5, rtol=0.0)


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
    advantages = anchored._advantages(model, torch.ones(len(memory)))
    rewards = model.return_scale.scale(memory.column("rewards"))
    beyond = 0.5 * 2.0 * (1.0 - memory.column("terminated"))
    torch.testing.assert_close(advantages, rewards + beyond - 2.0)
