"""`RidgePolicy`: its step against a natural policy gradient by hand, and what it keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from imel import IMeL, RidgePolicy
from imel.data.advantage import replayed_advantages
from imel.data.memory import Memory
from imel.data.normaliser import Normaliser
from imel.distributions.gaussian import improved_means, shift_kls
from imel.policies.ridge import ridge_update
from imel.policies.ridge.features import Design, RandomFeatures, damped_inverse
from imel.policies.ridge.ridge_update import effective_sample_size
from small import BATCH, LogBook, small_model

STATE_DIM, ACTION_DIM = 3, 2
OBSERVATIONS = spaces.Box(-np.inf, np.inf, (STATE_DIM,), np.float32)
ACTIONS = spaces.Box(-1.0, 1.0, (ACTION_DIM,), np.float32)


def rows(count: int, first_episode: int, seed: int) -> dict[str, Tensor]:
    """Random rows of episodes with five steps each."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=generator)

    columns = {name: draw(ACTION_DIM) for name in ("actions", "means", "behaviour_means")}
    return {
        **columns,
        "states": 2.0 + 3.0 * draw(STATE_DIM),
        "next_states": draw(STATE_DIM),
        "improved_means": draw(ACTION_DIM),
        "stds": torch.full((count, ACTION_DIM), 0.4),
        "rewards": draw(),
        "advantages": draw(),
        "terminated": torch.zeros(count),
        "episodes": first_episode + torch.arange(count) // 5,
        "steps": torch.arange(count) % 5,
    }


def filled(memory_size: int = 60, features: int = 16, penalty: float = 1.0) -> RidgePolicy:
    """A policy that remembers three rollouts of four episodes, and has coefficients."""
    policy = RidgePolicy(
        OBSERVATIONS, ACTIONS, memory_size=memory_size, features=features, penalty=penalty
    )
    for iteration in range(3):
        policy.memory.add(rows(20, 4 * iteration, iteration), iteration)
    memory = policy.memory
    policy.normaliser.update(memory.column("states"))
    policy.normaliser.refresh()
    column = memory.column
    policy.lessons.record_episodes(column("episodes"), column("rewards"), column("states"), 0, 60)
    generator = torch.Generator().manual_seed(9)
    shape = (12, *policy.coefficients.shape)
    policy.move(torch.arange(12), 0.1 * torch.randn(shape, generator=generator), 1.0)
    return policy


# --- features ---


def test_features_are_a_constant_the_state_and_bounded_waves_of_it() -> None:
    phi = RandomFeatures(STATE_DIM, 7)
    states = 10.0 * torch.randn(20, STATE_DIM)
    features = phi(states)

    assert features.shape == (20, phi.width)
    assert phi.width == 1 + STATE_DIM + 7
    assert torch.equal(features[:, 0], torch.ones(20))
    clipped = states.clamp(-5.0, 5.0)
    torch.testing.assert_close(features[:, 1 : 1 + STATE_DIM], clipped)
    expected = torch.tanh(clipped @ phi.directions + phi.offsets)
    torch.testing.assert_close(features[:, 1 + STATE_DIM :], expected)


# --- the design ---


def test_gram_matrix_is_bit_for_bit_what_it_is_computed_afresh() -> None:
    phi, normaliser = RandomFeatures(STATE_DIM, 12), Normaliser(STATE_DIM)
    memory = Memory(50, STATE_DIM, ACTION_DIM)
    design = Design(phi, normaliser, memory)
    for iteration, count in enumerate((20, 15, 10, 25, 20, 5)):
        memory.add(rows(count, 10 * iteration, iteration), iteration)
        design.update(memory)
        afresh = Design(phi, normaliser, memory)
        assert torch.equal(design.gram, afresh.gram)
        assert torch.equal(design.features, afresh.features)

        features = phi(normaliser(memory.column("states"))).double()
        torch.testing.assert_close(design.gram, (features.T @ features).float())
        theta = torch.randn(features.shape[1], ACTION_DIM)
        torch.testing.assert_close(design.predict(theta), (features @ theta.double()).float())
    assert len(memory) < 95, "some rollouts were forgotten"


def test_design_notices_rows_that_were_forgotten_within_a_rollout() -> None:
    policy = filled()
    policy.design.update(policy.memory)
    policy.memory.forget_episodes(torch.tensor([0, 5, 6]))
    policy.invalidate()
    features = policy.features(policy.normaliser(policy.memory.column("states")))
    assert torch.equal(policy.design.features, features)


