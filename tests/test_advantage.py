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
    discounted_returns,
    estimate_advantages,
    generalised_advantages,
    replayed_advantages,
    standardise,
)

T, E = 12, 3


def random_columns(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards, values and values of successors, all unrelated."""
    generator = torch.Generator().manual_seed(seed)
    rewards, values, next_values = torch.randn(3, T, E, generator=generator)
    return rewards, values, next_values


def column(*entries: float) -> Tensor:
    """One environment's column over time."""
    return torch.tensor(entries)[:, None]


def flags(*entries: int) -> Tensor:
    return torch.tensor(entries, dtype=torch.bool)[:, None]


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(0.99, 0.95), (0.9, 0.0), (1.0, 1.0)])
def test_gae_agrees_with_the_rollout_buffer_of_stable_baselines(
    gamma: float, gae_lambda: float
) -> None:
    rewards, values, _ = random_columns(0)
    generator = torch.Generator().manual_seed(1)
    terminated = torch.rand(T, E, generator=generator) < 0.2
    last_values = torch.randn(E, generator=generator)
    box = spaces.Box(-1.0, 1.0, (1,))
    buffer = RolloutBuffer(T, box, box, "cpu", gae_lambda, gamma, n_envs=E)
    begins = np.ones(E)
    blank = np.zeros((E, 1), np.float32)
    for t in range(T):
        buffer.add(blank, blank, rewards[t].numpy(), begins, values[t], torch.zeros(E))
        begins = terminated[t].numpy()
    buffer.compute_returns_and_advantage(last_values, begins)

    ended = terminated.clone()
    ended[-1] = True
    next_values = torch.cat([values[1:], last_values[None]])
    advantages, returns = estimate_advantages(
        rewards, values, next_values, terminated, ended, gamma, gae_lambda, "gae"
    )
    np.testing.assert_allclose(advantages.numpy(), buffer.advantages, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(returns.numpy(), buffer.returns, rtol=1e-4, atol=1e-5)


def test_gae_has_the_answer_found_by_hand() -> None:
    advantages = generalised_advantages(
        rewards=column(1.0, 2.0, 3.0),
        values=column(0.5, 0.25, 0.125),
        next_values=column(0.25, 0.125, 8.0),
        terminated=flags(0, 0, 1),
        ended=flags(0, 0, 1),
        gamma=0.5,
        gae_lambda=0.5,
    )
    last = 3.0 - 0.125
    middle = (2.0 + 0.5 * 0.125 - 0.25) + 0.25 * last
    first = (1.0 + 0.5 * 0.25 - 0.5) + 0.25 * middle
    torch.testing.assert_close(advantages, column(first, middle, last))


@pytest.mark.parametrize("estimator", ["gae", "monte-carlo"])
def test_constant_reward_is_worth_the_geometric_sum(estimator: Estimator) -> None:
    gamma, n = 0.9, 40
    worth = column(*((1 - gamma ** (n - t)) / (1 - gamma) for t in range(n)))
    zeros, terminated = torch.zeros(n, 1), torch.zeros(n, 1, dtype=torch.bool)
    terminated[-1] = True
    advantages, returns = estimate_advantages(
        torch.ones(n, 1), zeros, zeros, terminated, terminated, gamma, 1.0, estimator
    )
    torch.testing.assert_close(returns, worth)
    torch.testing.assert_close(advantages, worth)


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
    beyond = 0.0 if terminates else 100.0
    second = 1.0 + 0.5 * beyond
    torch.testing.assert_close(returns, column(1.0 + 0.5 * second, second, 6.0, 4.0))


def test_the_literal_estimate_bootstraps_with_what_its_critic_learns() -> None:
    # The critic learns q_t = gamma (r_t + q_{t+1}); a cut must not change a consistent answer
    gamma, rewards, ended = 0.8, column(1.0, 2.0, 4.0), flags(0, 0, 1)
    q = [0.0] * 4
    for t in reversed(range(3)):
        q[t] = gamma * (float(rewards[t]) + q[t + 1])
    for stop in (1, 2, 3):
        next_values, cut = column(*q[1 : stop + 1]), ended.clone()[:stop]
        cut[-1] = True
        _, returns = estimate_advantages(
            rewards[:stop],
            column(*q[:stop]),
            next_values,
            ended[:stop],
            cut,
            gamma,
            gae_lambda=0.9,
            estimator="paper",
        )
        torch.testing.assert_close(returns, column(*q[:stop]))


def test_edge_of_the_batch_bootstraps_each_environment_with_its_own_successor() -> None:
    running = torch.zeros(1, 2, dtype=torch.bool)
    returns = discounted_returns(
        torch.tensor([[1.0, 2.0]]), torch.tensor([[10.0, 20.0]]), running, ~running, gamma=0.5
    )
    assert returns.tolist() == [[6.0, 12.0]]


def test_monte_carlo_is_the_return_less_the_value() -> None:
    rewards, values, next_values = random_columns(2)
    terminated = torch.zeros(T, E, dtype=torch.bool)
    terminated[4, 0] = terminated[7, 2] = True
    ended = terminated.clone()
    ended[9, 1] = ended[-1] = True
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
            assert float(advantages[t, e]) == pytest.approx(
                q - float(values[t, e]), rel=1e-4, abs=1e-5
            )


def test_lambda_one_is_monte_carlo_where_values_are_consistent() -> None:
    rewards, values, _ = random_columns(3)
    terminated = torch.zeros(T, E, dtype=torch.bool)
    terminated[5] = True
    ended = terminated.clone()
    ended[-1] = True
    next_values = torch.cat([values[1:], torch.ones(1, E)])
    by_gae, by_sum = (
        estimate_advantages(
            rewards,
            values,
            next_values,
            terminated,
            ended,
            gamma=0.99,
            gae_lambda=1.0,
            estimator=estimator,
        )[0]
        for estimator in ("gae", "monte-carlo")
    )
    torch.testing.assert_close(by_gae, by_sum, rtol=1e-4, atol=1e-5)


advantage_lists = st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=50)


