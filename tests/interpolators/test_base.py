"""What all interpolators share: loss, network, effective neighbours, fast arithmetic."""

from __future__ import annotations

from contextlib import suppress

import torch

from imel.data.arithmetic import denormals_flushed
from imel.policies.paper.interpolator import effective_neighbours


def test_effective_neighbours_count_equal_shares_whatever_their_sum() -> None:
    weights = torch.zeros(5, 10)  # of no weight at all they are finite
    for row, count in enumerate((1, 2, 5, 10)):
        weights[row, :count] = 7.0 / count
    counts = effective_neighbours(weights)
    torch.testing.assert_close(counts[:4], torch.tensor([1.0, 2.0, 5.0, 10.0]))
    assert torch.isfinite(counts).all()


def test_denormals_are_flushed_within_and_kept_outside() -> None:
    def product() -> float:
        return float(torch.tensor([1e-30]) * torch.tensor([1e-12]))

    assert product() > 0.0
    with suppress(ValueError), denormals_flushed():
        assert product() == 0.0
        raise ValueError("ends it too")
    assert product() > 0.0
