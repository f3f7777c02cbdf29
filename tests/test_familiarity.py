"""Familiarity is calibrated: uniform on what is like the memories, zero far from all of them."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from gymnasium import spaces

from imel.explain import familiarity_of
from imel.policies import Policy
from small import BATCH, POLICIES, STATES, small_model


def policy_with_memories(
    name: str, episodes: int, length: int, seed: int = 0
) -> tuple[Policy, torch.Generator]:
    """Memories of episodes around points of their own, as trajectories are."""
    generator = torch.Generator().manual_seed(seed)
    policy = POLICIES[name](
        spaces.Box(-np.inf, np.inf, (3,), np.float32),
        spaces.Box(-1.0, 1.0, (1,), np.float32),
        memory_size=episodes * length,
    )
    states = draw_episodes(episodes, length, generator)
    count = len(states)
    rows = {
        name: torch.zeros_like(policy.memory.get_buffer(name))
        for name in policy.memory.column_names
        if name != "iterations"
    }
    rows |= {
        "states": states,
        "improved_means": torch.randn(count, 1, generator=generator),
        "episodes": torch.arange(count) // length,
    }
    policy.memory.add(rows, 0)
    policy.normaliser.update(states)
    policy.normaliser.refresh()
    return policy, generator


def draw_episodes(episodes: int, length: int, generator: torch.Generator) -> torch.Tensor:
    centres = torch.randn(episodes, 1, 3, generator=generator)
    noise = 0.3 * torch.randn(episodes, length, 3, generator=generator)
    return (100.0 + 5.0 * (centres + noise)).reshape(-1, 3)


@pytest.mark.parametrize("name", ["MkiPolicy", "NpPolicy"])
def test_held_out_states_of_the_same_kind_have_uniform_scores(name: str) -> None:
    policy, generator = policy_with_memories(name, episodes=150, length=10)
    scores = familiarity_of(policy)(draw_episodes(2000, 1, generator))

    quantiles = np.quantile(scores, [0.1, 0.25, 0.5, 0.75, 0.9])
    np.testing.assert_allclose(quantiles, [0.1, 0.25, 0.5, 0.75, 0.9], atol=0.06)


@pytest.mark.parametrize("name", list(POLICIES))
def test_states_far_from_all_memories_score_zero_and_remembered_ones_high(name: str) -> None:
    policy, _ = policy_with_memories(name, episodes=40, length=20)
    states = policy.memory.column("states")
    score = familiarity_of(policy)

    far = torch.tensor([[140.0, 100.0, 100.0], [100.0, -100.0, 60.0]])
    np.testing.assert_array_equal(score(far), 0.0)
    assert np.median(score(states)) > 0.75, "with their own episode, which is near"
    assert score(states[:1]).shape == (1,)


def test_the_score_is_the_rank_among_the_memories_own_distances() -> None:
    policy, generator = policy_with_memories("NearestPolicy", episodes=12, length=8)
    memory, states = policy.memory, draw_episodes(5, 1, generator)
    keys = policy.normaliser(memory.column("states")).double().numpy()
    episodes = memory.column("episodes").numpy()

    def nearest(place: np.ndarray, among: np.ndarray) -> float:
        return float(np.sort(np.linalg.norm(among - place, axis=1))[:5].mean())

    own = np.array([nearest(keys[i], keys[episodes != episodes[i]]) for i in range(len(keys))])
    places = policy.normaliser(states).double().numpy()
    expected = [(own >= nearest(place, keys)).mean() for place in places]
    np.testing.assert_allclose(familiarity_of(policy)(states), expected, atol=1.01 / len(keys))


def test_a_single_episode_has_nothing_to_compare_with() -> None:
    policy, _ = policy_with_memories("MkiPolicy", episodes=1, length=20)
    assert np.isnan(familiarity_of(policy)(torch.zeros(2, 3))).all()


def test_two_episodes_of_which_one_is_long_are_enough() -> None:
    policy, _ = policy_with_memories("MkiPolicy", episodes=2, length=20)
    policy.memory.column("episodes")[:39] = 0
    policy.memory.column("episodes")[39:] = 1
    assert np.isfinite(familiarity_of(policy)(policy.memory.column("states")[:3])).all()


def test_the_reference_is_made_once_until_the_policy_changes_and_is_not_kept_beyond() -> None:
    model = small_model().learn(BATCH)
    first = familiarity_of(model.policy)
    assert familiarity_of(model.policy) is first
    model.learn(BATCH, reset_num_timesteps=False)
    assert familiarity_of(model.policy) is not first
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None


def test_the_model_reports_it() -> None:
    model = small_model().learn(2 * BATCH)
    why = model.explain(STATES[0])
    expected = familiarity_of(model.policy)(torch.from_numpy(STATES[:1]))[0]
    assert why.familiarity == pytest.approx(expected)
    assert model.explain(np.array([40.0, 40.0], np.float32)).familiarity == 0.0
