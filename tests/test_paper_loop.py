"""Algorithms 1 and 2 line by line: what each does to a batch, and in a run of the paper's."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch

from imel import IMeL
from imel.data.memory import Memory
from imel.distributions.gaussian import StdMode, improved_means, improved_stds, next_std, step_size
from samples import Batch, experiences, log_density, mean_kl
from toy import PointEnv, ScriptedEnv


def one_iteration(env: PointEnv | ScriptedEnv, **settings: Any) -> tuple[Any, Any]:
    """A model before and after its first iteration of 32 steps."""
    told: dict[str, Any] = {"std_mode": "constant", **settings}
    model = IMeL("MkiPolicy", env, seed=3, rollout_size=32, memory_size=64, **told)
    before = copy.deepcopy(model)
    return before, model.learn(32)


def remembered(memory: Memory) -> Batch:
    """The last batch as the improvement saw it."""
    return Batch(*(memory.column(name) for name in Batch._fields))


def test_algorithm_1_line_1_initial_context_leaves_when_experience_is_added() -> None:
    before, after = one_iteration(PointEnv(), prior_size=30, prior_std=0.2)
    memory = before.policy.memory
    assert len(memory) == 30
    assert float(memory.column("states").std()) == pytest.approx(1.0, abs=0.2)
    assert float(memory.column("improved_means").std()) == pytest.approx(0.2, abs=0.05)
    # All 62 rows would have fitted into the 64 there are
    assert len(after.policy.memory) == 32
    assert (after.policy.memory.column("episodes") >= 0).all()


def test_algorithm_1_line_3_trains_the_model_on_the_context() -> None:
    before, after = one_iteration(PointEnv(episode_length=8))
    weights = (each.policy.interpolator.parameters() for each in (before, after))
    assert any(not torch.equal(*pair) for pair in zip(*weights, strict=True))


def test_algorithm_1_line_5_acts_on_the_context_so_far() -> None:
    before, after = one_iteration(PointEnv())
    means, stds = before.policy.act(after.policy.memory.column("states"))
    torch.testing.assert_close(after.policy.memory.column("means"), means)
    torch.testing.assert_close(after.policy.memory.column("stds"), stds)


def test_algorithm_1_line_6_samples_actions_from_the_policy() -> None:
    before, after = one_iteration(PointEnv(), std=0.7)
    batch = remembered(after.policy.memory)
    noise = torch.randn(32, 1, generator=before.learner.generator)
    torch.testing.assert_close(batch.actions, batch.means + 0.7 * noise)


def test_algorithm_1_line_7_observes_the_whole_tuple() -> None:
    _, after = one_iteration(ScriptedEnv(episode_length=5))
    memory = after.policy.memory
    step = torch.tensor([0.0, 1.0])
    assert torch.equal(memory.column("next_states"), memory.column("states") + step)
    assert torch.equal(memory.column("rewards"), memory.column("next_states")[:, 1])
    assert torch.equal(memory.column("steps"), memory.column("states")[:, 1].long())


def test_algorithm_1_line_8_advantages_are_estimated_with_the_critic() -> None:
    before, after = one_iteration(ScriptedEnv(episode_length=5), gamma=0.9, gae_lambda=0.8)
    memory, normaliser = after.policy.memory, after.policy.normaliser
    with torch.no_grad():
        v = before.critic(normaliser(memory.column("states"))).double().numpy()
        v_next = before.critic(normaliser(memory.column("next_states"))).double().numpy()
    r = memory.column("rewards").double().numpy() / float(
        after.learner.return_scale.variance.sqrt()
    )
    A, trace = np.zeros(32), 0.0
    for t in reversed(range(32)):
        goes_on = int(memory.column("steps")[t]) < 4
        trace = r[t] + 0.9 * v_next[t] * goes_on - v[t] + 0.9 * 0.8 * trace * goes_on
        A[t] = trace
    A = ((A - A.mean()) / A.std()).clip(-3.0, 3.0)
    np.testing.assert_allclose(memory.column("advantages").numpy(), A, atol=1e-4)


def test_algorithm_1_lines_9_and_11_step_size_and_improved_means() -> None:
    batch, total = experiences(), 0.0
    star = improved_means(*batch, eta=0.02)
    for t, (A, a, mu, sigma) in enumerate(zip(*batch, strict=True)):
        for d in range(3):
            total += float(A**2 * (a[d] - mu[d]) ** 2 / sigma[d] ** 6)
            expected = mu[d] + 0.02 * A * (a[d] - mu[d]) / sigma[d] ** 2
            assert float(star[t, d]) == pytest.approx(float(expected))
    assert step_size(*batch, 1.5) == pytest.approx(math.sqrt(2 * 20 * 1.5 / total))


def test_algorithm_1_line_12_context_holds_states_with_their_improved_means() -> None:
    _, after = one_iteration(PointEnv(), kl_budget=2.0)
    context, batch = after.policy.context(), remembered(after.policy.memory)
    star = improved_means(*batch, step_size(*batch, 2.0))
    torch.testing.assert_close(context.values, star)
    assert mean_kl(context.values, batch.means, batch.stds) == pytest.approx(2.0, rel=1e-4)
    states = after.policy.memory.column("states")
    torch.testing.assert_close(context.states, (states - states.mean(0)) / states.std(0, False))


def test_algorithm_2_line_12_with_the_advantage_is_the_policy_gradient_of_sigma() -> None:
    batch = experiences()
    sigma = batch.stds.clone().requires_grad_()
    objective = batch.advantages @ log_density(batch.actions, batch.means, sigma).sum(dim=1)
    (gradient,) = torch.autograd.grad(objective, sigma)
    star = improved_stds(*batch, 0.01, "advantage")
    torch.testing.assert_close(star, batch.stds + 0.01 * gradient)


def test_algorithm_2_line_12_to_the_letter_ignores_the_advantage() -> None:
    batch = experiences()
    gradient = ((batch.actions - batch.means) ** 2 - batch.stds**2) / batch.stds**3
    star = improved_stds(*batch, 0.01, "paper")
    torch.testing.assert_close(star, batch.stds + 0.01 * gradient)


def test_algorithm_2_line_13_next_sigma_is_the_mean_of_the_improved_ones() -> None:
    stars = torch.tensor([[0.2, 0.5], [0.4, 0.1], [0.3, 0.6]])
    sigma = next_std(stars, previous=torch.tensor([0.3, 0.3]), min_std=0.02)
    torch.testing.assert_close(sigma, torch.tensor([0.3, 0.4]))


@pytest.mark.parametrize("mode", ["paper", "advantage"])
def test_algorithm_2_line_13_moves_the_sigma_of_the_policy(mode: StdMode) -> None:
    _, after = one_iteration(PointEnv(), std=0.4, std_mode=mode, kl_budget=0.5)
    batch = remembered(after.policy.memory)
    weight = batch.advantages[:, None] if mode == "advantage" else 1.0
    gradient = weight * ((batch.actions - batch.means).square() - 0.4**2) / 0.4**3
    sigma = 0.4 + step_size(*batch, 0.5) * float(gradient.mean())
    assert 0.02 < sigma < 0.8  # neither bound may decide this test
    assert float(after.policy.std) == pytest.approx(sigma, rel=1e-4)
