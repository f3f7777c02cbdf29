"""The paper's equations, its advantage estimate and its training: one test for each.

Every answer is computed a second time here, by loops, autograd or torch's distributions. The
lines of Algorithms 1 and 2 have theirs in test_paper_loop.py.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from imel.data.advantage import Estimator, estimate_advantages
from imel.data.experience import Context
from imel.distributions.gaussian import improved_means, step_size
from imel.policies.paper.fit import fit_leave_one_out
from imel.policies.paper.mki import MeanKernelInterpolation, MkiSettings
from imel.policies.paper.neural_process import NeuralProcess, NpSettings
from imel.policies.paper.paper_policy import FitSettings
from imel.testing import ragged_context
from samples import experiences, log_density


def small_mki(options: MkiSettings | None = None) -> MeanKernelInterpolation:
    options = options or MkiSettings(features=2, hidden=(8,))
    return MeanKernelInterpolation(3, 2, options).double()


def small_np() -> NeuralProcess:
    return NeuralProcess(3, 2, NpSettings(hidden=(8,), latent=4)).double()


def episodes_of(context: Context) -> list[int]:
    return sorted(set(context.episodes.tolist()))


# --- The IMeL algorithm: gradient, KL, step size ---


def test_policy_gradient_of_the_mean() -> None:
    batch = experiences()
    mu = batch.means.clone().requires_grad_()
    objective = batch.advantages @ log_density(batch.actions, mu, batch.stds).sum(dim=1)
    (gradient,) = torch.autograd.grad(objective, mu)
    step = improved_means(*batch, eta=0.01) - batch.means
    torch.testing.assert_close(step, 0.01 * gradient)


def test_step_size_is_where_the_mean_kl_meets_the_budget() -> None:
    batch = experiences()

    def excess(eta: float) -> float:
        star = Normal(improved_means(*batch, eta), batch.stds)
        return float(kl_divergence(star, Normal(batch.means, batch.stds)).sum(1).mean()) - 0.7

    assert step_size(*batch, 0.7) == pytest.approx(brentq(excess, 0.0, 100.0, xtol=1e-12))


# --- Mean Kernel Interpolation ---


@pytest.mark.parametrize("normalised", [True, False], ids=["average", "plain sum of the paper"])
def test_mean_kernel_interpolation(normalised: bool) -> None:
    options = MkiSettings(features=2, hidden=(8,), normalised=normalised)
    context, model = ragged_context(), small_mki(options)
    with torch.no_grad():
        model.L.copy_(torch.tensor([[0.9, 0.3], [-0.2, 0.6]]))
        z = model.network(context.states) + model.skip(context.states)
        W = model.L @ model.L.T
    expected = torch.zeros(len(context), 2, dtype=torch.float64)
    for n in range(len(context)):
        kernel = [math.exp(-float((z[n] - z_i) @ W @ (z[n] - z_i))) for z_i in z]
        for k, y in zip(kernel, context.values, strict=True):
            expected[n] += y * k / (sum(kernel) if normalised else 1.0)
    torch.testing.assert_close(model.condition(context)(context.states).mean, expected)


# --- Neural Processes ---


def test_neural_process_encodes_the_context_and_decodes_at_a_state() -> None:
    context, model = ragged_context(), small_np()
    with torch.no_grad():
        rows = [
            model.encoder(torch.cat([s, y]))
            for s, y in zip(context.states, context.values, strict=True)
        ]
        mu_z = model.to_latent(torch.stack(rows).mean(dim=0))[:4]
        mean, raw = model.decoder(torch.cat([context.states[2], mu_z])).split(2)
    answer = model.condition(context)(context.states[2:3])
    torch.testing.assert_close(answer.mean[0], mean)
    assert answer.std is not None
    torch.testing.assert_close(answer.std[0], 0.05 + torch.log1p(raw.exp()))


def elbo_of_one_episode(
    model: NeuralProcess, context: Context, episode: int, noise: Tensor
) -> Tensor:
    """The equation to the letter: targets m+1..n are one episode, the context 1..m all others."""
    rest = context.rows(context.episodes != episode)
    targets = context.rows(context.episodes == episode)

    def q(of: Context) -> Normal:
        encoded = model.encoder(torch.cat([of.states, of.values], dim=1)).mean(dim=0)
        mean, raw = model.to_latent(encoded).split(4)
        return Normal(mean, 0.1 + 0.9 * torch.sigmoid(raw))

    z = (q(context).loc + q(context).scale * noise).expand(len(targets), 4)
    mean, raw = model.decoder(torch.cat([targets.states, z], dim=1)).split(2, dim=1)
    std = 0.05 + torch.log1p(raw.exp())
    divergence: Tensor = kl_divergence(q(context), q(rest)).sum()
    return divergence - log_density(targets.values, mean, std).sum()


def test_elbo_of_left_out_episodes_is_their_sum() -> None:
    context, model = ragged_context(), small_np()
    every = episodes_of(context)
    for some in (*([episode] for episode in every), every):
        targets = context.rows(torch.isin(context.episodes, torch.tensor(some)))
        noise = torch.randn(len(some), 4, generator=torch.Generator().manual_seed(5))
        with torch.no_grad():
            loss = model.loss(context, targets, torch.Generator().manual_seed(5))
            drawn = zip(some, noise, strict=True)
            elbos = [elbo_of_one_episode(model, context, *each) for each in drawn]
        torch.testing.assert_close(len(targets) * loss, torch.stack(elbos).sum())


# --- Algorithm 3 ---

REWARDS = torch.tensor([[1.0], [-2.0], [3.0], [5.0], [0.5]])
VALUES = torch.tensor([[0.3], [0.1], [-0.4], [0.7], [0.9]])
NEXT_VALUES = torch.tensor([[0.1], [-0.4], [11.0], [0.9], [13.0]])
ENDS = torch.tensor([[False], [False], [True], [False], [True]])


def estimate(estimator: Estimator) -> Tensor:
    """Two episodes, of three and two steps, both of which terminate."""
    columns = (REWARDS, VALUES, NEXT_VALUES, ENDS, ENDS)
    return estimate_advantages(*columns, 0.9, 0.8, estimator)[0][:, 0]


def test_algorithm_3_without_gae_is_return_less_value() -> None:
    q = [1 + 0.9 * -2 + 0.81 * 3, -2 + 0.9 * 3, 3, 5 + 0.9 * 0.5, 0.5]
    torch.testing.assert_close(estimate("monte-carlo"), torch.tensor(q) - VALUES[:, 0])


def test_algorithm_3_with_gae_sums_the_discounted_errors_of_the_critic() -> None:
    d = [1 + 0.9 * 0.1 - 0.3, -2 + 0.9 * -0.4 - 0.1, 3 + 0.4, 5 + 0.9 * 0.9 - 0.7, 0.5 - 0.9]
    k = 0.9 * 0.8
    A = [d[0] + k * d[1] + k**2 * d[2], d[1] + k * d[2], d[2], d[3] + k * d[4], d[4]]
    torch.testing.assert_close(estimate("gae"), torch.tensor(A))


def test_algorithm_3_to_the_letter_hands_gae_the_return() -> None:
    expected = torch.zeros(5)
    for start, stop in [(0, 3), (3, 5)]:
        for t in range(start, stop):
            for k in range(t, stop):
                # r_{k+i} is the reward of the i-th step from k on, counted from one
                q = sum(0.9**i * float(REWARDS[k + i - 1]) for i in range(1, stop - k + 1))
                beyond = 0.0 if k == stop - 1 else 0.9 * float(NEXT_VALUES[k])
                expected[t] += (0.9 * 0.8) ** (k - t) * (q + beyond - float(VALUES[k]))
    torch.testing.assert_close(estimate("paper"), expected)


# --- Algorithm 4 ---


def test_algorithm_4_steps_down_the_gradient_once_for_each_episode_and_epoch() -> None:
    context, model, alpha = ragged_context(), small_mki(), 0.05
    twin = copy.deepcopy(model)
    settings = FitSettings(leave_out="each-episode", gradient_steps=2, max_grad_norm=1e9)
    optimizer = torch.optim.SGD(model.parameters(), lr=alpha)
    fit_leave_one_out(model, optimizer, context, settings, torch.Generator())
    for episode in 2 * episodes_of(context):
        targets = context.rows(context.episodes == episode)
        rest = context.rows(context.episodes != episode)
        apart = twin.embed(targets.states)[:, None] - twin.embed(rest.states)[None]
        weights = torch.softmax(-apart.square().sum(dim=2), dim=1)
        loss = (weights @ rest.values - targets.values).square().mean()
        gradients = torch.autograd.grad(loss, list(twin.parameters()))
        for w, gradient in zip(twin.parameters(), gradients, strict=True):
            w.data -= alpha * gradient
    for w, expected in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(w, expected)
