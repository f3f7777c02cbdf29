"""Running moments agree with the moments of everything seen at once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from imel.data.normaliser import Normaliser, ReturnScale, RunningMoments
from toy import ScriptedEnv


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(0, 2**31))
def test_moments_of_batches_are_those_of_all_rows(sizes: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    batches = [1e3 + 5.0 * torch.randn(size, 3, generator=generator) for size in sizes]
    moments = RunningMoments(3)
    for batch in batches:
        moments.update(batch)
    rows = torch.cat(batches).double()
    torch.testing.assert_close(moments.mean, rows.mean(dim=0))
    torch.testing.assert_close(moments.variance, rows.var(dim=0, unbiased=False))
    assert float(moments.count) == len(rows)


def test_normalised_states_have_unit_moments_are_clipped_and_can_be_brought_back() -> None:
    states = torch.tensor([3.0, -40.0]) + torch.tensor([0.1, 20.0]) * torch.randn(200, 2)
    raw, normaliser = states.clone(), Normaliser(2, clip=5.0)
    torch.testing.assert_close(Normaliser(2, 99.0)(states), states)  # before the first refresh
    normaliser.update(states)
    normaliser.refresh()
    normalised = normaliser(states)
    assert torch.equal(states, raw)
    torch.testing.assert_close(normalised.mean(dim=0), torch.zeros(2), rtol=0.0, atol=1e-4)
    torch.testing.assert_close(normalised.std(dim=0, unbiased=False), torch.ones(2))
    torch.testing.assert_close(normaliser.inverse(normalised), states, rtol=1e-4, atol=1e-4)
    assert normaliser(torch.tensor([[1e9, -1e9]])).tolist() == [[5.0, -5.0]]
    constant = Normaliser(1)
    constant.update(torch.full((50, 1), 7.0))
    constant.refresh()
    assert constant(torch.full((1, 1), 7.0)).tolist() == [[0.0]]


def test_normaliser_keeps_the_moments_of_its_last_refresh_in_files_too() -> None:
    normaliser, restored, states = Normaliser(2), Normaliser(2), 5.0 + torch.randn(20, 2)
    normaliser.update(states)
    normaliser.refresh()
    before = normaliser(states)
    normaliser.update(100.0 * states)
    restored.load_state_dict(normaliser.state_dict())
    for each in (normaliser, restored):
        assert torch.equal(each(states), before)
        each.refresh()
        assert not torch.equal(each(states), before)
    assert torch.equal(restored(states), normaliser(states))


def test_return_scale_is_that_of_vec_normalize() -> None:
    env = VecNormalize(
        DummyVecEnv([lambda: ScriptedEnv(5), lambda: ScriptedEnv(3)]), norm_obs=False, gamma=0.9
    )
    env.reset()
    steps = [env.step(torch.zeros(2, 1).numpy()) for _ in range(12)]
    # VecNormalize starts from a variance of 1 with a count of epsilon, hence the tolerance
    scale = ReturnScale(gamma=0.9)
    rewards = torch.tensor([[1.0 + t % 5, 1.0 + t % 3] for t in range(12)])
    dones = torch.stack([torch.as_tensor(step[2]) for step in steps])
    scale.update_from(rewards[:7], dones[:7])
    scale.update_from(rewards[7:], dones[7:])
    assert float(scale.variance) == pytest.approx(float(env.ret_rms.var), rel=1e-3)
    assert float(scale.mean) == pytest.approx(float(env.ret_rms.mean), rel=1e-3)
    deviation = float(scale.variance.sqrt())
    torch.testing.assert_close(scale.scale(rewards), rewards / deviation)


def test_restart_forgets_the_running_returns_but_not_the_scale() -> None:
    running = torch.zeros(1, 1, dtype=torch.bool)
    restarted, going_on = ReturnScale(gamma=1.0), ReturnScale(gamma=1.0)
    for scale in (restarted, going_on):
        scale.update_from(torch.tensor([[4.0]]), running)
    restarted.restart()
    for scale in (restarted, going_on):
        scale.update_from(torch.tensor([[1.0]]), running)
    assert float(restarted.mean) == pytest.approx((4.0 + 1.0) / 2)
    assert float(going_on.mean) == pytest.approx((4.0 + 5.0) / 2)


def test_rewards_are_unchanged_while_returns_do_not_vary() -> None:
    scale = ReturnScale(gamma=0.9)
    rewards = torch.zeros(4, 2)
    scale.update_from(rewards, torch.zeros(4, 2, dtype=torch.bool))
    assert torch.equal(scale.scale(rewards + 5.0), rewards + 5.0)
