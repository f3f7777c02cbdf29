"""Advantage estimates against Stable-Baselines3, plain loops and answers found by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.buffers import RolloutBuffer
from torch import Tensor

from imel.data.advantage import (
    Estimator,
    estimate_advantages,
    generalised_advantages,
    replayed_advantages,
    standardise,
)

T, E = 12, 3


def column(*entries: float) -> Tensor:
    """One environment's column over time."""
    return torch.tensor(entries)[:, None]


def flags(*entries: int) -> Tensor:
    return torch.tensor(entries, dtype=torch.bool)[:, None]


def ending(terminated: Tensor) -> Tensor:
    """Where a trajectory stops: at terminations and at the batch's edge."""
    ended = terminated.clone()
    ended[-1] = True
    return ended


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(0.99, 0.95), (0.9, 0.0), (1.0, 1.0)])
def test_gae_agrees_with_the_rollout_buffer_of_stable_baselines(
    gamma: float, gae_lambda: float
) -> None:
    generator = torch.Generator().manual_seed(1)
    rewards, values = torch.randn(2, T, E, generator=generator)
    terminated = torch.rand(T, E, generator=generator) < 0.2
    last_values = torch.randn(E, generator=generator)
    box = spaces.Box(-1.0, 1.0, (1,))
    buffer = RolloutBuffer(T, box, box, "cpu", gae_lambda, gamma, n_envs=E)
    begins, blank = np.ones(E), np.zeros((E, 1), np.float32)
    for t in range(T):
        buffer.add(blank, blank, rewards[t].numpy(), begins, values[t], torch.zeros(E))
        begins = terminated[t].numpy()
    buffer.compute_returns_and_advantage(last_values, begins)
    next_values = torch.cat([values[1:], last_values[None]])
    advantages, returns = estimate_advantages(
        rewards, values, next_values, terminated, ending(terminated), gamma, gae_lambda, "gae"
    )
    np.testing.assert_allclose(advantages.numpy(), buffer.advantages, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(returns.numpy(), buffer.returns, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("estimator", ["gae", "monte-carlo"])
@pytest.mark.parametrize("terminates", [True, False])
def test_truncation_bootstraps_and_termination_does_not(
    estimator: Estimator, terminates: bool
) -> None:
    # Two trajectories of two steps; only the way the first one ends differs
    _, returns = estimate_advantages(
        rewards=column(1.0, 1.0, 4.0, 4.0),
        values=column(9.0, 7.0, 5.0, 3.0),
        next_values=column(7.0, 100.0, 3.0, 200.0),
        terminated=flags(0, int(terminates), 0, 1),
        ended=flags(0, 1, 0, 1),
        gamma=0.5,
        gae_lambda=1.0,
        estimator=estimator,
    )
    second = 1.0 + 0.5 * (0.0 if terminates else 100.0)
    torch.testing.assert_close(returns, column(1.0 + 0.5 * second, second, 6.0, 4.0))


def test_the_literal_estimate_bootstraps_with_what_its_critic_learns() -> None:
    # The critic learns q_t = gamma (r_t + q_{t+1}); a cut must not change a consistent answer
    gamma, rewards, ended, q = 0.8, column(1.0, 2.0, 4.0), flags(0, 0, 1), [0.0] * 4
    for t in reversed(range(3)):
        q[t] = gamma * (float(rewards[t]) + q[t + 1])
    for stop in (1, 2, 3):
        values, ahead, over = column(*q[:stop]), column(*q[1 : stop + 1]), ended[:stop]
        cut = (rewards[:stop], values, ahead, over, ending(over))
        _, returns = estimate_advantages(*cut, gamma, gae_lambda=0.9, estimator="paper")
        torch.testing.assert_close(returns, values)


def test_monte_carlo_is_the_return_less_the_value() -> None:
    rewards, values, next_values = torch.randn(3, T, E, generator=torch.Generator().manual_seed(2))
    terminated = torch.zeros(T, E, dtype=torch.bool)
    terminated[4, 0] = terminated[7, 2] = True
    ended = ending(terminated)
    ended[9, 1] = True
    advantages, returns = estimate_advantages(
        rewards, values, next_values, terminated, ended, 0.8, 0.9, "monte-carlo"
    )
    for e in range(E):
        for t in range(T):
            stop = next(k for k in range(t, T) if ended[k, e])
            q = sum(0.8 ** (k - t) * float(rewards[k, e]) for k in range(t, stop + 1))
            if not terminated[stop, e]:
                q += 0.8 ** (stop + 1 - t) * float(next_values[stop, e])
            assert float(returns[t, e]) == pytest.approx(q, rel=1e-4, abs=1e-5)
            expected = pytest.approx(q - float(values[t, e]), rel=1e-4, abs=1e-5)
            assert float(advantages[t, e]) == expected


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=50), st.floats(0.5, 5.0))
def test_standardised_advantages_are_centred_scaled_and_clipped(
    entries: list[float], clip: float
) -> None:
    spread, expected = np.std(np.array(entries)), np.zeros(len(entries))
    if spread >= 1e-8:
        expected = ((np.array(entries) - np.mean(entries)) / spread).clip(-clip, clip)
    advantages = torch.tensor(entries, dtype=torch.float32)
    np.testing.assert_allclose(standardise(advantages, clip).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-6, 1e30])
def test_standardising_undoes_any_scale(scale: float) -> None:
    advantages = torch.tensor([1.0, -2.0, 4.0, 0.5])
    torch.testing.assert_close(standardise(scale * advantages, 3.0), standardise(advantages, 3.0))


@pytest.mark.parametrize(
    "entries",
    [[1.0, float("nan"), 2.0], [1.0, float("inf")], [0.0], [0.1] * 3, [1e9] * 1000, [1e30] * 3],
)
def test_standardising_what_is_equal_or_not_finite_gives_zero(entries: list[float]) -> None:
    assert torch.equal(standardise(torch.tensor(entries), 3.0), torch.zeros(len(entries)))


def test_replayed_advantages_are_gae_where_the_policy_is_the_one_that_acted() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values, next_values = torch.randn(3, T, E, generator=generator)
    terminated = torch.rand(T, E, generator=generator) < 0.2
    ended = ending(terminated)
    expected = generalised_advantages(rewards, values, next_values, terminated, ended, 0.9, 0.8)
    deltas = rewards + 0.9 * next_values * ~terminated - values
    # As rows of the memory: environment by environment
    rows, follows, once = deltas.T.flatten(), ~ended.T.flatten(), torch.ones(T * E)
    advantages, corrections = replayed_advantages(rows, follows, once, 0.9, 0.8)
    torch.testing.assert_close(advantages, expected.T.flatten())
    torch.testing.assert_close(corrections, advantages)


def test_replay_cuts_the_trace_where_the_policy_would_hardly_have_gone() -> None:
    deltas, follows = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([True, True, False])
    ratios = torch.tensor([0.5, 0.25, 1.0])
    advantages, corrections = replayed_advantages(deltas, follows, ratios, 1.0, gae_lambda=0.5)
    # 4; 2 + 0.5 * (1 * 4); 1 + 0.5 * (0.25 * 4)
    torch.testing.assert_close(advantages, torch.tensor([1.5, 4.0, 4.0]))
    torch.testing.assert_close(corrections, torch.tensor([0.75, 1.0, 4.0]))
    ratios[1] = 0.0
    advantages, _ = replayed_advantages(deltas, follows, ratios, 1.0, gae_lambda=0.5)
    assert advantages.tolist() == [1.0, 4.0, 4.0]