# --- the step ---


def natural_gradient(
    phi: NDArray[np.float64],
    advantages: NDArray[np.float64],
    actions: NDArray[np.float64],
    means: NDArray[np.float64],
    stds: NDArray[np.float64],
    penalty: float,
) -> NDArray[np.float64]:
    """(F + damping)^{-1} g of a Gaussian policy with mean phi^T theta, each action dimension's own.

    g = sum_i A_i grad log pi(a_i | s_i) and F = sum_i E[grad log pi grad log pi^T], where
    grad log pi = phi (a - mu) / sigma^2, so that F = sum_i phi phi^T / sigma^2. The damping is
    lambda / sigma^2 but for the constant feature, lambda in units of the features' mean variance.
    """
    count, width = phi.shape
    variance = np.mean([phi[:, j].var() for j in range(1, width)])
    damping = count * penalty * variance
    steps = np.zeros((width, actions.shape[1]))
    for d in range(actions.shape[1]):
        gradient, fisher = np.zeros(width), np.zeros((width, width))
        for i in range(count):
            score = phi[i] * (actions[i, d] - means[i, d]) / stds[d] ** 2
            gradient += advantages[i] * score
            fisher += np.outer(phi[i], phi[i]) / stds[d] ** 2
        for j in range(1, width):
            fisher[j, j] += damping / stds[d] ** 2
        steps[:, d] = np.linalg.solve(fisher, gradient)
    return steps


@pytest.mark.parametrize("penalty", [0.1, 1.0, 10.0])
def test_step_is_a_damped_natural_policy_gradient(penalty: float) -> None:
    """In each dimension of the action, with a learning rate of eta / sigma^2."""
    policy = filled(penalty=penalty)
    column = policy.memory.column
    stds = torch.tensor([0.3, 0.5])
    eta = 0.37
    means, _ = policy.act(column("states"))
    improved = improved_means(
        column("advantages"), column("actions"), means, stds.expand_as(means), eta
    )

    _, parts = policy.step(improved - means)
    step = parts.double().sum(dim=0).numpy()

    tensors = (policy.design.features, column("advantages"), column("actions"), means, stds)
    phi, *rest, sigma = (tensor.double().numpy() for tensor in tensors)
    expected = eta * natural_gradient(phi, rest[0], rest[1], rest[2], sigma, penalty) / sigma**2
    for d in range(ACTION_DIM):
        ours, theirs = step[:, d], expected[:, d]
        lengths = np.linalg.norm(ours), np.linalg.norm(theirs)
        assert ours @ theirs / lengths[0] / lengths[1] == pytest.approx(1.0, abs=1e-5)
        assert lengths[0] == pytest.approx(lengths[1], rel=1e-5)


def test_parts_of_a_step_are_what_each_episode_asks_for_and_sum_to_the_step() -> None:
    policy = filled()
    column = policy.memory.column
    improvements = column("improved_means") - column("means")

    episodes, parts = policy.step(improvements)

    assert episodes.tolist() == list(range(12))
    features, inverse = policy.design.features.double(), damped_inverse(policy.design.gram, 1.0)
    whole = inverse @ features.T @ improvements.double()
    torch.testing.assert_close(parts.double().sum(dim=0), whole, rtol=1e-5, atol=1e-6)
    for episode, part in zip(episodes.tolist(), parts, strict=True):
        mine = column("episodes") == episode
        alone = torch.where(mine[:, None], improvements, 0.0)
        _, others = policy.step(alone)
        torch.testing.assert_close(others.sum(dim=0), part, rtol=1e-5, atol=1e-6)


def test_a_step_moves_the_coefficients_by_its_scale() -> None:
    policy = filled()
    before = policy.coefficients.clone()
    parts = torch.randn(2, *before.shape)

    policy.move(torch.tensor([3, 7]), parts, scale=0.3)

    after = before + 0.3 * parts.double().sum(dim=0)
    torch.testing.assert_close(policy.coefficients, after, rtol=1e-6, atol=1e-6)


# --- the normaliser ---


def drifted() -> RidgePolicy:
    """A policy whose normaliser has seen other states since it was refreshed."""
    policy = filled(features=64)
    policy.normaliser.update(1.0 + 4.0 * torch.randn(200, STATE_DIM))
    return policy


