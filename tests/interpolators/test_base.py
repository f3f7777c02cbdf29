"""What all interpolators share: loss, network, effective neighbours, fast arithmetic."""

from __future__ import annotations

import math
from contextlib import suppress

import torch

from imel.data.arithmetic import denormals_flushed, mlp
from imel.policies.paper.interpolator import effective_neighbours
from imel.policies.paper.nearest import NearestNeighbours, NearestSettings
from imel.testing import ragged_context


def test_default_loss_is_the_squared_error_of_leave_one_out() -> None:
    model, context = NearestNeighbours(3, 2, NearestSettings(neighbours=3)), ragged_context()
    targets = context.rows(torch.arange(7))
    errors = model.leave_one_out(context, targets).mean - targets.values
    loss = model.loss(context, targets, torch.Generator())
    assert math.isclose(float(loss), sum(float(e) ** 2 for e in errors.flatten()) / 14)


def test_effective_neighbours_count_equal_shares_whatever_their_sum() -> None:
    weights = torch.zeros(5, 10)  # of no weight at all they are finite
    for row, count in enumerate((1, 2, 5, 10)):
        weights[row, :count] = 7.0 / count
    counts = effective_neighbours(weights)
    torch.testing.assert_close(counts[:4], torch.tensor([1.0, 2.0, 5.0, 10.0]))
    assert torch.isfinite(counts).all()


def test_network_has_the_layers_asked_for() -> None:
    shapes = [tuple(weight.shape) for weight in mlp(3, (8, 5), 2).parameters()]
    assert shapes == [(8, 3), (8,), (5, 8), (5,), (2, 5), (2,)]


def test_denormals_are_flushed_within_and_kept_outside() -> None:
    def product() -> float:
        return float(torch.tensor([1e-30]) * torch.tensor([1e-12]))

    assert product() > 0.0
    with suppress(ValueError), denormals_flushed():
        assert product() == 0.0
        raise ValueError("ends it too")
    assert product() > 0.0
