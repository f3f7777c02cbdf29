"""The regressor keeps the contract without ever looking at its context."""

from __future__ import annotations

import torch

from imel.policies.paper.interpolator import Weighted
from imel.policies.paper.regressor import Regressor, RegressorSettings
from imel.testing import LearnerContract, ragged_context


class TestRegressor(LearnerContract):
    def make(self, state_dim: int, value_dim: int) -> Regressor:
        return Regressor(state_dim, value_dim, RegressorSettings(hidden=(16,)))


def test_context_is_ignored() -> None:
    model = Regressor(3, 2, RegressorSettings(hidden=(8,))).double()
    one, other = ragged_context(seed=0), ragged_context(seed=1)
    expected = model.condition(one)(one.states).mean
    assert torch.equal(model.condition(other)(one.states).mean, expected)
    with torch.no_grad():
        assert torch.equal(model.leave_one_out(other, one).mean, expected)


def test_memories_have_no_weights_and_it_says_so_by_its_type() -> None:
    model = Regressor(3, 2, RegressorSettings()).double()
    assert not isinstance(model.condition(ragged_context()), Weighted)


def test_loss_is_the_mean_squared_error_of_the_network() -> None:
    model, context = Regressor(3, 2, RegressorSettings(hidden=(8,))).double(), ragged_context()
    loss = model.loss(context, context, torch.Generator())
    expected = (model.network(context.states) - context.values).square().mean()
    torch.testing.assert_close(loss, expected)