@given(advantage_lists, st.floats(0.5, 5.0))
def test_standardised_advantages_are_centred_scaled_and_clipped(
    entries: list[float], clip: float
) -> None:
    advantages = torch.tensor(entries, dtype=torch.float32)
    spread = np.std(np.array(entries))
    standardised = standardise(advantages, clip)
    if spread < 1e-8:
        assert torch.equal(standardised, torch.zeros_like(advantages))
        return
    expected = (np.array(entries) - np.mean(entries)) / spread
    np.testing.assert_allclose(standardised.numpy(), expected.clip(-clip, clip), atol=1e-5)


@pytest.mark.parametrize("scale", [1e-6, 1e30])
def test_standardising_undoes_any_scale(scale: float) -> None:
    advantages = torch.tensor([1.0, -2.0, 4.0, 0.5])
    torch.testing.assert_close(standardise(scale * advantages, 3.0), standardise(advantages, 3.0))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_standardising_what_is_not_finite_gives_zero(value: float) -> None:
    assert torch.equal(standardise(torch.tensor([1.0, value, 2.0]), 3.0), torch.zeros(3))


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3, 1e9, 1e30])
@pytest.mark.parametrize("count", [1, 3, 1000])
def test_standardising_equal_advantages_gives_zero(value: float, count: int) -> None:
    assert torch.equal(standardise(torch.full((count,), value), 3.0), torch.zeros(count))


def in_rows(column: Tensor) -> Tensor:
    """[T, E] as rows of the memory: environment by environment."""
    return column.T.reshape(-1)


def test_replayed_advantages_are_gae_where_the_policy_is_the_one_that_acted() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values, next_values = (torch.randn(6, 3, generator=generator) for _ in range(3))
    terminated = torch.rand(6, 3, generator=generator) < 0.2
    ended = terminated.clone()
    ended[-1] = True
    expected = generalised_advantages(rewards, values, next_values, terminated, ended, 0.9, 0.8)
    deltas = rewards + 0.9 * next_values * ~terminated - values
    advantages, corrections = replayed_advantages(
        in_rows(deltas), ~in_rows(ended), torch.ones(18), 0.9, 0.8
    )
    torch.testing.assert_close(advantages, in_rows(expected))
    torch.testing.assert_close(corrections, advantages)


def test_replayed_advantages_have_the_answer_found_by_hand() -> None:
    deltas, follows = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([True, True, False])
    advantages, corrections = replayed_advantages(
        deltas, follows, torch.tensor([0.5, 0.25, 1.0]), gamma=1.0, gae_lambda=0.5
    )
    # 4; 2 + 0.5 * (1 * 4); 1 + 0.5 * (0.25 * 4)
    torch.testing.assert_close(advantages, torch.tensor([1.5, 4.0, 4.0]))
    torch.testing.assert_close(corrections, torch.tensor([0.75, 1.0, 4.0]))


def test_replay_does_not_see_beyond_an_action_the_policy_would_not_take() -> None:
    follows = torch.tensor([True, True, False])
    ratios = torch.tensor([1.0, 0.0, 1.0])
    one, _ = replayed_advantages(torch.tensor([1.0, 2.0, 4.0]), follows, ratios, 0.9, 0.9)
    other, _ = replayed_advantages(torch.tensor([1.0, 2.0, -9.0]), follows, ratios, 0.9, 0.9)
    assert one[0] == other[0] == 1.0
    assert one[1] != other[1]
