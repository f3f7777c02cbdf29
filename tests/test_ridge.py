"""`RidgePolicy`: its step against a natural policy gradient by hand, and what it keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from imel import RidgePolicy
from imel.data.advantage import replayed_advantages
from imel.data.memory import Memory
from imel.data.normaliser import Normaliser
from imel.distributions import Gaussian
from imel.distributions.gaussian import improved_means
from imel.policies.ridge import ridge_update
from imel.policies.ridge.features import Design, RandomFeatures, damped_inverse
from imel.policies.ridge.ridge_update import effective_sample_size
from samples import rows_for
from small import BATCH, LogBook, small_model

STATE_DIM, ACTION_DIM = 3, 2
OBSERVATIONS = spaces.Box(-np.inf, np.inf, (STATE_DIM,), np.float32)
ACTIONS = spaces.Box(-1.0, 1.0, (ACTION_DIM,), np.float32)


def rows(memory: Memory, count: int, first_episode: int, seed: int) -> dict[str, Tensor]:
    """Random rows of episodes with five steps each."""
    generator, numbers = torch.Generator().manual_seed(seed), torch.arange(count)
    columns = {
        name: torch.randn(column.shape, generator=generator)
        for name, column in rows_for(memory, count).items()
    }
    columns |= {"states": 2.0 + 3.0 * columns["states"], "terminated": torch.zeros(count)}
    return columns | {"episodes": first_episode + numbers // 5, "steps": numbers % 5}


def filled(features: int = 16, penalty: float = 1.0) -> RidgePolicy:
    """A policy that remembers three rollouts of four episodes, and has coefficients."""
    policy = RidgePolicy(OBSERVATIONS, ACTIONS, memory_size=60, features=features, penalty=penalty)
    lessons, column = policy.lessons, policy.memory.column
    for iteration in range(3):
        policy.memory.add(rows(policy.memory, 20, 4 * iteration, iteration), iteration)
    policy.normaliser.update(column("states"))
    policy.normaliser.refresh()
    lessons.record_episodes(column("episodes"), column("rewards"), column("states"), 0, 60)
    shape, generator = (12, *policy.coefficients.shape), torch.Generator().manual_seed(9)
    policy.move(torch.arange(12), 0.1 * torch.randn(shape, generator=generator), 1.0)
    return policy


def test_features_are_a_constant_the_state_and_random_features_of_it() -> None:
    phi = RandomFeatures(STATE_DIM, 7)
    states = 10.0 * torch.randn(20, STATE_DIM)
    clipped = states.clamp(-5.0, 5.0)
    random = torch.tanh(clipped @ phi.directions + phi.offsets)
    expected = torch.cat([torch.ones(20, 1), clipped, random], dim=1)
    torch.testing.assert_close(phi(states), expected)
    assert phi.width == 1 + STATE_DIM + 7
    theta = torch.randn(phi.width, ACTION_DIM)
    torch.testing.assert_close(phi.predict(states, theta), expected @ theta, rtol=1e-4, atol=1e-5)


def test_gram_matrix_is_bit_for_bit_what_it_is_computed_afresh() -> None:
    phi, normaliser = RandomFeatures(STATE_DIM, 12), Normaliser(STATE_DIM)
    memory = Memory(50, STATE_DIM, ACTION_DIM)
    design = Design(phi, normaliser, memory)
    for iteration, count in enumerate((20, 15, 10, 25, 20, 5)):
        memory.add(rows(memory, count, 10 * iteration, iteration), iteration)
        design.update(memory)
        afresh = Design(phi, normaliser, memory)
        assert torch.equal(design.gram, afresh.gram)
        assert torch.equal(design.features, afresh.features)
        features = phi(normaliser(memory.column("states"))).double()
        torch.testing.assert_close(design.gram, (features.T @ features).float())
        theta = torch.randn(features.shape[1], ACTION_DIM)
        torch.testing.assert_close(design.predict(theta), (features @ theta.double()).float())
    assert len(memory) < 95, "some rollouts were forgotten"
    memory.forget_episodes(torch.tensor([30, 41]))  # within a rollout
    design.update(memory)
    assert torch.equal(design.features, Design(phi, normaliser, memory).features)


@pytest.mark.parametrize("penalty", [0.1, 1.0, 10.0])
def test_step_is_a_damped_natural_policy_gradient(penalty: float) -> None:
    """(F + damping)^{-1} g in each dimension of the action, with a rate of eta / sigma^2.

    g = sum_i A_i grad log pi(a_i | s_i) and F = sum_i E[grad log pi grad log pi^T], where
    grad log pi = phi (a - mu) / sigma^2, so that F = sum_i phi phi^T / sigma^2. The damping is
    lambda / sigma^2 but for the constant feature, lambda in units of the features' mean variance.
    """
    policy = filled(penalty=penalty)
    column = policy.memory.column
    stds, eta = torch.tensor([0.3, 0.5]), 0.37
    advantages, actions, means = (
        column("advantages"),
        column("actions"),
        policy.act(column("states"))[0],
    )
    improved = improved_means(advantages, actions, means, stds.expand_as(means), eta)
    step = policy.step(improved - means)[1].double().sum(dim=0).numpy()
    phi = policy.design.features.double().numpy()
    damping = len(phi) * penalty * phi[:, 1:].var(axis=0).mean() * np.eye(phi.shape[1])
    damping[0, 0] = 0.0
    for d, sigma in enumerate(stds.tolist()):
        scores = phi * (actions - means)[:, d : d + 1].double().numpy() / sigma**2
        fisher = (phi.T @ phi + damping) / sigma**2
        natural = np.linalg.solve(fisher, advantages.double().numpy() @ scores)
        expected = eta * natural / sigma**2
        assert np.linalg.norm(step[:, d] - expected) < 1e-5 * np.linalg.norm(expected)


def test_parts_of_a_step_are_what_each_episode_asks_for_and_sum_to_the_step() -> None:
    policy = filled()
    column = policy.memory.column
    improvements = column("improved_means") - column("means")
    episodes, parts = policy.step(improvements)
    assert episodes.tolist() == list(range(12))
    features, inverse = policy.design.features.double(), damped_inverse(policy.design.gram, 1.0)
    whole = inverse @ features.T @ improvements.double()
    torch.testing.assert_close(parts.double().sum(dim=0), whole, rtol=1e-5, atol=1e-6)
    before = policy.coefficients.clone()
    policy.move(episodes, parts, scale=0.3)
    torch.testing.assert_close(policy.coefficients, before + 0.3 * whole, rtol=1e-5, atol=1e-6)
    for episode, part in zip(episodes.tolist(), parts, strict=True):
        mine = column("episodes") == episode
        alone = torch.where(mine[:, None], improvements, 0.0)
        _, others = policy.step(alone)
        torch.testing.assert_close(others.sum(dim=0), part, rtol=1e-5, atol=1e-6)


def test_refreshing_the_normaliser_keeps_means_and_lessons_follow() -> None:
    policy = filled(features=64)
    policy.normaliser.update(1.0 + 4.0 * torch.randn(200, STATE_DIM))  # other states, since
    states = policy.memory.column("states")
    centre = policy.normaliser.centre.clone()
    before = policy.act(states)[0]
    policy.refresh_normaliser()
    assert not torch.allclose(centre, policy.normaliser.centre)
    # Features are no longer the same: a residual is left, of 0.05 to 0.7 % in runs and here
    residual = (policy.act(states)[0] - before).square().mean().sqrt()
    assert float(residual) < 0.01 * float(before.std())
    lessons = policy.lessons.column("coefficients").double().sum(dim=0)
    assert float((lessons - policy.coefficients).norm()) < 1e-4 * float(policy.coefficients.norm())


@pytest.mark.parametrize("trust_region", [0.001, 0.1])
def test_every_update_stays_within_the_trust_region(trust_region: float) -> None:
    model: Any = small_model(trust_region=trust_region, memory_size=4 * BATCH)
    policy, update, book, seen = model.policy, model.learner.update, LogBook.of(model), []
    original = update._step

    def watched(means: Tensor, improvements: Tensor, share: float, new: int) -> Any:
        states = policy.memory.column("states")
        before, stds = policy.act(states)
        stats = original(means, improvements, share, new)
        kls = Gaussian(1).kls(policy.act(states)[0] - before, before, stds)
        seen.append((float(kls[-new:].mean()), float(kls.max()), share))
        return stats

    update._step = watched
    model.learn(10 * BATCH)
    kls, peaks, shares = (np.array(column) for column in zip(*seen, strict=True))
    assert len(kls) == 10
    # Less than the whole where there is little to gain; the KL is quadratic in the length
    used = np.maximum(kls / trust_region, peaks / (10.0 * trust_region))
    np.testing.assert_allclose(used, shares**2, rtol=0.01, err_msg="one of the bounds is used up")
    assert used.max() <= 1.0 + 1e-3
    np.testing.assert_allclose(kls, [page["improve/policy_kl"] for page in book.pages], rtol=1e-2)
    np.testing.assert_allclose(peaks, [page["improve/peak_kl"] for page in book.pages], rtol=1e-2)


def test_lessons_know_when_their_episodes_were_and_what_they_returned() -> None:
    policy: Any = small_model().learn(2 * BATCH).policy
    lessons, memory = policy.lessons, policy.memory
    assert lessons.column("starts").tolist() == [0] * 4 + [BATCH] * 4
    assert lessons.column("ends").tolist() == [BATCH] * 4 + [2 * BATCH] * 4
    assert lessons.column("lengths").tolist() == [16] * 8
    episodes, returns = lessons.column("episodes").tolist(), lessons.column("returns").tolist()
    assert sorted(set(memory.column("episodes").tolist())) == episodes
    for episode, returned in zip(episodes, returns, strict=True):
        rewards = memory.column("rewards")[memory.column("episodes") == episode]
        assert returned == pytest.approx(float(rewards.sum()), rel=1e-5)


def test_effective_sample_size_is_the_share_of_memories_that_count() -> None:
    for ratios, share in (([0.3] * 8, 1.0), ([1.0, 0.0, 0.0, 0.0], 0.25), ([1.0, 1.0, 0, 0], 0.5)):
        assert effective_sample_size(torch.tensor(ratios)) == pytest.approx(share)


def test_temporal_differences_use_the_critic_at_the_true_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = small_model("RidgePolicy", gamma=0.9)
    checked = []

    def compared(deltas: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        memory, normaliser = model.policy.memory, model.policy.normaliser
        order, _ = memory.in_time()
        with torch.no_grad():
            now, then = (
                model.critic(normaliser(memory.column(name))) for name in ("states", "next_states")
            )
        rewards = model.learner.return_scale.scale(memory.column("rewards"))
        expected = rewards + 0.9 * then * (1.0 - memory.column("terminated")) - now
        torch.testing.assert_close(deltas, expected[order], rtol=1e-4, atol=1e-5)
        checked.append(len(deltas))
        return replayed_advantages(deltas, *others)

    monkeypatch.setattr(ridge_update, "replayed_advantages", compared)
    model.learn(3 * BATCH)
    assert checked[-1] > BATCH
