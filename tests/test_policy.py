"""The policy: from raw states to actions within the environment's bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from imel import MkiPolicy, NearestPolicy, NpPolicy, RidgePolicy
from imel.policies import PaperPolicy, Policy
from small import BATCH, POLICIES, STATES, answers, small_model
from toy import ScriptedEnv

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (2,), np.float32)
LOPSIDED = spaces.Box(np.array([-3.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
every_policy = pytest.mark.parametrize("policy", sorted(POLICIES))


def filled(cls: type[Policy], seed: int = 0, **arguments: Any) -> Policy:
    """A policy over two action dimensions with a random memory of 16 points."""
    torch.manual_seed(seed)
    policy = cls(OBSERVATIONS, LOPSIDED, memory_size=32, **arguments)
    remember(policy)
    return policy


def remember(policy: Policy) -> None:
    """Put random points into memory; where a policy holds coefficients, fit them to those."""
    policy.memory.set_prior(torch.randn(16, 2), 0.5 * torch.randn(16, 2))
    policy.invalidate()
    if policy.lessons is not None:
        memory = policy.memory
        column = memory.column
        policy.lessons.record_episodes(
            column("episodes"), column("rewards"), column("states"), 0, 0
        )
        policy.imitate()


def test_the_action_range_is_mapped_onto_lopsided_bounds() -> None:
    policy = filled(NearestPolicy)
    units = np.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [0.5, -0.5]], np.float32)

    actions = policy.to_environment(units)

    np.testing.assert_allclose(actions, [[-3.0, 0.0], [-1.0, 5.0], [1.0, 10.0], [0.0, 2.5]])


def test_actions_beyond_the_range_are_clipped_to_the_bounds() -> None:
    beyond = np.array([[-7.0, 1.001], [100.0, -1e9]], np.float32)

    actions = filled(NearestPolicy).to_environment(beyond)

    np.testing.assert_array_equal(actions, [[-3, 10], [1, 0]])


@every_policy
def test_predictions_are_the_mean_in_the_environments_units(policy: str) -> None:
    chosen = filled(POLICIES[policy])
    mean, _ = chosen.act(torch.from_numpy(STATES))

    expected = chosen.to_environment(mean.numpy())

    np.testing.assert_allclose(answers(chosen), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(answers(chosen, STATES[0]), expected[0], rtol=1e-5, atol=1e-5)


def test_random_predictions_are_drawn_with_sigma_from_the_policys_generator() -> None:
    policy = filled(MkiPolicy)
    policy.std.copy_(torch.tensor([0.1, 0.4]))
    mean, _ = policy.act(torch.from_numpy(STATES))
    noise = torch.randn(mean.shape, generator=policy.generator.clone_state())

    actions, _ = policy.predict(STATES)

    expected = policy.to_environment((mean + noise * torch.tensor([0.1, 0.4])).numpy())
    np.testing.assert_allclose(actions, expected, rtol=1e-5, atol=1e-5)


def test_random_predictions_leave_torchs_own_generator_alone() -> None:
    policy = filled(MkiPolicy)
    before = torch.get_rng_state()
    policy.predict(STATES)
    assert torch.equal(before, torch.get_rng_state())


def test_means_outside_the_range_are_predicted_at_the_bounds() -> None:
    policy = filled(NearestPolicy)
    policy.memory.set_prior(torch.randn(4, 2), torch.tensor([[5.0, -5.0]]).expand(4, 2))
    policy.invalidate()

    np.testing.assert_array_equal(answers(policy, STATES[0]), [1.0, 0.0])
    assert policy(torch.from_numpy(STATES[:1]), deterministic=True).tolist() == [[1.0, -1.0]]


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"RegressorPolicy"}))
def test_after_invalidate_the_policy_acts_on_its_new_memories(policy: str) -> None:
    chosen = filled(POLICIES[policy])
    before = answers(chosen)

    remember(chosen)

    assert not np.allclose(before, answers(chosen))
    twin = filled(POLICIES[policy], seed=1)
    twin.load_state_dict(chosen.state_dict())
    np.testing.assert_array_equal(answers(twin), answers(chosen))


@pytest.mark.parametrize("kind", [MkiPolicy, RidgePolicy])
def test_loading_a_state_dict_invalidates_what_was_computed(kind: type[Policy]) -> None:
    policy, other = filled(kind), filled(kind, seed=1)
    assert not np.allclose(answers(policy), answers(other))

    policy.load_state_dict(other.state_dict())

    np.testing.assert_array_equal(answers(policy), answers(other))


def test_conditioning_is_done_once_until_the_policy_is_invalidated() -> None:
    policy = filled(MkiPolicy)
    assert isinstance(policy, MkiPolicy)
    conditioned = policy.conditioned
    answers(policy)
    assert policy.conditioned is conditioned

    for change in (policy.invalidate, lambda: policy.to("cpu")):
        conditioned = policy.conditioned
        change()
        assert policy.conditioned is not conditioned


@pytest.mark.parametrize("kind", ["MkiPolicy", "NearestPolicy"])
def test_the_context_is_the_memory_in_normalised_states(kind: str) -> None:
    policy = small_model(kind, env=ScriptedEnv()).learn(BATCH).policy
    assert isinstance(policy, PaperPolicy)
    raw = policy.memory.column("states").double()

    context = policy.context()

    assert float(raw[:, 0].max()) > 10, "raw states are what is kept"
    expected = (raw - raw.mean(dim=0)) / raw.std(dim=0, unbiased=False)
    torch.testing.assert_close(context.states, expected.float(), rtol=1e-4, atol=1e-4)
    assert torch.equal(context.values, policy.memory.column("improved_means"))


def test_the_mean_of_ridge_is_linear_in_its_features() -> None:
    policy = small_model().learn(3 * BATCH).policy
    assert policy.lessons is not None
    states = torch.from_numpy(STATES)
    features = policy.features(policy.normaliser(states))

    torch.testing.assert_close(policy.act(states)[0], features @ policy.coefficients.float())
    decided = policy.to_environment(policy.act(states)[0].numpy())
    np.testing.assert_allclose(answers(policy), decided, rtol=1e-6, atol=1e-6)


def test_sigma_is_the_policys_or_the_interpolators_own_and_never_below_the_floor() -> None:
    states = torch.from_numpy(STATES)
    shared = filled(NpPolicy).act(states)[1]
    own = filled(NpPolicy, std_mode="model").act(states)[1]
    floored = filled(NpPolicy, std_mode="model", min_std=float(own.median())).act(states)[1]

    assert torch.equal(shared, torch.full((len(STATES), 2), 0.5))
    assert own.std() > 0
    assert torch.equal(floored, own.clamp_min(float(own.median())))


def test_options_reach_the_interpolator_as_tuples() -> None:
    policy = filled(MkiPolicy, features=3, hidden=[5, 6])
    assert isinstance(policy, MkiPolicy)

    assert policy.settings.hidden == (5, 6)
    shapes = [tuple(weight.shape) for weight in policy.interpolator.parameters()]
    assert (5, 2) in shapes
    assert (6, 5) in shapes
    assert (3, 6) in shapes


def test_the_six_policies_are_known_by_name() -> None:
    names = {f"{name}Policy" for name in ("Mki", "Np", "Anp", "Regressor", "Nearest", "Ridge")}
    assert POLICIES.keys() == names
    assert all(cls.__name__ == name for name, cls in POLICIES.items())
