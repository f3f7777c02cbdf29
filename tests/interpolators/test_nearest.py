"""Nearest neighbours keep the contract and agree with scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsRegressor

from imel.data.experience import Context
from imel.policies.paper.interpolator import Weighted
from imel.policies.paper.nearest import NearestNeighbours, NearestSettings
from imel.testing import ExactContract, ragged_context


class TestNearest(ExactContract):
    def make(self, state_dim: int, value_dim: int) -> NearestNeighbours:
        return NearestNeighbours(state_dim, value_dim, NearestSettings(neighbours=4))


class TestMoreNeighboursThanMemories(ExactContract):
    def make(self, state_dim: int, value_dim: int) -> NearestNeighbours:
        return NearestNeighbours(state_dim, value_dim, NearestSettings(neighbours=1000))


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


def test_there_is_nothing_to_learn() -> None:
    assert not NearestNeighbours(3, 2, NearestSettings()).learns


def test_weights_are_equal_on_the_neighbours_and_zero_elsewhere() -> None:
    context = ragged_context()
    conditioned = NearestNeighbours(3, 2, NearestSettings(neighbours=4)).condition(context)
    assert isinstance(conditioned, Weighted)
    weights = conditioned.weights(context.states)
    assert ((weights == 0.25).sum(dim=1) == 4).all()
    assert ((weights == 0.0).sum(dim=1) == len(context) - 4).all()
    assert (weights.diagonal() == 0.25).all()  # each memory is a neighbour of its own state


def test_few_memories_of_other_episodes_share_the_weight() -> None:
    context = ragged_context(lengths=(10, 2))
    many = context.episodes == context.episodes.mode().values
    with torch.no_grad():
        answer = (
            NearestNeighbours(3, 2, NearestSettings(neighbours=4))
            .leave_one_out(context, context)
            .mean
        )
    others = context.values[~many].mean(dim=0)
    torch.testing.assert_close(answer[many], others.expand(10, 2))


def test_neighbours_are_told_apart_at_the_edge_of_the_normalised_range() -> None:
    states = (9.0 + 0.01 * torch.arange(60.0))[:, None].expand(60, 3)
    values = torch.arange(60.0)[:, None]
    context = Context(states, values, torch.zeros(60, dtype=torch.int64))
    answer = NearestNeighbours(3, 1, NearestSettings(neighbours=1)).condition(context)(states).mean
    assert torch.equal(answer, values)
