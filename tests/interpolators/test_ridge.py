"""Ridge regression on a fixed basis: what it fits, how far it shrinks, and each memory's share."""

from __future__ import annotations

import pytest
import torch
from contract import ExactContract
from sklearn.linear_model import Ridge as SklearnRidge
from torch import Tensor

from imel.experience import Context
from imel.interpolators.base import Interpolator
from imel.interpolators.ridge import (
    PENALTIES,
    Basis,
    Design,
    Ridge,
    RidgeOptions,
    RidgeRegression,
    gram,
)
from samples import ragged_context

GENERATOR = torch.Generator().manual_seed(0)


def plane(states: Tensor) -> Tensor:
    return torch.stack([1.0 + states[:, 0] - 2.0 * states[:, 1], 0.5 * states[:, 2]], dim=1)


def noisy_context(noise: float, count: int = 400) -> Context:
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(count, 3, generator=generator)
    values = plane(states) + noise * torch.randn(count, 2, generator=generator)
    return Context(states, values, torch.arange(count))


@pytest.mark.parametrize(("count", "width"), [(7, 1), (50, 191), (50, 193), (30, 400), (0, 200)])
def test_a_gram_matrix_from_blocks_is_the_whole_product(count: int, width: int) -> None:
    rows = torch.randn(count, width, generator=GENERATOR, dtype=torch.double)
    product = gram(rows)
    torch.testing.assert_close(product, rows.T @ rows)
    assert torch.equal(product, product.T)


def regressed(basis: Basis, context: Context, penalty: float | None = None) -> Ridge:
    return Ridge(Design(basis, context.states), context.values, penalty)


def test_a_plane_without_noise_is_found() -> None:
    ridge = regressed(Basis(3, 8), noisy_context(0.0))
    states = torch.randn(50, 3, generator=GENERATOR).clamp(-3.0, 3.0)
    # The least penalty there is shrinks by about a ten-thousandth of the mean eigenvalue
    reach = float(plane(states).abs().max())
    torch.testing.assert_close(ridge(states).mean, plane(states), atol=1e-3 * reach, rtol=0.0)


def test_it_is_ridge_regression_with_the_penalty_it_chose() -> None:
    basis, context = Basis(3, 8), noisy_context(1.0)
    ridge = regressed(basis, context)
    oracle = SklearnRidge(alpha=ridge.penalty).fit(basis(context.states), context.values)
    states = torch.randn(50, 3, generator=GENERATOR)
    expected = torch.as_tensor(oracle.predict(basis(states)), dtype=torch.float32)
    torch.testing.assert_close(ridge(states).mean, expected, atol=1e-4, rtol=0.0)


def test_noise_is_shrunk_and_signal_is_not() -> None:
    basis = Basis(3, 8)
    noisy, clean = regressed(basis, noisy_context(30.0)), regressed(basis, noisy_context(0.1))
    assert noisy.penalty > 10.0 * clean.penalty


def test_pure_noise_leaves_little_of_a_step() -> None:
    context = noisy_context(0.0)
    noise = torch.randn(400, 2, generator=GENERATOR)
    fitted = regressed(Basis(3, 64), Context(context.states, noise, context.episodes))
    assert float(fitted(context.states).mean.square().mean()) < 0.05


def test_the_weights_are_the_computation() -> None:
    context = noisy_context(1.0)
    ridge = regressed(Basis(3, 8), context)
    states = torch.randn(20, 3, generator=GENERATOR)
    weights = ridge.weights(states)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(20), atol=1e-4, rtol=0.0)
    torch.testing.assert_close(weights @ context.values, ridge(states).mean, atol=1e-4, rtol=0.0)
    torch.testing.assert_close(
        ridge.contributions(states).sum(dim=1), ridge(states).mean, atol=1e-4, rtol=0.0
    )


def test_with_hardly_any_penalty_shares_still_sum_to_one() -> None:
    # Many more functions than the memories determine: coefficients are large, and so is rounding
    context = noisy_context(1.0, count=300)
    ridge = regressed(Basis(3, 256), context, 1e-4)
    states = 3.0 * torch.randn(20, 3, generator=GENERATOR)
    weights = ridge.weights(states)
    assert float(weights.abs().sum(dim=1).max()) > 5.0
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(20), atol=1e-5, rtol=0.0)
    torch.testing.assert_close(weights @ context.values, ridge(states).mean, atol=1e-4, rtol=0.0)


def test_far_states_are_answered_as_the_border_of_experience_is() -> None:
    ridge = regressed(Basis(3, 8), noisy_context(0.0))
    border, beyond = torch.full((1, 3), 5.0), torch.full((1, 3), 500.0)
    assert torch.equal(ridge(border).mean, ridge(beyond).mean)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_few_memories_are_enough(count: int) -> None:
    context = noisy_context(1.0, count)
    assert torch.isfinite(regressed(Basis(3, 64), context)(torch.zeros(1, 3)).mean).all()


def test_equal_values_are_reproduced_everywhere() -> None:
    context = noisy_context(0.0)
    same = Context(context.states, torch.full((400, 2), 0.25), context.episodes)
    answer = regressed(Basis(3, 8), same)(torch.randn(10, 3, generator=GENERATOR)).mean
    torch.testing.assert_close(answer, torch.full((10, 2), 0.25))


def test_the_penalty_is_one_of_the_candidates() -> None:
    basis, context = Basis(3, 8), noisy_context(1.0)
    features = basis(context.states).double()
    features = features - features.mean(dim=0)
    unit = float(features.square().sum() / features.shape[1])
    ratio = regressed(basis, context).penalty / unit
    assert min(abs(ratio / candidate - 1.0) for candidate in PENALTIES) < 1e-4


def test_a_given_penalty_is_in_units_of_the_mean_eigenvalue() -> None:
    basis, context = Basis(3, 8), noisy_context(1.0)
    features = basis(context.states).double()
    features = features - features.mean(dim=0)
    unit = float(features.square().sum() / features.shape[1])
    oracle = SklearnRidge(alpha=0.3 * unit).fit(basis(context.states), context.values)
    states = torch.randn(50, 3, generator=GENERATOR)
    expected = torch.as_tensor(oracle.predict(basis(states)), dtype=torch.float32)
    answer = regressed(basis, context, penalty=0.3)(states).mean
    torch.testing.assert_close(answer, expected, atol=1e-4, rtol=0.0)


class TestRidgeRegression(ExactContract):
    """As an interpolator. Its shares may be negative: a regression extrapolates."""

    def make(self, state_dim: int, value_dim: int) -> Interpolator:
        return RidgeRegression(state_dim, value_dim, RidgeOptions(waves=16))

    def test_weights_are_shares_that_sum_to_one(self) -> None:
        weights = self.weighted(ragged_context()).weights(self.queries())
        assert (weights < 0).any()
        torch.testing.assert_close(weights.sum(dim=1), torch.ones(6, dtype=torch.float64))
