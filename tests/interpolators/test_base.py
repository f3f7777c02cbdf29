"""What all interpolators share: the default loss, the network, the effective neighbours."""

from __future__ import annotations

import math

import torch

from imel.data.arithmetic import mlp
from imel.policies.paper.interpolator import effective_neighbours
from imel.policies.paper.nearest import NearestNeighbours, NearestSettings
from imel.testing import ragged_context


def test_default_loss_is_the_squared_error_of_leave_one_out() -> None:
    model, context = NearestNeighbours(3, 2, NearestSettings(neighbours=3)), ragged_context()
    targets = context.rows(torch.arange(7))
    errors = model.leave_one_out(context, targets).mean - targets.values
    loss = model.loss(context, targets, torch.Generator())
    assert math.isclose(float(loss), sum(float(e) ** 2 for e in errors.flatten()) / 14)


def test_effective_neighbours_count_equal_shares() -> None:
    weights = torch.zeros(4, 10)
    for row, count in enumerate((1, 2, 5, 10)):
        weights[row, :count] = 1.0 / count
    torch.testing.assert_close(effective_neighbours(weights), torch.tensor([1.0, 2.0, 5.0, 10.0]))


def test_effective_neighbours_do_not_depend_on_the_sum_of_the_weights() -> None:
    weights = torch.rand(3, 8)
    torch.testing.assert_close(effective_neighbours(7.0 * weights), effective_neighbours(weights))


def test_effective_neighbours_of_no_weight_at_all_are_finite() -> None:
    assert torch.isfinite(effective_neighbours(torch.zeros(1, 5))).all()


def test_network_has_the_layers_asked_for() -> None:
    shapes = [tuple(weight.shape) for weight in mlp(3, (8, 5), 2).parameters()]
    assert shapes == [(8, 3), (8,), (5, 8), (5,), (2, 5), (2,)]
    assert [tuple(weight.shape) for weight in mlp(3, (), 2).parameters()] == [(2, 3), (2,)]
