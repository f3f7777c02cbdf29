"""The policy: from raw states to actions within the environment's bounds."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from imel import MkiPolicy, NearestPolicy, NpPolicy
from imel.policies import Policy
from small import POLICIES, STATES, answers

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (2,), np.float32)
LOPSIDED = spaces.Box(np.array([-3.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))


def filled(cls: type[Policy], seed: int = 0, **arguments: Any) -> Policy:
    """A policy over two action dimensions with a random memory of 16 points."""
    torch.manual_seed(seed)
    policy = cls(OBSERVATIONS, LOPSIDED, memory_size=32, **arguments)
    remember(policy)
    return policy


def remember(policy: Any) -> None:
    """Put random points into memory; where a policy holds coefficients, fit them to those."""
    policy.memory.set_prior(torch.randn(16, 2), 0.5 * torch.randn(16, 2))
    policy.invalidate()
    if policy.lessons is not None:
        column, lessons = policy.memory.column, policy.lessons
        lessons.record_episodes(column("episodes"), column("rewards"), column("states"), 0, 0)
        policy.imitate()


def test_the_action_range_is_mapped_onto_lopsided_bounds_and_clipped_to_them() -> None:
    policy = filled(NearestPolicy)
    units = np.array([[-1.0, -1.0], [0.0, 0.0], [0.5, -0.5], [-7.0, 1.001], [100.0, -1e9]])
    expected = [[-3.0, 0.0], [-1.0, 5.0], [0.0, 2.5], [-3.0, 10.0], [1.0, 0.0]]
    np.testing.assert_allclose(policy.to_environment(units), expected)
    policy.memory.set_prior(torch.randn(4, 2), torch.tensor([[5.0, -5.0]]).expand(4, 2))
    policy.invalidate()
    np.testing.assert_array_equal(answers(policy, STATES[0]), [1.0, 0.0])
    assert policy(torch.from_numpy(STATES[:1]), deterministic=True).tolist() == [[1.0, -1.0]]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_predictions_are_the_mean_in_the_environments_units(policy: str) -> None:
    chosen = filled(POLICIES[policy])
    expected = chosen.to_environment(chosen.act(torch.from_numpy(STATES))[0].numpy())
    np.testing.assert_allclose(answers(chosen), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(answers(chosen, STATES[0]), expected[0], rtol=1e-5, atol=1e-5)


def test_random_predictions_are_drawn_with_sigma_from_the_policys_own_generator() -> None:
    policy, before = filled(MkiPolicy), torch.get_rng_state()
    policy.std.copy_(torch.tensor([0.1, 0.4]))
    mean, _ = policy.act(torch.from_numpy(STATES))
    noise = torch.randn(mean.shape, generator=policy.generator.clone_state())
    actions, _ = policy.predict(STATES)
    expected = policy.to_environment((mean + noise * torch.tensor([0.1, 0.4])).numpy())
    np.testing.assert_allclose(actions, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"RegressorPolicy"}))
def test_what_was_computed_is_kept_until_the_policy_changes_and_not_copied(policy: str) -> None:
    chosen = filled(POLICIES[policy])
    before, kept = answers(chosen), dict(chosen.cache)
    assert kept
    answers(chosen)
    assert all(chosen.cache[name] is value for name, value in kept.items())
    twin, other = copy.deepcopy(chosen), filled(POLICIES[policy], seed=1)
    remember(chosen)
    assert not np.allclose(before, answers(chosen))
    np.testing.assert_array_equal(answers(twin), before)
    assert not np.allclose(answers(other), answers(chosen))
    other.load_state_dict(chosen.state_dict())
    np.testing.assert_array_equal(answers(other), answers(chosen))
    other.to("cpu")
    assert not other.cache


def test_sigma_is_the_policys_or_the_interpolators_own_and_never_below_the_floor() -> None:
    states = torch.from_numpy(STATES)
    shared = filled(NpPolicy).act(states)[1]
    own = filled(NpPolicy, std_mode="model").act(states)[1]
    floored = filled(NpPolicy, std_mode="model", min_std=float(own.median())).act(states)[1]
    assert torch.equal(shared, torch.full((len(STATES), 2), 0.5))
    assert own.std() > 0
    assert torch.equal(floored, own.clamp_min(float(own.median())))


def test_the_six_policies_are_known_by_name() -> None:
    names = ("Mki", "Np", "Anp", "Regressor", "Nearest", "Ridge")
    assert POLICIES.keys() == {f"{name}Policy" for name in names}
