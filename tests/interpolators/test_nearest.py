"""Nearest neighbours agree with scikit-learn's; a network in their place ignores the context."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsRegressor

from imel.data.experience import Context
from imel.policies.paper.interpolator import Weighted
from imel.policies.paper.nearest import NearestNeighbours, NearestSettings
from imel.policies.paper.regressor import Regressor, RegressorSettings
from imel.testing import ExactContract, LearnerContract, ragged_context


class TestNearest(ExactContract):
    def make(self, state_dim: int, value_dim: int) -> NearestNeighbours:
        return NearestNeighbours(state_dim, value_dim, NearestSettings(neighbours=4))


class TestMoreNeighboursThanMemories(ExactContract):
    def make(self, state_dim: int, value_dim: int) -> NearestNeighbours:
        return NearestNeighbours(state_dim, value_dim, NearestSettings(neighbours=1000))


class TestRegressor(LearnerContract):
    def make(self, state_dim: int, value_dim: int) -> Regressor:
        return Regressor(state_dim, value_dim, RegressorSettings(hidden=(16,)))


@pytest.mark.parametrize("neighbours", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_answer_is_that_of_scikit_learn(neighbours: int, dtype: torch.dtype) -> None:
    context = ragged_context(lengths=(60, 90, 50), dtype=dtype)
    queries = torch.randn(100, 3, dtype=dtype)
    reference = KNeighborsRegressor(neighbours, algorithm="brute")
    reference.fit(context.states.numpy(), context.values.numpy())
    model = NearestNeighbours(3, 2, NearestSettings(neighbours=neighbours))
    answer = model.condition(context)(queries).mean.numpy()
    np.testing.assert_allclose(answer, reference.predict(queries.numpy()), rtol=1e-5, atol=1e-6)
    assert not model.learns


def test_few_memories_of_other_episodes_share_the_weight() -> None:
    context, model = ragged_context((10, 2)), NearestNeighbours(3, 2, NearestSettings(neighbours=4))
    many = context.episodes == context.episodes.mode().values
    answer = model.leave_one_out(context, context).mean
    others = context.values[~many].mean(dim=0)
    torch.testing.assert_close(answer[many], others.expand(10, 2))


def test_neighbours_are_told_apart_at_the_edge_of_the_normalised_range() -> None:
    states = (9.0 + 0.01 * torch.arange(60.0))[:, None].expand(60, 3)
    values = torch.arange(60.0)[:, None]
    context = Context(states, values, torch.zeros(60, dtype=torch.int64))
    answer = NearestNeighbours(3, 1, NearestSettings(neighbours=1)).condition(context)(states).mean
    assert torch.equal(answer, values)


def test_regressor_ignores_its_context_and_says_so_by_its_type() -> None:
    model = Regressor(3, 2, RegressorSettings(hidden=(8,))).double()
    one, other = ragged_context(seed=0), ragged_context(seed=1)
    assert not isinstance(model.condition(one), Weighted)
    expected = model.network(one.states)
    torch.testing.assert_close(model.condition(other)(one.states).mean, expected)
    torch.testing.assert_close(model.leave_one_out(other, one).mean, expected)
    loss = model.loss(other, one, torch.Generator())
    torch.testing.assert_close(loss, (expected - one.values).square().mean())
