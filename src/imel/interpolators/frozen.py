"""A fitted network as it acts: weights that no longer change, a handful of states at a time.

With so few states a matrix library is no help: it costs more to call than it computes, and its
widest instructions slow the processor down for the simulator that runs next. So where Numba is
installed a few states go through plain compiled loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from imel.kernels import compiled_module, on_cpu

FEW = 32
"""States up to which compiled loops are the faster ones."""


class FrozenNetwork:
    """A tanh network, with a linear path beside it if `skip` is given.

    :param layers: weights [inputs, outputs] and biases of the layers, the last one linear
    :param skip: weights [inputs of the first, outputs of the last]
    """

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]], skip: Tensor | None = None) -> None:
        self._hidden, (self._last, self._bias) = list(layers[:-1]), layers[-1]
        self._skip = skip
        self._arrays: tuple[Any, ...] | None = None
        if on_cpu(self._last) and compiled_module() is not None:
            beside = torch.zeros(layers[0][0].shape[0], self._last.shape[1])
            self._arrays = (
                tuple(weight.contiguous().numpy() for weight, _ in layers),
                tuple(bias.contiguous().numpy() for _, bias in layers),
                (beside if skip is None else skip).contiguous().numpy(),
            )

    def __call__(self, states: Tensor) -> Tensor:
        """Outputs at normalised states."""  # [T, d_s] -> [T, outputs]
        if self._arrays is not None and len(states) <= FEW:
            loops = compiled_module()
            assert loops is not None
            answer: Tensor = loops.network(states.contiguous(), *self._arrays)
            return answer
        hidden = states
        for weight, bias in self._hidden:
            hidden = torch.addmm(bias, hidden, weight).tanh_()
        outputs = torch.addmm(self._bias, hidden, self._last)
        return outputs if self._skip is None else outputs.addmm_(states, self._skip)


def frozen_layers(network: nn.Sequential) -> list[tuple[Tensor, Tensor]]:
    """Copies of a network's weights and biases, as `FrozenNetwork` takes them."""
    return [
        (layer.weight.detach().T.clone(), layer.bias.detach().clone())
        for layer in network
        if isinstance(layer, nn.Linear)
    ]
