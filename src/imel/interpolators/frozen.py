"""A fitted network as it acts: a copy of its weights, called without the overhead of modules."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class FrozenNetwork:
    """A tanh network, with a linear path beside it if `skip` is given.

    :param layers: weights [inputs, outputs] and biases of the layers, the last one linear
    :param skip: weights [inputs of the first, outputs of the last]
    """

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]], skip: Tensor | None = None) -> None:
        self._hidden, (self._last, self._bias) = layers[:-1], layers[-1]
        self._skip = skip

    def __call__(self, states: Tensor) -> Tensor:
        """Evaluate the network at normalised states."""  # [T, d_s] -> [T, outputs]
        hidden = states
        for weight, bias in self._hidden:
            hidden = torch.addmm(bias, hidden, weight).tanh_()
        outputs = torch.addmm(self._bias, hidden, self._last)
        return outputs if self._skip is None else outputs.addmm_(states, self._skip)


def frozen_layers(network: nn.Sequential) -> list[tuple[Tensor, Tensor]]:
    """Copy a network's weights and biases, as `FrozenNetwork` takes them."""
    return [
        (layer.weight.detach().T.clone(), layer.bias.detach().clone())
        for layer in network
        if isinstance(layer, nn.Linear)
    ]
