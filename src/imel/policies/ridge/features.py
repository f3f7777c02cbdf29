"""Ridge regression on random features of the state: what `RidgePolicy` is made of.

    phi(s) = (1, z, tanh(z W + b)),    z the normalised state, W and b drawn once and never fitted

The policy's mean is phi(s)^T theta. Values y at remembered states are fitted by (Phi^T Phi + lambda
D)^{-1} Phi^T y with D the identity but for the constant feature, which is not shrunk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from imel.data.arithmetic import tanh_
from imel.data.memory import Memory
from imel.data.normaliser import Normaliser
from imel.errors import ImelError

REACH = 5.0
"""Normalised states are clipped here: beyond, a plane would lead the policy anywhere."""


class Features(nn.Module, ABC):
    """phi: the features of a normalised state in which `RidgePolicy` is linear, a constant first.

    A subclass has to define `width` and `forward`; the rest may be overridden by what is faster.
    """

    width: int  # d_phi: the number of features

    @abstractmethod
    def forward(self, states: Tensor) -> Tensor:
        """Return phi at normalised states."""  # [T, d_s] -> [T, d_phi]

    def predict(self, states: Tensor, coefficients: Tensor) -> Tensor:
        """Return phi(z)^T theta at normalised states."""  # [T, d_s], [d_phi, d_a] -> [T, d_a]
        features: Tensor = self(states)
        return features @ coefficients

    def write_graph(self, graph: Any, state: str, coefficients: Tensor) -> str:
        """Add phi(z)^T theta at a normalised state to an ONNX graph; return its output."""
        del graph, state, coefficients
        raise ImelError(f"{type(self).__name__} has no write_graph and cannot be exported")


class RandomFeatures(Features):
    """A constant, the normalised state and random tanh features of it."""

    directions: Tensor  # [d_s, m] W
    offsets: Tensor  # [m] b

    def __init__(self, state_dim: int, count: int) -> None:
        super().__init__()
        self.register_buffer("directions", 1.5 * torch.randn(state_dim, count) / state_dim**0.5)
        self.register_buffer("offsets", 2.0 * torch.rand(count) - 1.0)
        self.width = 1 + state_dim + count

    def forward(self, states: Tensor) -> Tensor:
        """Return phi at normalised states."""  # [T, d_s] -> [T, d_phi]
        count, inputs = states.shape
        features = states.new_empty(count, self.width)
        features[:, 0] = 1.0
        linear = features[:, 1 : inputs + 1]
        linear.copy_(states).clamp_(-REACH, REACH)
        features[:, inputs + 1 :] = tanh_(torch.addmm(self.offsets, linear, self.directions))
        return features

    def predict(self, states: Tensor, coefficients: Tensor) -> Tensor:
        """Return phi(z)^T theta at normalised states, without making phi."""
        inputs = states.shape[1]  # [T, d_s], [d_phi, d_a] -> [T, d_a]
        linear = states.clamp(-REACH, REACH)
        random = tanh_(torch.addmm(self.offsets, linear, self.directions))
        mean = torch.addmm(coefficients[0], linear, coefficients[1 : inputs + 1])
        return mean.addmm_(random, coefficients[inputs + 1 :])


@dataclass(frozen=True)
class _Block:
    """The features of one rollout's rows, and their Gram matrix."""

    features: Tensor  # [n, d_phi]
    gram: Tensor  # [d_phi, d_phi]
    episodes: Tensor  # [S] of each stretch of rows of one episode
    sizes: list[int]  # [S] rows in it


class Design:
    """The design matrix Phi of all remembered states and its Gram matrix, rollout by rollout.

    Only new rows are computed, in single precision: its rounding is far below a step's damping.
    """

    def __init__(self, features: Features, normaliser: Normaliser, memory: Memory) -> None:
        self._phi, self._normaliser = features, normaliser
        self._blocks: dict[tuple[int, int], _Block] = {}
        self.update(memory)

    def update(self, memory: Memory) -> None:
        """Compute the rows that are new in memory, drop those that were forgotten."""
        states, episodes, blocks = memory.column("states"), memory.column("episodes"), {}
        for iteration, rows in memory.rollouts():
            key = (iteration, rows.stop - rows.start)
            block = self._blocks.get(key)
            if block is None:
                features = self._phi(self._normaliser(states[rows]))
                names, counts = torch.unique_consecutive(episodes[rows], return_counts=True)
                block = _Block(features, features.T @ features, names, counts.tolist())
            blocks[key] = block
        self._blocks = blocks

    @property
    def features(self) -> Tensor:
        """Phi, copied together."""  # [N, d_phi]
        empty = self._normaliser.scale.new_empty(0, self._phi.width)
        return torch.cat([empty, *(block.features for block in self._blocks.values())])

    @property
    def gram(self) -> Tensor:
        """Phi^T Phi."""  # [d_phi, d_phi]
        gram = self._normaliser.scale.new_zeros(self._phi.width, self._phi.width)
        for block in self._blocks.values():
            gram += block.gram
        return gram

    def predict(self, coefficients: Tensor) -> Tensor:
        """Return Phi theta."""  # [d_phi, d_a] -> [N, d_a]
        # Transposed, since few columns are multiplied slowly from the right
        narrow = coefficients.T.contiguous()
        return torch.cat([(narrow @ block.features.T).T for block in self._blocks.values()])

    def products(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the episodes, and of each the sum of v_i phi_i^T over its rows.

        values [N, d_a] -> [E], [E, d_a, d_phi]
        """
        names, sums, start = [], [], 0
        for block in self._blocks.values():
            stop = start + len(block.features)
            both = block.features.to(values.dtype), values[start:stop]
            stretches = zip(*(torch.split(each, block.sizes) for each in both), strict=True)
            sums += [column.T @ rows for rows, column in stretches]
            names.append(block.episodes)
            start = stop
        episodes, member = torch.unique(torch.cat(names), return_inverse=True)
        products = values.new_zeros(len(episodes), *sums[0].shape)
        return episodes, products.index_add_(0, member, torch.stack(sums))


def damped_inverse(gram: Tensor, penalty: float) -> Tensor:
    """Return (Phi^T Phi + lambda D)^{-1}, lambda in units of the mean eigenvalue."""
    damped = gram.double()
    count, means = damped[0, 0], damped[0, 1:]
    variances = damped.diagonal()[1:] - means.square() / count
    # Where no state differs from another, enough for a factorization of sums in this precision
    least = (1e-12 if gram.dtype == torch.float64 else 1e-5) * damped.trace()
    damped.diagonal()[1:] += torch.maximum(penalty * variances.mean(), least)
    return torch.cholesky_inverse(torch.linalg.cholesky(damped))
