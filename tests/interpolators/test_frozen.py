"""A network as it acts answers as the network it was made from, however many states there are."""

from __future__ import annotations

import pytest
import torch

from imel.interpolators.base import mlp
from imel.interpolators.frozen import FrozenNetwork, frozen_layers


@pytest.mark.parametrize("hidden", [(), (5,), (64, 30)])
@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("beside", [True, False], ids=["linear path", "no linear path"])
def test_outputs_are_those_of_the_network_in_double_precision(
    hidden: tuple[int, ...], count: int, beside: bool
) -> None:
    torch.manual_seed(0)
    network, skip = mlp(7, hidden, 3), torch.randn(7, 3)
    states = 3.0 * torch.randn(count, 7)  # some units saturate
    answer = FrozenNetwork(frozen_layers(network), skip if beside else None)(states)
    expected = network.double()(states.double())
    if beside:
        expected = expected + states.double() @ skip.double()
    torch.testing.assert_close(answer.double(), expected.detach(), rtol=1e-5, atol=1e-5)


def test_what_is_learned_later_does_not_show() -> None:
    network, states = mlp(2, (4,), 1), torch.randn(3, 2)
    acting = FrozenNetwork(frozen_layers(network))
    before = acting(states).clone()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1.0)
    assert torch.equal(acting(states), before)


def test_what_is_not_a_number_is_not_hidden() -> None:
    acting = FrozenNetwork(frozen_layers(mlp(2, (4, 4), 1)))
    assert acting(torch.tensor([[torch.nan, 0.0]])).isnan().all()


def test_states_need_not_be_contiguous() -> None:
    acting, states = FrozenNetwork(frozen_layers(mlp(2, (4,), 1))), torch.randn(6, 4)
    torch.testing.assert_close(acting(states[::2, 1:3]), acting(states[::2, 1:3].clone()))