def test_refreshing_the_normaliser_keeps_the_means_at_remembered_states() -> None:
    policy = drifted()
    states = policy.memory.column("states")
    centre = policy.normaliser.centre.clone()
    before = policy.act(states)[0]

    policy.refresh_normaliser()

    assert not torch.allclose(centre, policy.normaliser.centre)
    # Features are no longer the same: a residual is left, of 0.05 to 0.7 % in runs and here
    residual = (policy.act(states)[0] - before).square().mean().sqrt()
    assert float(residual) < 0.01 * float(before.std())


def test_refreshing_the_normaliser_maps_lessons_like_the_coefficients() -> None:
    policy = drifted()
    assert_sums(policy)
    policy.refresh_normaliser()
    assert_sums(policy)


def assert_sums(policy: RidgePolicy) -> None:
    """The lessons add up to the policy, to single precision."""
    total = policy.coefficients
    lessons = policy.lessons.column("coefficients").double().sum(dim=0)
    assert float((lessons - total).norm()) < 1e-4 * float(total.norm())


# --- in a run ---


class Watch:
    """Notes both policies' means and sigma around every update of a run."""

    def __init__(self, model: IMeL) -> None:
        assert isinstance(model.policy, RidgePolicy)
        self.kls: list[float] = []
        self.peaks: list[float] = []
        self.shares: list[float] = []
        update: Any = model.learner.update
        self.policy = model.policy
        self.step: Any = update._step
        update._step = self

    def __call__(
        self, means: Tensor, improvements: Tensor, share: float, new: int
    ) -> dict[str, float]:
        states = self.policy.memory.column("states")
        before, stds = self.policy.act(states)
        stats: dict[str, float] = self.step(means, improvements, share, new)
        self.shares.append(share)
        after, _ = self.policy.act(states)
        kls = shift_kls(after - before, stds)
        self.kls.append(float(kls[-new:].mean()))
        self.peaks.append(float(kls.max()))
        return stats


@pytest.mark.parametrize("trust_region", [0.001, 0.1])
def test_every_update_stays_within_the_trust_region(trust_region: float) -> None:
    model = small_model(trust_region=trust_region, memory_size=4 * BATCH)
    watch, book = Watch(model), LogBook.of(model)

    model.learn(10 * BATCH)

    assert len(watch.kls) == 10
    assert max(watch.kls) <= trust_region * (1.0 + 1e-3)
    assert max(watch.peaks) <= 10.0 * trust_region * (1.0 + 1e-3)
    for kl, peak, share in zip(watch.kls, watch.peaks, watch.shares, strict=True):
        # Less than the whole where there is little to gain; the KL is quadratic in the length
        used = max(kl / trust_region, peak / (10.0 * trust_region))
        assert used == pytest.approx(share**2, rel=0.01), "one of the two bounds is used up"
    np.testing.assert_allclose(watch.kls, [p["improve/policy_kl"] for p in book.pages], rtol=1e-2)
    np.testing.assert_allclose(watch.peaks, [p["improve/peak_kl"] for p in book.pages], rtol=1e-2)


def test_lessons_know_when_their_episodes_were_and_what_they_returned() -> None:
    model = small_model().learn(2 * BATCH)
    assert isinstance(model.policy, RidgePolicy)
    lessons, memory = model.policy.lessons, model.policy.memory
    assert lessons.column("starts").tolist() == [0] * 4 + [BATCH] * 4
    assert lessons.column("ends").tolist() == [BATCH] * 4 + [2 * BATCH] * 4
    assert lessons.column("lengths").tolist() == [16] * 8
    episodes, returns = lessons.column("episodes").tolist(), lessons.column("returns").tolist()
    assert sorted(set(memory.column("episodes").tolist())) == episodes
    for episode, returned in zip(episodes, returns, strict=True):
        rewards = memory.column("rewards")[memory.column("episodes") == episode]
        assert returned == pytest.approx(float(rewards.sum()), rel=1e-5)


def test_effective_sample_size_is_the_share_of_memories_that_count() -> None:
    assert effective_sample_size(torch.full((8,), 0.3)) == pytest.approx(1.0)
    assert effective_sample_size(torch.tensor([1.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert effective_sample_size(torch.tensor([1.0, 1.0, 0.0, 0.0])) == pytest.approx(0.5)


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
