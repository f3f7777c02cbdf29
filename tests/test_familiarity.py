"""Familiarity is calibrated: uniform on what is like the memories, zero far from all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from imel.explain import familiarity_of
from imel.policies import MkiPolicy, NearestPolicy
from samples import rows_for
from small import BATCH, POLICIES, STATES, small_model


def policy_with_memories(policy_class: Any, episodes: int, length: int) -> Any:
    """A policy with memories of episodes around points of their own, as trajectories are."""
    observed = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    policy = policy_class(observed, spaces.Box(-1.0, 1.0, (1,)), memory_size=episodes * length)
    states, ids = draw_episodes(episodes, length), torch.arange(episodes * length) // length
    values = torch.randn(len(states), 1, generator=torch.Generator().manual_seed(2))
    columns = {"states": states, "episodes": ids, "improved_means": values}
    policy.memory.add(rows_for(policy.memory, len(states), **columns), 0)
    policy.normaliser.update(states)
    policy.normaliser.refresh()
    return policy


def draw_episodes(episodes: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(episodes, 1, 3, generator=generator)
    noise = 0.3 * torch.randn(episodes, length, 3, generator=generator)
    return (100.0 + 5.0 * (centres + noise)).reshape(-1, 3)


@pytest.mark.parametrize("name", list(POLICIES))
def test_scores_are_uniform_on_the_same_kind_high_on_memories_and_zero_far_off(name: str) -> None:
    policy = policy_with_memories(POLICIES[name], episodes=150, length=10)
    score = familiarity_of(policy)
    quantiles = np.quantile(score(draw_episodes(2000, 1, seed=1)), [0.1, 0.25, 0.5, 0.75, 0.9])
    np.testing.assert_allclose(quantiles, [0.1, 0.25, 0.5, 0.75, 0.9], atol=0.06)
    assert np.median(score(policy.memory.column("states"))) > 0.75, "their own episode is near"
    far = torch.tensor([[140.0, 100.0, 100.0], [100.0, -100.0, 60.0]])
    np.testing.assert_array_equal(score(far), 0.0)


@pytest.mark.parametrize("at_once", [1, 1 << 22])
def test_the_score_is_the_rank_among_the_memories_own_distances(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imel.explain.familiarity._AT_ONCE", at_once)
    policy = policy_with_memories(NearestPolicy, episodes=12, length=8)
    memory, states = policy.memory, draw_episodes(5, 1, seed=1)
    keys = policy.normaliser(memory.column("states")).double().numpy()
    episodes = memory.column("episodes").numpy()

    def nearest(place: np.ndarray, among: np.ndarray) -> float:
        return float(np.sort(np.linalg.norm(among - place, axis=1))[:5].mean())

    own = np.array([nearest(keys[i], keys[episodes != episodes[i]]) for i in range(len(keys))])
    places = policy.normaliser(states).double().numpy()
    expected = [(own >= nearest(place, keys)).mean() for place in places]
    np.testing.assert_allclose(familiarity_of(policy)(states), expected, atol=1.01 / len(keys))


def test_fewer_than_two_episodes_leave_nothing_to_compare_with() -> None:
    policy = policy_with_memories(MkiPolicy, episodes=1, length=20)
    assert np.isnan(familiarity_of(policy)(torch.zeros(2, 3))).all()
    policy.memory.forget_rows(torch.arange(20))
    policy.invalidate()
    assert np.isnan(familiarity_of(policy)(torch.zeros(2, 3))).all()
    policy = policy_with_memories(MkiPolicy, episodes=2, length=20)
    policy.memory.column("episodes")[:39] = 0  # two, of which one is long
    assert np.isfinite(familiarity_of(policy)(policy.memory.column("states")[:3])).all()


def test_the_reference_is_made_once_until_the_policy_changes() -> None:
    model = small_model().learn(BATCH)
    first = familiarity_of(model.policy)
    assert familiarity_of(model.policy) is first
    assert model.explain(STATES[0]).familiarity == first(torch.from_numpy(STATES[:1]))[0]
    assert model.explain(np.array([40.0, 40.0], np.float32)).familiarity == 0.0
    model.learn(BATCH, reset_num_timesteps=False)
    assert familiarity_of(model.policy) is not first
